"""`saddleforge reproduce`: the tables and figures of the attention paper beside the published numbers."""
