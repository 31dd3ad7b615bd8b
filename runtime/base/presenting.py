"""Presentation of results: functions of a result, with one implementation per class.

Results are plain values and know no renderer. Their methods (`.table()`, `.plot()`, ...) call these functions; the
renderers above them, which know both, register here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .hints import AttributeErrorHints

if TYPE_CHECKING:
    import xarray

Renderer = TypeVar("Renderer", bound=Callable[..., Any])


class RendererRegistry:
    """A function of a result that dispatches to the renderer registered for its class.

    Renderers are loaded when a result first needs one: pandas, xarray and matplotlib cost more than solving.
    """

    def __init__(self, name: str) -> None:
        def raise_no_renderer(result: object, *args: object, **options: object) -> Any:
            raise TypeError(f"{type(result).__name__} has no {name}")

        self.name = name
        self._fallback = raise_no_renderer
        self._renderers = singledispatch(raise_no_renderer)
        self._modules: dict[str, str] = {}

    def register_renderer_module(self, module: str, results: str) -> None:
        """Name the module that registers the renderers of a module of result classes.

        Args:
            module: dotted name of the module with renderers.
            results: dotted name of the module that defines the classes.
        """
        self._modules[results] = module

    def register_renderer_of_class(self, kind: type) -> Callable[[Renderer], Renderer]:
        """Return the decorator that makes a function the renderer of a class and of its subclasses."""

        def register_renderer(renderer: Renderer) -> Renderer:
            self._renderers.register(kind, renderer)
            return renderer

        return register_renderer

    def can_render_class(self, kind: type) -> bool:
        """Return whether a loaded renderer supports the class."""
        return self._renderers.dispatch(kind) is not self._fallback

    def __call__(self, result: object, *args: Any, **options: Any) -> Any:
        """Render a result.

        Args:
            result: the result.
            *args: passed to the renderer.
            **options: passed to the renderer.

        Raises:
            TypeError: no renderer supports its class.
        """
        for kind in type(result).__mro__:
            if kind.__module__ in self._modules:
                import_module(self._modules[kind.__module__])
        return self._renderers(result, *args, **options)


table = RendererRegistry("table")  # text for a terminal
to_json = RendererRegistry("JSON")  # the object of the command line's contract
to_dataset = RendererRegistry("dataset")  # xarray
to_frame = RendererRegistry("frame")  # pandas
to_tabular = RendererRegistry("LaTeX tabular")
plot = RendererRegistry("plot")  # a matplotlib figure, saved where a path is given
save = RendererRegistry("file")  # netCDF, whole or not at all


class TextResult(AttributeErrorHints):
    """A result that is shown as text."""

    def table(self) -> str:
        """Return the result as text, for a terminal."""
        return table(self)

    def __repr__(self) -> str:
        return self.table()


class PresentableResult(TextResult):
    """A result that is shown as text and as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that the command of the same name prints with --json."""
        return to_json(self)


class DatasetResult(AttributeErrorHints):
    """A result that is a table of points."""

    def to_xarray(self) -> xarray.Dataset:
        """Return an xarray Dataset of values, error bars and verdicts along the parameters that vary."""
        return to_dataset(self)

    def save(self, path: str | Path) -> None:
        """Write the result to a netCDF file, never partially; an existing file is overwritten."""
        save(self.to_xarray(), path)
