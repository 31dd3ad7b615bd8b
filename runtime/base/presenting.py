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
    """A function that presents a result in one format, by the implementation ("renderer") registered for its class.

    Modules of renderers are imported when a result first needs one: importing matplotlib takes longer than solving.
    """

    def __init__(self, name: str) -> None:
        def raise_missing_renderer(result: object, *args: object, **options: object) -> Any:
            raise TypeError(f"{type(result).__name__} has no {name}: this class cannot be shown in this form")

        self.name = name
        self._fallback = raise_missing_renderer
        self._renderers = singledispatch(raise_missing_renderer)
        self._modules: dict[str, str] = {}

    def register_renderer_module(self, module: str, results: str) -> None:
        """Record which module must be imported to present the result classes of another module.

        Args:
            module: dotted name of the module that implements the presentation.
            results: dotted name of the module that defines the result classes.
        """
        self._modules[results] = module

    def register_renderer_of_class(self, kind: type) -> Callable[[Renderer], Renderer]:
        """Return a decorator that registers a function to present results of a class and of its subclasses."""

        def register_renderer(renderer: Renderer) -> Renderer:
            self._renderers.register(kind, renderer)
            return renderer

        return register_renderer

    def can_render_class(self, kind: type) -> bool:
        """Return whether a function that presents results of this class has been registered."""
        return self._renderers.dispatch(kind) is not self._fallback

    def __call__(self, result: object, *args: Any, **options: Any) -> Any:
        """Present a result in this format, by the function registered for its class.

        Args:
            result: object of a class for which a function is registered.
            *args: further arguments of the registered function.
            **options: further options of the registered function.

        Raises:
            TypeError: no function is registered for the class of the result.
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
    """A base class of results that can be printed as text."""

    def table(self) -> str:
        """Return the result as text, for a terminal."""
        return table(self)

    def __repr__(self) -> str:
        return self.table()


class PresentableResult(TextResult):
    """A base class of results that can be printed as text and converted to JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as the dict that the command of the same name prints with --json."""
        return to_json(self)


class DatasetResult(AttributeErrorHints):
    """A base class of results that are tables of points, and can be converted to xarray and saved as netCDF."""

    def to_xarray(self) -> xarray.Dataset:
        """Return an xarray Dataset of values, error bars and verdicts along the parameters that vary."""
        return to_dataset(self)

    def save(self, path: str | Path) -> None:
        """Write the result to a netCDF file, never partially; an existing file is overwritten."""
        save(self.to_xarray(), path)
