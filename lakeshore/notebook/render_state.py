"""What a panel knows of one job: its state, its numbers, how far it is; data alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from lakeshore.notebook.render_images import Figure
from lakeshore.notebook.render_numerals import as_float
from lakeshore.notebook.render_terminal import Line
from lakeshore.notebook.render_values import Shown
from lakeshore.states import State

POINTS_KEPT = 96


@dataclass(slots=True)
class Metric:
    """The newest number of one key of a job's dict frames, and a thinned history for the sparkline.

    Attributes
    ----------
    key : str
        The dict's key.
    value : number
        The newest.
    points : list of float
        At most `POINTS_KEPT`, evenly spaced over all that came.
    """

    key: str
    value: Any = None
    points: list[float] = field(default_factory=list)
    _stride: int = 1
    _seen: int = 0

    def add(self, value: Any) -> None:
        """Take a newer number."""
        self.value = value
        if self._seen % self._stride == 0:
            self.points.append(as_float(value))
            if len(self.points) >= POINTS_KEPT:
                del self.points[1::2]
                self._stride *= 2
        self._seen += 1


@dataclass(slots=True)
class Progress:
    """How far a job says it is.

    Attributes
    ----------
    done, total : float
        In the job's own unit; `total` None when it is not known.
    note : str or None
        What it is doing.
    """

    done: float = 0.0
    total: float | None = None
    note: str | None = None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1, or None without a usable total."""
        if self.total is None or not self.total > 0 or not math.isfinite(self.done):
            return None
        return min(1.0, max(0.0, self.done / self.total))


@dataclass(slots=True)
class PanelState:
    """All that a panel shows of one job. `*_at` are Unix seconds by the plane's clock.

    Attributes
    ----------
    id, name, queue, worker : str or None
        As on the row; `name` is what people call the job, `queue` None for a topic.
    state : str
        A `State`, or ``"topic"``.
    frames : int
        Values of this attempt, counted also where they are not shown.
    rate : float
        Values a second, lately; over the whole run once it ended.
    gap : int
        Frames that were trimmed before they could be read.
    notes : list of str
        What the reader should know now: no worker asks for this queue, the plane cannot be reached.
    figure : Figure or None
        The newest rich value.
    displays : list of Figure
        What the body displayed, the newest last: as many as `stream_feed` keeps.
    displays_before : int
        How many it displayed before those.
    result : Shown, Figure or None
        What the job returned, bounded; None when it returned None or has not succeeded.
    following : str
        ``"live"``; or how the following ended: ``"ended"``, ``"frozen"``, ``"detached"``.
    """

    id: str
    name: str | None = None
    queue: str | None = None
    state: str = State.QUEUED
    attempt: int = 0
    worker: str | None = None
    submitted_at: float | None = None
    not_before: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    error: str | None = None
    traceback: str | None = None
    frames: int = 0
    rate: float = 0.0
    gap: int = 0
    progress: Progress | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    tail: list[Shown] = field(default_factory=list)
    log: list[Line] = field(default_factory=list)
    figure: Figure | None = None
    displays: list[Figure] = field(default_factory=list)
    displays_before: int = 0
    notes: list[str] = field(default_factory=list)
    result: Shown | Figure | None = None
    following: str = "live"

    @property
    def figures(self) -> list[Figure]:
        """The displays and the figure, without what is the result shown once more."""
        figures = [*self.displays, *([self.figure] if self.figure else [])]
        return [each for each in figures if each != self.result]

    @property
    def earlier_displays(self) -> str:
        """What to say of displays that are not shown, or an empty text."""
        n = self.displays_before
        return f"{n:,} earlier display{'' if n == 1 else 's'}: `%lakeshore logs {self.id}`" if n else ""
