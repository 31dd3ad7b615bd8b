"""Code generation: kernels (where SymPy ends), printers, templates, writer."""
