"""How a magic refuses: what our own calls raise shows as one line, without a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
