"""How a by-value function's pickle is loaded: every class in it made anew, none that lives here touched."""

from __future__ import annotations

import io
import pickle
import sys
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle as engine

from lakeshore.errors import TransportError
from lakeshore.functions import reducers
from lakeshore.functions.reference import is_installed


class Unportable(Exception):
    """A load would look for this name in a module that only this process has."""


def loads(data: bytes) -> Any:
    """Load what `dumps` made, its classes apart from those that live here."""
    return Unpickler(io.BytesIO(data)).load()


class Unpickler(pickle.Unpickler):
    """Makes every class that came by value anew: none that lives here is looked up or touched."""

    def __init__(self, file: Any, *, trial: bool = False, quiet: bool = False) -> None:
        super().__init__(file)
        self._trial, self._quiet = trial, quiet
        self._made: set[type] = set()
        self._makers = {
            "_make_skeleton_class": self._make_class,
            "_make_skeleton_enum": _make_enum,
            "_make_typevar": _make_typevar,
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names; called by the unpickler."""
        if module == "cloudpickle.cloudpickle" and name in self._makers:
            return self._makers[name]
        if self._trial:
            owner = sys.modules.get(module)
            if module == "__main__" or (owner is not None and not is_installed(owner)):
                raise Unportable(f"{name!r} would be looked for in {module!r}, which only this process has")
        return super().find_class(module, name)

    def _make_class(
        self,
        meta: Any,
        name: str,
        bases: tuple[Any, ...],
        kwargs: dict[str, Any],
        _tracker: object,
        extra: object,
    ) -> Any:
        """Make a class that came by value; its attributes follow with the pickle.

        So a base's `__init_subclass__` need not run, and may not be able to: its keywords are gone.
        It runs where the base is installed here, which may keep a registry, unless this is a trial.
        """
        makers: list[Callable[[], Any]] = [
            lambda: engine._make_skeleton_class(meta, name, bases, kwargs, None, extra)
        ]
        owner = reducers.hook_owner(bases)
        if owner is not None:
            makers.append(lambda: reducers.graft(meta, name, bases, kwargs))
            if meta in (type, ABCMeta) and (self._quiet or owner in self._made):
                makers.reverse()
        error: Exception | None = None
        for make in makers:
            try:
                made = make()
            except Exception as raised:  # noqa: BLE001 - the hook is the user's, and may raise anything
                error = error or raised
            else:
                self._made.add(made)
                return made
        raise TransportError(f"cannot rebuild the class {name!r}: {type(error).__name__}: {error}") from error


def _make_enum(
    bases: Any, name: str, qualname: str, members: Any, module: str, _tracker: object, extra: object
) -> Any:
    return engine._make_skeleton_enum(bases, name, qualname, members, module, None, extra)


def _make_typevar(
    name: str, bound: Any, constraints: Any, covariant: bool, contravariant: bool, _tracker: object
) -> Any:
    return engine._make_typevar(name, bound, constraints, covariant, contravariant, None)


def try_load(blob: bytes) -> None:
    """Load a blob as a worker would, in order to fail here and not there; quietly first."""
    try:
        Unpickler(io.BytesIO(blob), trial=True, quiet=True).load()
    except Unportable:
        raise
    except Exception:  # noqa: BLE001 - the quiet way may fail where the worker's way does not
        Unpickler(io.BytesIO(blob), trial=True).load()
