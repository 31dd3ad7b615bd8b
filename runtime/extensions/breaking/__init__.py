"""One-step replica symmetry breaking at zero temperature (docs/theory.md section 18)."""
