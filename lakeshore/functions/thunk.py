"""One call to be made elsewhere: a function, its arguments and its options, as an envelope on demand."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from lakeshore.context import ambient
from lakeshore.errors import PackError, TransportError
from lakeshore.functions.reference import by_reference, reference_of
from lakeshore.functions.source import label_of
from lakeshore.planes.contract import Plane, check_name, check_number
from lakeshore.wire import Envelope, pack

MAX_RETRIES = 100
MAX_BACKOFF = 86400.0
TRANSPORTS = ("auto", "ref", "pickle")


@dataclass(frozen=True, slots=True)
class Options:
    """How a call is to be shipped and run; None leaves it to the worker.

    Attributes
    ----------
    retries : int
        Attempts after the first, 0 to 100.
    backoff : float
        Base of the delay between attempts, seconds, up to one day.
    timeout : float
        Seconds that one attempt may run.
    name : str
        Shown to people.
    log : bool
        Whether stdout and stderr are streamed.
    transport : {"auto", "ref", "pickle"}
        See `lakeshore.functions.transport.describe`.
    capture_limit : int
        The most bytes that a by-value function may have.
    """

    retries: int | None = None
    backoff: float | None = None
    timeout: float | None = None
    name: str | None = None
    log: bool | None = None
    transport: str | None = None
    capture_limit: int | None = None

    def __post_init__(self) -> None:
        retries = self.retries
        if retries is not None:
            whole = isinstance(retries, int) and not isinstance(retries, bool)
            if not whole or not 0 <= retries <= MAX_RETRIES:
                raise ValueError(f"retries {retries!r}: wants an int from 0 to {MAX_RETRIES}")
        if self.backoff is not None and check_number(self.backoff, "backoff", minimum=0.0) > MAX_BACKOFF:
            raise ValueError(f"backoff {self.backoff!r}: wants seconds, at most {MAX_BACKOFF:g} (one day)")
        if self.timeout is not None and check_number(self.timeout, "timeout") <= 0:
            raise ValueError(f"timeout {self.timeout!r}: wants seconds, more than 0; None is no limit")
        if self.name is not None:
            check_name(self.name, "name")
        if self.log is not None and not isinstance(self.log, bool):
            raise ValueError(f"log {self.log!r}: wants True or False")
        if self.transport is not None and self.transport not in TRANSPORTS:
            raise ValueError(f"transport {self.transport!r}: wants one of {', '.join(TRANSPORTS)}")
        limit = self.capture_limit
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(f"capture_limit {limit!r}: wants a number of bytes, 1 or more")

    def over(self, base: Options) -> Options:
        """Return these options, with what they leave open taken from `base`."""
        own = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(base, **own) if own else base

    def cfg(self) -> dict[str, Any]:
        """Return the envelope's `cfg`."""
        if self is NO_OPTIONS:
            return {}
        given = (("retries", self.retries), ("backoff", self.backoff), ("timeout", self.timeout))
        named = (("name", self.name), ("log", self.log))
        return {key: value for key, value in (*given, *named) if value is not None}


NO_OPTIONS = Options()


class _Shape(NamedTuple):
    """A signature, and how many arguments by position and nothing else make a call that fits."""

    signature: inspect.Signature
    fewest: int
    most: float


_shapes: WeakKeyDictionary[Any, _Shape | None] = WeakKeyDictionary()


def _shape(fn: Callable[..., Any]) -> _Shape | None:
    try:
        return _shapes[fn]
    except (KeyError, TypeError):  # not seen yet, or neither hashable nor weakly referable
        pass
    try:
        shape = _shape_of(inspect.signature(fn))
    except (ValueError, TypeError):  # a builtin that does not say
        shape = None
    with contextlib.suppress(TypeError):
        _shapes[fn] = shape
    return shape


def _shape_of(signature: inspect.Signature) -> _Shape:
    fewest, most = 0, 0.0
    for parameter in signature.parameters.values():
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            fewest, most = fewest + required, most + 1
        elif parameter.kind is parameter.VAR_POSITIONAL:
            most = math.inf
        elif parameter.kind is parameter.KEYWORD_ONLY and required:
            return _Shape(signature, 1, 0.0)  # never by position alone
    return _Shape(signature, fewest, most)


