"""The output of a run: tables, figures, and a page in Markdown and HTML."""
