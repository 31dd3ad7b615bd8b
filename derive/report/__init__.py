"""A derivation as a report: its content, its symbols, and its forms as text, LaTeX and notebook output."""
