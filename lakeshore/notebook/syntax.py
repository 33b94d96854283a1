"""How a syntax error of a submitted cell shows: the cell's line and Python's words on it, no frames."""

from __future__ import annotations

import sys
import traceback
from typing import Any


def show_alone(shell: Any, error: SyntaxError, *, header: str, body: str, number: str) -> None:
    """Let `shell` show this one error of a cell as Python shows one that never ran.

    IPython prints every frame above a SyntaxError and asks the error nothing, so its own way of showing is
    replaced for as long as this error is on its way.

    Parameters
    ----------
    header, body : str
        The magic's line and the code below it.
    number : str
        Which cell it is.
    """
    lines = [header, *body.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    if error.lineno is not None and 0 < error.lineno <= len(lines) and not (error.text or "").strip():
        error.text = lines[error.lineno - 1]
    _, *told = traceback.format_exception_only(error)
    place = f"  Cell In[{number}], line {error.lineno}\n"
    own = [line.rstrip("\n") for line in (place, *told)]

    def show(*args: Any, **kwargs: Any) -> None:
        del shell.showsyntaxerror
        raised = sys.exc_info()[1]
        if raised is error:
            shell._showtraceback(type(error), error, own)
        else:
            shell.showsyntaxerror(*args, **kwargs)

    shell.showsyntaxerror = show
