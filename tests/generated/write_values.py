"""Rewrite the committed values of the symbolic expressions: `make values`, after a change that means to change one."""

from pathlib import Path

from saddleforge.derive import values
from saddleforge.derive.emit import tree

FOLDER = Path(__file__).parent / "values"

if __name__ == "__main__":
    touched = values.write_expression_value_files(FOLDER, tree.generate_shipped_solvers())
    print("\n".join(touched) or "nothing to do: every value is as committed")
