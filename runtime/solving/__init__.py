"""From a problem to a solution with half widths."""
