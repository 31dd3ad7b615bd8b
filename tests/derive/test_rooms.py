"""Rooms of derive/ import downward only (docs/design.md section 3)."""

from pathlib import Path

import pytest

import saddleforge.derive
from saddleforge.derive.digest import closure

ROOT = Path(saddleforge.derive.__path__[0])
THEORY = {"calculus", "authoring", "theory"}
BELOW = {  # a room -> those that it may load, wherever it imports them
    "calculus": {"calculus"},
    "authoring": {"calculus", "authoring"},
    "models": {"calculus", "authoring", "models"},
    "theory": THEORY,
    "emit": THEORY | {"emit"},
    "replicas": THEORY | {"replicas"},
    "report": THEORY | {"replicas", "report"},
}


def test_every_room_is_known():
    assert {init.parent.relative_to(ROOT).parts[0] for init in ROOT.glob("*/**/__init__.py")} == set(BELOW)


@pytest.mark.parametrize("room", BELOW)
def test_a_room_loads_what_is_below_it(room):
    loaded = [
        path.relative_to(ROOT) for path in closure(*[str(p.relative_to(ROOT)) for p in ROOT.glob(f"{room}/**/*.py")])
    ]
    assert {path.parts[0] for path in loaded if len(path.parts) > 1} <= BELOW[room]
