"""How a magic refuses and warns: what our own calls raise or warn of shows as one line."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from IPython.core.error import UsageError

from lakeshore.errors import LakeshoreError


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Let a `LakeshoreError` show as its message alone, and turn a `ValueError` into a usage error.

    For calls of ours only: an error of the user's code keeps its traceback.
    """
    try:
        yield
    except LakeshoreError as error:
        text = f"{type(error).__name__}: {error}"
        error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Let a warning of ours show as a line of the cell's, without the place in our code that warns."""
    from lakeshore.functions.capture import LargeCaptureWarning  # for submit alone; most magics ship nothing

    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, LargeCaptureWarning):
                sys.stdout.write(f"lakeshore: {message}\n")
            else:
                shown(message, category, *place, **more)

        warnings.showwarning = show
        yield
