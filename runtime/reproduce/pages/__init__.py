"""What a run leaves to be read: tables, figures, and a page in Markdown and HTML."""
