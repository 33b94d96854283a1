"""The decorator `@udf`: one function to call here, or on a queue's workers, by the same name."""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from lakeshore.context import current
from lakeshore.functions.body import BodyWrapper, Kind, kind_of
from lakeshore.functions.local import call_local
from lakeshore.functions.mapping import Results
from lakeshore.functions.reference import is_installed, reference_of
from lakeshore.functions.source import label_of
from lakeshore.functions.thunk import Options, Thunk

if TYPE_CHECKING:
    from lakeshore.planes.contract import Plane
    from lakeshore.queues.sync import SyncQueue

P = ParamSpec("P")
R = TypeVar("R")

_SUBMIT_OPTIONS = (
    "_queue",
    "_key",
    "_priority",
    "_delay",
    "_parent",
    "_dispatch",
    "_retries",
    "_backoff",
    "_timeout",
    "_name",
)


class UDF(BodyWrapper, Generic[P, R]):
    """A function that runs here when called, and elsewhere when submitted; made by `@udf`.

    Called plainly it runs here, unless it was given a queue: then the call submits and waits. In a
    job it always runs there, inside that job: a job that calls a UDF never waits for another worker.
    `.local`, `.remote` and `.submit` say which, whatever the decoration.

    Options of a submit start with an underscore, since every other keyword is the body's:
    ``_queue _key _priority _delay _parent _dispatch _retries _backoff _timeout _name``.

    Attributes
    ----------
    fn : callable
        The undecorated function.
    queue : str, SyncQueue or None
        Where calls go.
    options : Options
        Transport, retries, backoff, timeout, name.
    kind : {"sync", "async", "generator", "asyncgen"}
        The body's kind, found once.
    """

    def __init__(
        self, fn: Callable[P, R], queue: str | SyncQueue | None = None, options: Options | None = None
    ) -> None:
        if not callable(fn):
            raise TypeError(f"udf: {fn!r} is not callable")
        if isinstance(fn, (staticmethod, classmethod)):
            raise TypeError(f"udf: put @{type(fn).__name__} above @udf, not below it")
        functools.update_wrapper(self, fn)
        self.fn: Callable[P, R] = fn.fn if isinstance(fn, UDF) else fn
        self.queue = queue
        self.options = options or Options()
        self.kind: Kind = kind_of(fn)

    def __repr__(self) -> str:
        queue = "" if self.queue is None else f" on {getattr(self.queue, 'name', self.queue)!r}"
        return f"<udf {label_of(self.fn)}{queue}>"

    def __get__(self, instance: object, owner: type | None = None) -> UDF[..., R]:
        if instance is None:
            return self
        return UDF(MethodType(self.fn, instance), self.queue, self.options)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = reference_of(self)
        module = sys.modules.get(getattr(self, "__module__", None) or "")
        if name is not None and module is not None and is_installed(module):
            return name[1]
        if getattr(module, getattr(self, "__qualname__", ""), None) is not self:
            return self.by_parts()
        # A script's own function: a child process of the script finds it by name, any other by value.
        from lakeshore.functions.pickler import dumps

        return _find_or_load, (self.__module__, self.__qualname__, dumps(self.by_parts()))

    def by_parts(self) -> tuple[Any, ...]:
        """Return how to make this UDF anew from its function; what a by-value pickle holds."""
        # a queue holds a plane, which stays here; its name says where to go
        return UDF, (self.fn, getattr(self.queue, "name", self.queue), self.options)

    def thunk_options(self) -> Options:
        """Return the options that a thunk of this function starts with."""
        return self.options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run here; with a queue and outside a job, submit and wait.

        Raises
        ------
        InvocationFailed, InvocationCancelled
            As the job ended.
        KeyContractError
            When the body runs here and a written key is not returned.
        """
        if self.queue is None or current().invocation_id is not None:
            return cast(R, call_local(self.fn, args, kwargs))
        return cast(R, self.remote(*args, **kwargs))

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the body here, in a fresh child of the scope in force; gives what the body gives."""
        return cast(R, call_local(self.fn, args, kwargs))

    def submit(self, *args: Any, **kwargs: Any) -> str:
        """Submit the call and return its id at once.

        Parameters
        ----------
        *args, **kwargs
            The body's arguments, and options that start with an underscore: ``_queue`` (name or
            queue), ``_key``, ``_priority``, ``_delay`` (seconds), ``_parent`` (id), ``_dispatch``
            (plane), ``_retries``, ``_backoff``, ``_timeout`` (seconds), ``_name``.

        Raises
        ------
        TypeError
            When the arguments do not fit the body, before anything is stored.
        ValueError
            When no queue was given, or an option has a value that it cannot have.
        CaptureError, PackError
            When function or arguments cannot travel.
        """
        options, kwargs = self._split(kwargs)
        return self._queue(options).submit(self._thunk(options, args, kwargs), **_placing(options))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Submit the call and wait for it; takes what `submit` takes.

        Returns
        -------
        Any
            The result; for an async body an awaitable of it; for a generator an iterator over what
            it yields, as it comes; for an async generator an async iterator.

        Raises
        ------
        InvocationFailed, InvocationCancelled
            As the job ended.
        """
        options, kwargs = self._split(kwargs)
        thunk, place = self._thunk(options, args, kwargs), _placing(options)
        q = self._queue(options)
        if self.kind == "async":
            return _awaited_result(q, thunk, place)
        if self.kind == "asyncgen":
            return _async_values(q, thunk, place)
        inv = q.submit(thunk, **place)
        return q.stream(inv, timeout=None) if self.kind == "generator" else q.result(inv, timeout=None)

    def map(
        self,
        iterable: Iterable[Any],
        *,
        _max_in_flight: int | None = None,
        _ordered: bool = True,
        _return_exceptions: bool = False,
        **options: Any,
    ) -> Results:
        """Submit one call for each item, in one transaction, and return an iterator over the results.

        All is submitted before this returns (with `_max_in_flight`: that many, then one for each
        result taken). An item that failed raises in its turn; the others run on, and the next
        ``next`` gives them. The iterator's `ids` are the jobs', in the items' order.

        Parameters
        ----------
        iterable : iterable
            Each item is the body's one argument.
        _max_in_flight : int, optional
            The most calls that are submitted and not taken yet. Default: all.
        _ordered : bool
            Results in the items' order (the default), or as they finish.
        _return_exceptions : bool
            Give the error of an item that failed in its place instead of raising it. Default False.
        **options
            As for `submit`, but for ``_key``.

        Raises
        ------
        InvocationFailed, InvocationCancelled
            From the iterator, as a job ended.
        """
        if _max_in_flight is not None and (not isinstance(_max_in_flight, int) or _max_in_flight < 1):
            raise ValueError(
                f"_max_in_flight {_max_in_flight!r}: wants an int of at least 1; None is no limit"
            )
        chosen, extra = self._split(options)
        if extra:
            raise TypeError(
                f"{label_of(self.fn)}.map() got {next(iter(extra))!r}: it takes items and _options only"
            )
        if chosen.pop("_key", None) is not None:
            raise TypeError(
                "map(): one _key cannot name many calls. Submit each with its own: f.submit(x, _key=...)"
            )
        q, shared = self._queue(chosen), cast("list[dict[str, Any]]", [])
        thunks = (self._thunk(chosen, (item,), {}).sharing(shared) for item in iterable)
        place = _placing(chosen)

        def submit(n: int | None) -> list[str]:
            return q.submit_many(list(itertools.islice(thunks, n)), **place)

        return Results(
            q, submit, in_flight=_max_in_flight, ordered=_ordered, return_exceptions=_return_exceptions
        )

    def _split(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        options = {name: given[name] for name in _SUBMIT_OPTIONS if name in given}
        kwargs = {name: value for name, value in given.items() if name not in options}
        for name in kwargs:
            near = difflib.get_close_matches(name, _SUBMIT_OPTIONS, 1, 0.8) if name.startswith("_") else []
            if near and name not in inspect.signature(self.fn).parameters:
                label = label_of(self.fn)
                raise TypeError(f"{label}.submit() has no option {name!r}. Did you mean {near[0]!r}?")
        return options, kwargs

    def _thunk(self, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Thunk:
        names = ("retries", "backoff", "timeout", "name")
        own = {name: options[f"_{name}"] for name in names if options.get(f"_{name}") is not None}
        chosen = Options(**own).over(self.options) if own else self.options
        return Thunk(self, args, kwargs, chosen)

    def _queue(self, options: dict[str, Any]) -> SyncQueue:
        # the queue's floor lies below this one, but its planes need not be loaded to decorate
        from lakeshore.queues.sync import SyncQueue

        queue, plane = options.get("_queue", self.queue), cast("Plane | None", options.get("_dispatch"))
        if queue is None:
            raise ValueError(
                f"{label_of(self.fn)}() has no queue to go to. Decorate it with @udf(queue='name'), "
                "or give one: .submit(..., _queue='name')"
            )
        if isinstance(queue, str):
            return SyncQueue(queue, dispatch=plane)
        return queue if plane is None else SyncQueue(queue.name, dispatch=plane)


def _find_or_load(module: str, qualname: str, parts: bytes) -> UDF[..., Any]:
    found = getattr(sys.modules.get(module), qualname, None)
    if isinstance(found, UDF):
        return found
    from lakeshore.functions.unpickler import loads

    make, arguments = loads(parts)
    return cast("UDF[..., Any]", make(*arguments))


def _placing(options: dict[str, Any]) -> dict[str, Any]:
    names = ("key", "priority", "delay", "parent")
    return {name: options[f"_{name}"] for name in names if options.get(f"_{name}") is not None}


async def _awaited_result(q: SyncQueue, thunk: Thunk, place: dict[str, Any]) -> Any:
    from lakeshore.queues.aio import Queue

    aq = Queue(q.name, dispatch=q.plane)
    inv = await aq.submit(thunk, **place)
    return await aq.result(inv, timeout=None)


async def _async_values(q: SyncQueue, thunk: Thunk, place: dict[str, Any]) -> AsyncIterator[Any]:
    from lakeshore.queues.aio import Queue

    aq = Queue(q.name, dispatch=q.plane)
    inv = await aq.submit(thunk, **place)
    async for value in aq.stream(inv, timeout=None):
        yield value


@overload
def udf(fn: Callable[P, R], /) -> UDF[P, R]: ...
@overload
def udf(
    fn: None = None,
    /,
    *,
    queue: str | SyncQueue | None = None,
    transport: str = "auto",
    retries: int | None = None,
    backoff: float | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Callable[[Callable[P, R]], UDF[P, R]]: ...
def udf(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    queue: str | SyncQueue | None = None,
    transport: str = "auto",
    retries: int | None = None,
    backoff: float | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Any:
    """Decorate a function to run here or on a queue's workers: ``@udf`` or ``@udf(queue="gpu")``.

    Parameters
    ----------
    queue : str or SyncQueue, optional
        Where calls go. Default None: a plain call runs here.
    transport : {"auto", "ref", "pickle"}
        By reference where another process can import it, else by value (the default); or one of both.
    retries : int, optional
        Attempts after the first, 0 to 100. Default: the worker's.
    backoff : float, optional
        Base of the delay between attempts, seconds. Default: the worker's.
    timeout : float, optional
        Seconds that one attempt may run. Default: no limit.
    name : str, optional
        What people are shown. Default: the function's name.

    Returns
    -------
    UDF
        Callable as the function is, with ``.local .remote .submit .map``.

    Raises
    ------
    ValueError
        When an option has a value that it cannot have.
    TypeError
        When what is decorated is not callable.
    """
    options = Options(retries=retries, backoff=backoff, timeout=timeout, name=name, transport=transport)
    if isinstance(queue, str):
        from lakeshore.planes.contract import check_name

        check_name(queue, "queue")

    def decorate(fn: Callable[..., Any]) -> UDF[..., Any]:
        return UDF(fn, queue, options)

    if isinstance(fn, str):
        raise TypeError(f"udf({fn!r}): name the queue by keyword: @udf(queue={fn!r})")
    return decorate if fn is None else decorate(fn)
