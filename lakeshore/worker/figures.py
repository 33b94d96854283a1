"""matplotlib's figures in a body: pyplot has a list of its own for each body, and shows into its log.

Neither the list nor the backend of the process (a notebook's) is touched. matplotlib is met only where
something else has loaded it.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from lakeshore.worker import forks


class _Open:
    """The figures that one body has open, by number, as pyplot keeps them."""

    __slots__ = ("_managers", "home", "seen", "show")

    def __init__(self, show: Callable[[object], None]) -> None:
        self.show = show
        self.home = forks.here()
        self._managers: OrderedDict[Any, Any] | None = None
        self.seen: set[int] = set()

    @property
    def managers(self) -> OrderedDict[Any, Any]:
        if self._managers is None:
            self._managers = OrderedDict()
        return self._managers

    def show_all(self) -> None:
        """Show and close all, as a notebook does."""
        while self.managers:
            _, manager = self.managers.popitem(last=False)
            self.show(manager.canvas.figure)

    def show_unseen(self, tell: Callable[[str], object]) -> None:
        """Show what is open and not shown as it is now; one that cannot be drawn is told of, no more."""
        while self._managers:
            number, manager = self.managers.popitem(last=False)
            figure = manager.canvas.figure
            if id(figure) in self.seen and not figure.stale:
                continue
            try:
                self.show(figure)
            except Exception as exc:  # noqa: BLE001 - the body did not ask for it, so it does not fail by it
                tell(f"[lakeshore: figure {number} cannot be shown: {type(exc).__name__}: {exc}]\n")


_open: ContextVar[_Open | None] = ContextVar("lakeshore_figures", default=None)


def _mine() -> _Open | None:
    found = _open.get()
    return None if found is None or found.home != forks.here() else found


def of_body(
    body: Callable[[], object], show: Callable[[object], None], tell: Callable[[str], object]
) -> object:
    """Call `body` with figures of its own; those it leaves open are shown once, also where it fails.

    Parameters
    ----------
    show : callable
        Takes a figure to show.
    tell : callable
        Takes a line about one that cannot be shown.
    """
    mine = _Open(show)
    token = _open.set(mine)
    try:
        try:
            value = body()
        except Exception:
            mine.show_unseen(tell)
            raise
        mine.show_unseen(tell)
        return value
    finally:
        if mine._managers:
            mine._managers.clear()
        _open.reset(token)


# -- pyplot

_led: list[tuple[Any, Any, Any]] = []


def lead(pyplot: ModuleType) -> None:
    """Have pyplot ask for the calling body's figures and backend; everyone else gets what was there."""
    choose: Any = getattr(pyplot, "_get_backend_mod", None)
    if choose is None or _led:  # matplotlib before 3.6, or one that works in another way
        return
    gcf: Any = importlib.import_module("matplotlib._pylab_helpers").Gcf
    backend = _backend()
    _led.append((pyplot, choose, gcf))
    gcf.figs = _Figures(gcf.figs)
    pyplot._get_backend_mod = lambda: choose() if _mine() is None else backend  # type: ignore[attr-defined]


def leave() -> None:
    """Undo `lead`."""
    while _led:
        pyplot, choose, gcf = _led.pop()
        pyplot._get_backend_mod, gcf.figs = choose, gcf.figs.others


class _Figures:
    """Stands in for pyplot's one list of figures: a body's own for a body, the process's for all others."""

    def __init__(self, others: OrderedDict[Any, Any]) -> None:
        self.others = others

    def _here(self) -> OrderedDict[Any, Any]:
        mine = _mine()
        return self.others if mine is None else mine.managers

    def __getitem__(self, number: Any) -> Any:
        return self._here()[number]

    def __setitem__(self, number: Any, manager: Any) -> None:
        self._here()[number] = manager

    def __delitem__(self, number: Any) -> None:
        del self._here()[number]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._here())

    def __len__(self) -> int:
        return len(self._here())

    def __contains__(self, number: object) -> bool:
        return number in self._here()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here(), name)


def _backend() -> type:
    """Make the backend of bodies: Agg, whose `show` writes to the job's log."""
    bases: Any = importlib.import_module("matplotlib.backend_bases")
    agg: Any = importlib.import_module("matplotlib.backends.backend_agg")

    class Manager(bases.FigureManagerBase):  # type: ignore[misc]
        def show(self) -> None:
            mine = _mine()
            if mine is not None:
                mine.show(self.canvas.figure)

    class Canvas(agg.FigureCanvasAgg):  # type: ignore[misc]
        manager_class = Manager

        def print_figure(self, filename: Any, *args: Any, **kwargs: Any) -> Any:
            printed = super().print_figure(filename, *args, **kwargs)
            mine = _mine()
            if mine is not None and hasattr(filename, "write"):  # a display draws into memory, not to a path
                mine.seen.add(id(self.figure))
                self.figure.stale = False
            return printed

    class Backend:
        FigureCanvas = Canvas
        FigureManager = Manager
        required_interactive_framework = None
        mainloop = None

        @staticmethod
        def new_figure_manager(num: Any, *args: Any, FigureClass: Any = None, **kwargs: Any) -> Any:
            make = FigureClass or importlib.import_module("matplotlib.figure").Figure
            return Canvas.new_manager(make(*args, **kwargs), num)

        @staticmethod
        def new_figure_manager_given_figure(num: Any, figure: Any) -> Any:
            return Canvas.new_manager(figure, num)

        @staticmethod
        def draw_if_interactive() -> None:
            """Nothing is drawn before it is shown."""

        @staticmethod
        def show(*args: Any, **kwargs: Any) -> None:
            mine = _mine()
            if mine is not None:
                mine.show_all()

    return Backend
