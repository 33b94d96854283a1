"""Every error lakeshore raises on purpose, in one tree; each says what happened and what to do.

::

    LakeshoreError
    ├── DispatchError (RuntimeError)          a plane refused or could not do what a verb asked
    │   ├── ClaimLost                         the caller no longer holds the claim
    │   ├── UnknownInvocation                 no row has this id
    │   ├── InvocationFailed                  the job ended in `failed`
    │   ├── InvocationCancelled               the job ended in `cancelled`
    │   ├── PlaneUnavailable                  the plane cannot be reached, locked, full, or is not ours
    │   └── NotSupported                      an older control plane lacks the verb
    ├── TransportError                        a function cannot cross to the worker
    │   ├── NotImportable                     a reference does not resolve here
    │   ├── PickleRefused                     this worker does not take by-value functions
    │   ├── RuntimeMismatch                   pickled under another interpreter
    │   ├── StaleSource                       the module's source is not the one submitted
    │   └── CaptureError                      the function captured what cannot travel
    ├── WireError
    │   ├── CodecError (ValueError)           a codec cannot be registered
    │   ├── PackError (TypeError)             a value has no exact form on the wire
    │   └── UnpackError (ValueError)          these bytes are not ours, or are broken
    ├── KeyContractError (ValueError)         a key or prefix is malformed, escapes, or was not returned
    ├── InputRefused                          a job asked for input
    └── WaitTimeout (TimeoutError)            nothing came in the time given
    JobCancelled (BaseException)              raised inside a body that is to stop
    Detached (KeyboardInterrupt)              Ctrl-C ended a wait, not what was waited for

`code` is stable and travels over HTTP. No message ever holds a token.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "CaptureError",
    "ClaimLost",
    "CodecError",
    "Detached",
    "DispatchError",
    "InputRefused",
    "InvocationCancelled",
    "InvocationFailed",
    "JobCancelled",
    "KeyContractError",
    "LakeshoreError",
    "NotImportable",
    "NotSupported",
    "PackError",
    "PickleRefused",
    "PlaneUnavailable",
    "RuntimeMismatch",
    "StaleSource",
    "TransportError",
    "UnknownInvocation",
    "UnpackError",
    "WaitTimeout",
    "WireError",
]


class LakeshoreError(Exception):
    """The base of all errors of this library."""

    code: ClassVar[str] = "error"


class DispatchError(LakeshoreError, RuntimeError):
    """A plane refused a verb, or could not carry it out."""

    code = "dispatch"


class ClaimLost(DispatchError):
    """The claim is not (or no longer) the caller's: another worker has the job, or it was cancelled."""

    code = "claim_lost"


class UnknownInvocation(DispatchError):
    """No invocation has this id in this namespace."""

    code = "unknown_invocation"


class InvocationFailed(DispatchError):
    """The job ended in `failed`.

    Attributes
    ----------
    type : str
        The remote exception's class name. The class itself is never rebuilt here.
    message : str
        Its message.
    traceback : str or None
        Its traceback as text: the user's own frames.
    id : str or None
        The invocation.
    """

    code = "invocation_failed"

    def __init__(
        self, message: str = "", *, type: str = "Error", traceback: str | None = None, id: str | None = None
    ) -> None:
        self.type, self.message, self.traceback, self.id = type, message, traceback, id
        head = f"invocation {id!r} failed: " if id else ""
        tail = f"\n\n{traceback.rstrip()}" if traceback else ""
        super().__init__(f"{head}{type}: {message}{tail}" if message else f"{head}{type}{tail}")

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> InvocationFailed:
        """Build the error that a `failed` row tells of.

        Parameters
        ----------
        row : dict
            What `Plane.get` returned; its `error` reads ``"Type: message"``.
        """
        text = row["error"] or "Error"
        kind, sep, message = text.partition(": ")
        if not (sep and kind.replace(".", "_").isidentifier()):
            kind, message = ("Error", text) if not text.isidentifier() else (text, "")
        return cls(message, type=kind, traceback=row.get("traceback"), id=row["id"])


class InvocationCancelled(DispatchError):
    """The job ended in `cancelled`; it has no result."""

    code = "invocation_cancelled"


class PlaneUnavailable(DispatchError):
    """The plane cannot be used now: unreachable, locked, full, read-only, or not a file of ours."""

    code = "plane_unavailable"


class NotSupported(DispatchError):
    """The control plane is older than this verb."""

    code = "not_supported"


class TransportError(LakeshoreError):
    """A function cannot cross to the worker, or may not run there."""

    code = "transport"


class NotImportable(TransportError):
    """A by-reference function does not resolve in this process."""

    code = "not_importable"


class PickleRefused(TransportError):
    """This worker does not run by-value functions (`allow_pickled`)."""

    code = "pickle_refused"


class RuntimeMismatch(TransportError):
    """A by-value function was pickled under an interpreter that this one does not match."""

    code = "runtime_mismatch"


class StaleSource(TransportError):
    """A by-reference function's source here differs from the source that was submitted."""

    code = "stale_source"


class CaptureError(TransportError):
    """A by-value function captured something that cannot leave this process."""

    code = "capture"


class WireError(LakeshoreError):
    """A value or some bytes do not fit the wire format."""

    code = "wire"


class CodecError(WireError, ValueError):
    """A user's codec cannot be registered: a reserved or taken code, or parts that are no functions."""

    code = "codec"


class PackError(WireError, TypeError):
    """A value has no exact form on the wire; the message names the path to it."""

    code = "pack"


class UnpackError(WireError, ValueError):
    """Bytes are truncated, forged, of a newer version, or not ours at all."""

    code = "unpack"


class KeyContractError(LakeshoreError, ValueError):
    """A key or prefix is malformed or climbs out of the root, or a written key was not returned."""

    code = "key_contract"


class InputRefused(LakeshoreError):
    """A body asked for input (`input`, `getpass`): nobody sits before a job to answer."""

    code = "input_refused"


class WaitTimeout(LakeshoreError, TimeoutError):
    """Nothing came within the time given. A job goes on, a topic stays open: ask again."""

    code = "wait_timeout"


class JobCancelled(BaseException):
    """Raised inside a body whose job was cancelled, timed out or re-dispatched.

    A `BaseException`, so that ``except Exception`` in a body does not eat it.
    """


class Detached(KeyboardInterrupt):
    """Ctrl-C ended a wait. The job goes on unless the message says that it was cancelled.

    A `KeyboardInterrupt`, so that a script or a Run-All stops here; a notebook shows it as one line.

    Attributes
    ----------
    command : str
        How a job is cancelled here: ``"lakeshore cancel"``, and ``"%lakeshore cancel"`` while the notebook
        extension is loaded.
    """

    command: ClassVar[str] = "lakeshore cancel"

    @classmethod
    def of(cls, *ids: str) -> Detached:
        """Say that these jobs still run, and how to cancel them."""
        shown = " ".join(ids[:8]) + (" …" if len(ids) > 8 else "")
        return cls(f"detached: {shown} still {'runs' if len(ids) == 1 else 'run'}; {cls.command} {shown}")

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
