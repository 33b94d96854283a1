"""Calls a function once a module is loaded, by whoever loads it: nothing is imported for its own sake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class WhenLoaded(MetaPathFinder):
    """Hands each named module to its function: at `start` where it is loaded by then, else once it is.

    Parameters
    ----------
    actions : mapping
        Functions that take the loaded module, by its name.
    """

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions
        self._on = False

    def start(self) -> None:
        """Begin."""
        self._on = True
        sys.meta_path.insert(0, self)
        for name in self._actions:
            if name in sys.modules:
                self.loaded(sys.modules[name])

    def stop(self) -> None:
        """Touch no module from now on."""
        self._on = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def loaded(self, module: ModuleType) -> None:
        """Call the module's function."""
        if self._on:
            self._actions[module.__name__](module)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module as the others do, with a loader that tells when it is loaded."""
        if fullname not in self._actions:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Telling(spec.loader, self)
                return spec
        return None


class _Telling(Loader):
    """Loads as the wrapped loader does, leaves no trace of itself, and tells."""

    def __init__(self, loader: Any, listener: WhenLoaded) -> None:
        self._loader, self._listener = loader, listener

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._listener.loaded(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
