"""tqdm's notebook bars in a body: text on stderr, since a widget made here has no cell to live in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

_led: list[tuple[Any, Any]] = []


def lead(in_body: Callable[[], bool], module: ModuleType) -> None:
    """Have `tqdm.notebook`'s bars that are made in a body be the plain ones."""
    kind: Any = getattr(module, "tqdm_notebook", None)
    if kind is None or _led:
        return
    original = kind.__init__
    _led.append((kind, original))

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        if not in_body():
            original(self, *args, **kwargs)
            return
        kwargs.pop("display", None)
        plain: Any = super(kind, self)
        for name in ("status_printer", "display", "clear", "reset", "close"):
            setattr(self, name, getattr(plain, name))
        self.disp = lambda *_, **__: None  # a widget's colours
        plain.__init__(*args, **kwargs)

    kind.__init__ = make


def leave() -> None:
    """Undo `lead`."""
    while _led:
        kind, original = _led.pop()
        kind.__init__ = original
