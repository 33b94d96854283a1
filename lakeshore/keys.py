"""The rules of keys: what is a good one, where it leads, and which keys a result names.

A key is a relative POSIX path below a scope. Nothing here touches the disk, but to see where links lead.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any, cast

from lakeshore.errors import KeyContractError

_DRIVE = re.compile(r"[A-Za-z]:")
_NAME_BYTES = 255
_PATH_BYTES = 1023 if sys.platform == "darwin" else 4095
_MAX_PARTS = 255
"""A key's, so that whoever makes its folders one in the other comes to an end."""
_LONG_ROW = 1000


class KeyNotFound(KeyContractError, FileNotFoundError):
    """`run.read` was asked for a key that has no file.

    Also a `FileNotFoundError`, so that code written for plain files catches it.
    """


def normal(value: object, what: str) -> str:
    """Return a well-formed key without ``.`` steps; ``..`` steps may lead."""
    if not isinstance(value, str):
        raise KeyContractError(f"{what} {value!r}: wants a str, got {type(value).__name__}")
    fault = None
    if not value:
        fault = "is empty"
    elif "\0" in value:
        fault = "holds a NUL"
    elif "\\" in value:
        fault = "holds a backslash; separate with '/'"
    elif value.startswith("/"):
        fault = "is absolute"
    elif _DRIVE.match(value):
        fault = "starts with a drive letter"
    else:
        try:
            long = any(len(part.encode()) > _NAME_BYTES for part in value.split("/"))
        except UnicodeEncodeError:
            fault = "is not valid Unicode text"
        else:
            fault = f"has a part of more than {_NAME_BYTES} bytes" if long else None
            if value.count("/") >= _MAX_PARTS:
                fault = f"has more than {_MAX_PARTS} parts"
    if fault is None:
        normal = posixpath.normpath(value)
        if normal != ".":
            return normal
        fault = "names the scope itself"
    shown = value if len(value) <= 120 else value[:120] + "…"
    raise KeyContractError(f"{what} {shown!r}: {fault}. Give a relative path such as 'out/model.bin'.")


def join(prefix: str, value: object, what: str) -> str:
    """Return `value` below `prefix` as a path from the root, "" for the root itself."""
    joined = posixpath.normpath(posixpath.join(prefix, normal(value, what)))
    if joined == ".." or joined.startswith("../"):
        raise KeyContractError(
            f"{what} {value!r}: climbs out of the root from scope {prefix!r}. '..' may reach a parent scope."
        )
    return "" if joined == "." else joined


def inside(root: Path, full: str, what: str, shown: object) -> Path:
    """Return the path of `full` below `root`, links followed for the check only."""
    path = root / full if full else root
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise KeyContractError(
            f"{what} {str(shown)[:120] + '…'!r}: its path would be longer than {_PATH_BYTES:,} bytes. "
            "Give a shorter key."
        )
    real, real_root = os.path.realpath(path), os.path.realpath(root)
    if real != real_root and not real.startswith(real_root.rstrip(os.sep) + os.sep):
        raise KeyContractError(
            f"{what} {shown!r}: a link leads out of the root {str(root)!r}, to {real!r}. "
            "Keep links inside the root."
        )
    return path


def absolute(root: object) -> Path:
    """Return a root directory as an absolute path; None is the working directory now."""
    if root is None:
        return Path.cwd()
    if not isinstance(root, (str, os.PathLike)) or "\0" in os.fspath(cast(str, root)):
        raise KeyContractError(f"root {root!r}: wants a directory's path")
    if isinstance(root, Path) and root.is_absolute() and ".." not in root.parts:
        return root
    # abspath, not resolve: the user sees the path they gave, and a later chdir cannot move it
    return Path(os.path.abspath(cast(str, root)))  # noqa: PTH100


def check_prefix(prefix: object) -> str:
    """Return a scope prefix in its normal form, relative to the root.

    Parameters
    ----------
    prefix : str
        A relative POSIX path; ``""`` is the root.

    Raises
    ------
    KeyContractError
        When it is malformed or climbs out of the root.
    """
    return "" if prefix == "" else join("", prefix, "prefix")


def strings(value: object, depth: int = 8) -> Iterator[str]:
    """Yield the strings of a manifest: a str, or lists, tuples and dict values of them."""
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, (list, tuple)):
        # a long row of numbers is data, and is not gone through in search of a key
        if len(value) > _LONG_ROW and not isinstance(value[0], (str, list, tuple, dict)):
            return
        for item in value:
            yield from strings(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from strings(item, depth - 1)


def paths(value: object, depth: int = 8) -> Iterator[str]:
    """Yield the `Path` objects of a result, as text, from where `strings` would look for keys."""
    if isinstance(value, PurePath):
        yield str(value)
    elif depth and isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value[:_LONG_ROW]:
            yield from paths(item, depth - 1)


def mirror(manifest: Any, at: Callable[[str], Any]) -> Any:
    """Return `manifest` with `at` of each key in its place; the shape stays."""
    if isinstance(manifest, dict):
        return {name: mirror(item, at) for name, item in manifest.items()}
    if isinstance(manifest, list):
        return [mirror(item, at) for item in manifest]
    if isinstance(manifest, tuple):
        return tuple(mirror(item, at) for item in manifest)
    return at(manifest)
