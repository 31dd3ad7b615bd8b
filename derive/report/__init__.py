"""A derivation as a page: what it says, in which symbols, and its faces in text, LaTeX and notebooks."""
