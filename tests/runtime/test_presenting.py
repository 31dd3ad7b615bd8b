"""Results know no renderer: `presenting` finds the one of their class, and says so where there is none."""

from importlib import import_module

import pytest

from saddleforge.base import presenting
from saddleforge.report import list_renderer_modules


@pytest.mark.parametrize(
    ("face", "module", "results"), list_renderer_modules(), ids=lambda part: getattr(part, "name", part)
)
def test_every_registered_renderer_has_its_result_class(face, module, results):
    defined = vars(import_module(results)).values()
    kinds = [kind for kind in defined if isinstance(kind, type) and kind.__module__ == results]
    import_module(module)
    assert any(face.can_render_class(kind) for kind in kinds)


def test_a_class_without_a_renderer_is_named():
    with pytest.raises(TypeError, match="object has no table"):
        presenting.table(object())
