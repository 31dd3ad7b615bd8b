"""`cache`: the content of the cache folder, its size, and how to clear it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.errors import InputError, require_known_name
from .outcome import CommandOutcome, command_with_options

if TYPE_CHECKING:
    from ..problems.cache_contents import CachedFile


@command_with_options("json")
def cache(clear: str | None = None, list_: bool = False) -> CommandOutcome:
    """Show the cache of solvers, machine code and quadrature nodes: folder, size, and parts that are out of date.

    Args:
        clear (old|all): Remove the parts that are out of date, or everything.
        list_: List every part, not only the total size.
    """
    if clear is not None:
        require_known_name("value", clear, ("old", "all"), "--clear")
    from ..base.cache import cache_folder, numba_cache_folder
    from ..problems.cache_contents import cached_files, clear_cache

    try:
        gone = [] if clear is None else clear_cache(clear == "all")
    except OSError as error:
        raise InputError(f"cannot clear {cache_folder()}: {error.strerror or error}") from error
    there = cached_files()
    lines = [f"{cache_folder()}"]
    if not numba_cache_folder().is_relative_to(cache_folder()):
        lines.append(f"{numba_cache_folder()} (machine code)")
    for what in dict.fromkeys(part.what for part in there):
        own = [part for part in there if part.what == what]
        old = [part for part in own if part.old]
        lines.append(
            _cache_size_row(what, own) + (f"   of it old {_format_byte_size(sum(p.bytes for p in old))}" if old else "")
        )
        if list_:
            lines += [f"    {part.name:<60} {_format_byte_size(part.bytes):>9}{'   old' * part.old}" for part in own]
    lines.append(_cache_size_row("all", there))
    if clear is not None:
        lines.append(f"removed {_format_byte_size(sum(part.bytes for part in gone))} in {len(gone)} parts")
    elif any(part.old for part in there):
        lines.append("`saddleforge cache --clear old` removes what is out of date")
    data = {
        "folder": str(cache_folder()),
        "machine_code": str(numba_cache_folder()),
        "bytes": sum(part.bytes for part in there),
        "old_bytes": sum(part.bytes for part in there if part.old),
        "parts": [{"what": p.what, "name": p.name, "path": str(p.path), "bytes": p.bytes, "old": p.old} for p in there],
        "removed_bytes": sum(part.bytes for part in gone),
    }
    return CommandOutcome("\n".join(lines), data)


def _cache_size_row(what: str, parts: list[CachedFile]) -> str:
    return f"  {what:<22} {len(parts):>5}   {_format_byte_size(sum(part.bytes for part in parts)):>9}"


def _format_byte_size(number: int) -> str:
    return f"{number / 1e6:.1f} MB" if number >= 1e5 else f"{number / 1e3:.1f} kB"
