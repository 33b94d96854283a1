"""The import path of one job: its code mount first, and nothing of it left for the next job.

One mount is in force in a process at a time. Modules that the mount hides (an installed copy of what it
brings) are put aside for its time and come back as they were.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, all_suffixes
from pathlib import Path
from types import ModuleType
from typing import Final

from lakeshore.codebase.names import fault
from lakeshore.codebase.unpack import ArchiveRefused, check_digest

_OURS: Final = __name__.partition(".")[0]
_TURN_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Mount:
    """Code that a job brings.

    Attributes
    ----------
    folder : Path
        Where it is unpacked.
    paths : tuple of str
        The folders in it to import from, in this order.
    """

    folder: Path
    paths: tuple[str, ...]

    def brings(self, module: str) -> bool:
        """Whether the mount has this module; nothing is imported."""
        parts = module.split(".")
        if parts[0] == _OURS or parts[0] in sys.stdlib_module_names or not all(map(str.isidentifier, parts)):
            return False
        for path in self.paths:
            base = Path(path, *parts)
            if (base / "__init__.py").is_file():
                return True
            if any(base.with_name(base.name + suffix).is_file() for suffix in all_suffixes()):
                return True
        return False

    def _holds(self, place: object) -> bool:
        inside = str(self.folder).rstrip("/") + "/"
        return isinstance(place, str) and (place + "/").startswith(inside)

    def holds(self, module: ModuleType) -> bool:
        """Whether a loaded module came from here."""
        spaces = getattr(module, "__path__", ())
        try:
            places = [getattr(module, "__file__", None), *spaces]
        except Exception:  # noqa: BLE001 - a module may have replaced itself by anything
            return False
        return any(map(self._holds, places))


@dataclass(frozen=True, slots=True)
class _StandardFirst:
    """Finds modules of the standard library beside a mount: what a process gets by such a name must not
    depend on whether it was loaded before the mount came."""

    paths: tuple[str, ...]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name not in sys.stdlib_module_names:
            return None
        return PathFinder.find_spec(name, [entry for entry in sys.path if entry not in self.paths], target)


def read_stamp(stamp: object) -> tuple[str, tuple[str, ...]] | None:
    """Return digest and import roots of a job's stamp; None for a job that brings no code.

    Raises
    ------
    ArchiveRefused
        When the stamp names no digest, or a root outside the archive.
    """
    if not isinstance(stamp, dict) or not stamp.get("digest"):
        return None
    digest = stamp["digest"]
    check_digest(digest)
    roots = stamp.get("roots") or ["."]
    if not isinstance(roots, list) or len(roots) > 100:
        raise ArchiveRefused("the job's code stamp: roots wants a list of folders")
    for root in roots:
        why = "is no text" if not isinstance(root, str) else None if root == "." else fault(root)
        if why is not None:
            raise ArchiveRefused(f"the job's code stamp: the root {root!r:.200} {why}")
    return digest, tuple(roots)


def at(folder: Path, roots: tuple[str, ...]) -> Mount:
    """Return the mount of an unpacked archive."""
    return Mount(folder, tuple(str(folder / root) if root != "." else str(folder) for root in roots))


class Turns:
    """Puts one mount after the other in force in this process.

    A body may be stopped by an exception that surfaces at any bytecode, here too: so each step can be made
    again, and what says that one is done is written last.

    Parameters
    ----------
    keep : bool
        Leave a mount in force after its job, until another one comes: for a process that is replaced
        when the code changes, so that what was loaded stays loaded.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self._free = threading.Condition()
        self._mount: Mount | None = None
        self._whole = True
        self._users: set[object] = set()
        self._aside: dict[str, ModuleType] = {}

    @contextmanager
    def taken(self, mount: Mount | None) -> Iterator[Mount | None]:
        """Have `mount` in force, and no other; waits for jobs with other code to end.

        Parameters
        ----------
        mount : Mount or None
            None is the code that is installed here, alone.
        """
        if mount is None and not self._keep:
            yield None
            return
        me = object()
        try:
            while not self._enter(mount, me):
                pass
            yield mount
        finally:
            stopped: BaseException | None = None
            while not self._is_gone(me):
                try:
                    self._leave(me)
                except BaseException as exc:  # noqa: BLE001 - the stop of the body, raised again below
                    stopped = exc
            if stopped is not None:
                raise stopped

    def _is_gone(self, user: object) -> bool:
        return user not in self._users and (bool(self._users) or self._keep or self._mount is None)

    def _enter(self, mount: Mount | None, user: object) -> bool:
        with self._free:
            if self._users and self._mount != mount:
                self._free.wait(_TURN_SECONDS)
                return False
            if self._mount != mount or not self._whole:
                self._end()
                self._begin(mount)
            self._users.add(user)
            return True

    def _leave(self, user: object) -> None:
        with self._free:
            self._users.discard(user)
            if not self._users and not self._keep:
                self._end()
            self._free.notify_all()

    def _begin(self, mount: Mount | None) -> None:
        self._whole = False
        self._mount = mount
        if mount is not None:
            sys.meta_path.insert(0, _StandardFirst(mount.paths))
            sys.path[:0] = mount.paths
            importlib.invalidate_caches()
            tops = {name.partition(".")[0] for name in sys.modules} - {"__main__", "__mp_main__"}
            hidden = {top for top in tops if mount.brings(top)}
            for name, module in list(sys.modules.items()):
                if name.partition(".")[0] in hidden and not mount.holds(module):
                    self._aside[name] = module
                    sys.modules.pop(name, None)
        self._whole = True

    def _end(self) -> None:
        mount = self._mount
        if mount is not None:
            sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _StandardFirst)]
            sys.path[:] = [entry for entry in sys.path if entry not in mount.paths]
            for name, module in list(sys.modules.items()):
                if mount.holds(module):
                    _let_go(name, module)
                    sys.modules.pop(name, None)
            sys.modules.update(self._aside)
            self._aside.clear()
            for place in [place for place in sys.path_importer_cache if mount._holds(place)]:
                sys.path_importer_cache.pop(place, None)
        self._mount = None


def _let_go(name: str, module: ModuleType) -> None:
    """Take a module from its package, which stays where other folders have a part of it too."""
    package, _, last = name.rpartition(".")
    names = getattr(sys.modules.get(package), "__dict__", {})
    if names.get(last) is module:
        names.pop(last, None)
