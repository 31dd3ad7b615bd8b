"""`saddleforge reproduce`: tables and figures of the attention paper, compared with the published numbers."""
