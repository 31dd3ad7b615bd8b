"""Results know no renderer: `presenting` finds the one of their class, and says so where there is none."""

from importlib import import_module

import pytest

from saddleforge.base import presenting
from saddleforge.report import renderers


@pytest.mark.parametrize(("face", "module", "results"), renderers(), ids=lambda part: getattr(part, "name", part))
def test_what_is_named_is_there(face, module, results):
    defined = vars(import_module(results)).values()
    kinds = [kind for kind in defined if isinstance(kind, type) and kind.__module__ == results]
    import_module(module)
    assert any(face.can_render(kind) for kind in kinds)


def test_a_class_without_a_renderer_is_named():
    with pytest.raises(TypeError, match="object has no table"):
        presenting.table(object())
