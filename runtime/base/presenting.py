"""How results are shown: functions of a result, each with one implementation a class.

Results are plain values and know no renderer. Their methods (`.table()`, `.plot()`, ...) call these functions; the
renderers above them, which know both, register here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .hints import AttributeHints

if TYPE_CHECKING:
    import xarray

Renderer = TypeVar("Renderer", bound=Callable[..., Any])


class Face:
    """A function of a result that dispatches on its class.

    Renderers are loaded with the first result that asks for one: pandas, xarray and matplotlib cost more than solving.
    """

    def __init__(self, name: str) -> None:
        def unknown(result: object, *args: object, **options: object) -> Any:
            raise TypeError(f"{type(result).__name__} has no {name}")

        self.name = name
        self._unknown = unknown
        self._renderers = singledispatch(unknown)
        self._where: dict[str, str] = {}

    def found_in(self, module: str, results: str) -> None:
        """Name the module in which renderers of the classes register that the module `results` defines."""
        self._where[results] = module

    def register(self, kind: type) -> Callable[[Renderer], Renderer]:
        """Make a function the renderer of a class and of its subclasses."""

        def keep(renderer: Renderer) -> Renderer:
            self._renderers.register(kind, renderer)
            return renderer

        return keep

    def renders(self, kind: type) -> bool:
        """Whether a renderer that is loaded knows the class."""
        return self._renderers.dispatch(kind) is not self._unknown

    def __call__(self, result: object, *args: Any, **options: Any) -> Any:
        """Render a result.

        Raises:
            TypeError: no renderer knows its class.
        """
        for kind in type(result).__mro__:
            if kind.__module__ in self._where:
                import_module(self._where[kind.__module__])
        return self._renderers(result, *args, **options)


table = Face("table")  # text for a terminal
to_json = Face("JSON")  # the object of the command line's contract
to_dataset = Face("dataset")  # xarray
to_frame = Face("frame")  # pandas
to_tabular = Face("LaTeX tabular")
plot = Face("plot")  # a matplotlib figure, saved where a path is given
save = Face("file")  # netCDF, whole or not at all


class Shown(AttributeHints):
    """A result that is shown as text."""

    def table(self) -> str:
        """Return the result as text, for a terminal."""
        return table(self)

    def __repr__(self) -> str:
        return self.table()


class Result(Shown):
    """A result that is shown as text and as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that the command of the same name prints with --json."""
        return to_json(self)


class Recorded(AttributeHints):
    """A result that is a table of points."""

    def to_xarray(self) -> xarray.Dataset:
        """Return values, error bars and verdicts along the parameters that vary."""
        return to_dataset(self)

    def save(self, path: str | Path) -> None:
        """Write netCDF, whole or not at all, over what is there."""
        save(self.to_xarray(), path)
