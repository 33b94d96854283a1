"""Errors and their exit codes: one line each, no traceback, whatever a command raises."""

from __future__ import annotations

import pytest
import typer

from lakeshore import errors
from lakeshore.cli import app


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvocationFailed("division by zero", type="ZeroDivisionError"), 1),
        (errors.InvocationCancelled("result: cancelled"), 1),
        (errors.WaitTimeout("result: not yet"), 1),
        (errors.UnpackError("not an envelope"), 1),
        (errors.UnknownInvocation("no such job"), 2),
        (errors.NotSupported("cancel: does not have it"), 2),
        (ValueError("--x: wants y"), 2),
        (typer.BadParameter("--x: wants y"), 2),
        (errors.PlaneUnavailable("open: no"), 3),
        (errors.DispatchError("refuses: no valid token"), 3),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 0),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else str(each),
)
def test_exit_codes(monkeypatch, capsys, error, code):
    command = typer.Typer(add_completion=False)

    @command.command()
    def fails() -> None:
        raise error

    monkeypatch.setattr(app, "app", command)
    assert app.run([]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == (code != 0)
    assert "Traceback" not in err