def check_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Hold a call's arguments against the function's signature.

    Raises
    ------
    TypeError
        When they do not fit; names the function and the argument.
    """
    shape = _shape(fn)
    if shape is None or (not kwargs and shape.fewest <= len(args) <= shape.most):
        return
    signature = shape.signature
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = [name for name in kwargs if name not in signature.parameters]
        near = difflib.get_close_matches(unknown[0], signature.parameters, 1) if unknown else []
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{label_of(fn)}(): {error}. It takes {signature}.{hint}") from None


_NO_ARGS, _NO_KWARGS = pack([]), pack({})

Shared: TypeAlias = dict[tuple[int, str | None, int | None], tuple[Callable[..., Any], list[dict[str, Any]]]]
"""The functions of a batch, by identity and options, and what is known of each; held, so that an id stays
its own."""


class Thunk:
    """A call that has not been made: what `q.submit(thunk(f, 3))` takes.

    The function and its captures are taken as they are when it is submitted, once for each submit.
    """

    __slots__ = ("_shared", "args", "fn", "kwargs", "options")

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Options = NO_OPTIONS,
    ) -> None:
        if not callable(fn):
            raise TypeError(
                f"thunk: {fn!r} is not callable. Give the function, then its arguments: thunk(f, 3)"
            )
        self.fn, self.args, self.kwargs, self.options = fn, args, dict(kwargs or {}), options
        self._shared: list[dict[str, Any]] | None = None
        check_call(fn, args, self.kwargs)

    def __repr__(self) -> str:
        return f"<Thunk {label_of(self.fn)}, {len(self.args)} args, {len(self.kwargs)} kwargs>"

    def with_options(
        self,
        *,
        retries: int | None = None,
        backoff: float | None = None,
        timeout: float | None = None,
        name: str | None = None,
        log: bool | None = None,
        transport: str | None = None,
        capture_limit: int | None = None,
    ) -> Thunk:
        """Return the same call with other options; see `Options`. None leaves one as it is.

        Raises
        ------
        ValueError
            When an option has a value that it cannot have.
        """
        own = Options(retries, backoff, timeout, name, log, transport, capture_limit)
        return Thunk(self.fn, self.args, self.kwargs, own.over(self.options))

    def sharing(self, shared: list[dict[str, Any]]) -> Thunk:
        """Return this call, to describe its function once for all calls that share the list."""
        self._shared = shared
        return self

    def __envelope__(
        self,
        *,
        id: str,
        plane: Plane | None = None,
        key: str | None = None,
        parent: str | None = None,
        shared: Shared | None = None,
    ) -> Envelope:
        """Return the envelope to submit; called by a queue.

        Parameters
        ----------
        shared : dict, optional
            One for a batch: calls of the same function in it describe the function once.

        Raises
        ------
        PackError
            When an argument has no exact form on the wire and the function goes by reference, or
            is too large.
        CaptureError, TransportError
            When the function cannot be shipped.
        """
        refused: PackError | None = None
        try:
            args = pack(list(self.args), at="args")
            kwargs = pack(self.kwargs, at="kwargs") if self.kwargs else _NO_KWARGS
        except PackError as error:
            refused = error
        if refused is None:
            described, code = self._described(
                self._shared if shared is None else self._cell_of(shared), plane
            )
        else:  # away from the handler: what is raised there shows the first refusal as its context
            described, args, kwargs = self._with_arguments(refused), _NO_ARGS, _NO_KWARGS
            code = None
        prefix, running = ambient()
        return Envelope(
            id=id,
            fn=described,
            args=args,
            kwargs=kwargs,
            prefix=prefix,
            key=key,
            cfg=self.options.cfg() if code is None else {**self.options.cfg(), "code": code},
            parent=running if parent is None else parent,
        )

    def _cell_of(self, shared: Shared) -> list[dict[str, Any]]:
        what = (id(self.fn), self.options.transport, self.options.capture_limit)
        return shared.setdefault(what, (self.fn, []))[1]

    def _described(
        self, shared: list[dict[str, Any]] | None, plane: Plane | None
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the envelope's `fn`, and the stamp of the code that it is in, where that travels along."""
        if shared:
            return shared[0], (shared[1] if len(shared) > 1 else None)
        # cloudpickle is loaded at the first submit, not with the decorator
        from lakeshore.functions.transport import describe

        options = self.options
        transport = options.transport or "auto"
        pushed = None
        if transport != "pickle" and hasattr(plane, "push_tree"):
            from lakeshore.functions.mounted import with_code

            pushed = with_code(self.fn, plane, force=transport == "ref")
        if pushed is not None:
            described, code = pushed
        else:
            described = describe(self.fn, transport=transport, capture_limit=options.capture_limit)
            code = None
        if shared is not None:
            shared.extend([described] if code is None else [described, code])
        return described, code

    def _with_arguments(self, error: PackError) -> dict[str, Any]:
        from lakeshore.functions.transport import by_value

        transport = self.options.transport or "auto"
        if transport != "pickle" and by_reference(self.fn, force=transport == "ref") is not None:
            raise PackError(
                f"{error}. {label_of(self.fn)}() goes by reference, so its arguments must have a form on the "
                "wire; with transport='pickle' they travel inside the pickle."
            ) from None
        if transport == "ref":
            raise TransportError(
                f"cannot ship {label_of(self.fn)}() by reference: {reference_of(self.fn)} is not importable"
            ) from error
        return by_value(self.fn, capture_limit=self.options.capture_limit, args=self.args, kwargs=self.kwargs)


def thunk(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Thunk:
    """Return the call ``fn(*args, **kwargs)`` to be submitted, not made.

    Raises
    ------
    TypeError
        When `fn` is not callable, or the arguments do not fit its signature.

    Examples
    --------
    >>> inv = q.submit(thunk(train, 0.1, epochs=3))
    """
    options = getattr(type(fn), "thunk_options", None)
    return Thunk(fn, args, kwargs, options(fn) if options is not None else NO_OPTIONS)
