"""Carries a cell's plan out: runs what runs here, stores the calls in one transaction, shows them."""

from __future__ import annotations
import __future__

import argparse
import ast
import inspect
import linecache
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from lakeshore import wire
from lakeshore.errors import CaptureError
from lakeshore.functions import transport
from lakeshore.functions.capture import shown_size
from lakeshore.functions.thunk import Thunk, thunk
from lakeshore.notebook import cell, jobs, source, whole
from lakeshore.notebook.callees import is_function
from lakeshore.notebook.here import run_here
from lakeshore.notebook.one_line import one_line, warnings_as_lines
from lakeshore.notebook.tables import Table, plain
from lakeshore.planes.contract import Plane, Submission
from lakeshore.planes.names import name_of
from lakeshore.queues.encoding import submission

_OVER = "over the limit of"
"""Stands in a `CaptureError` about size alone."""
_FUTURES = 0
for _feature in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _feature).compiler_flag


@dataclass(slots=True)
class Call:
    """One job to be: what is called with what."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    id: str = ""

    @property
    def name(self) -> str:
        """The function's own name."""
        inner = getattr(self.fn, "func", self.fn)
        return str(getattr(inner, "__name__", type(inner).__name__))


def submit(
    shell: Any, options: argparse.Namespace, header: str, body: str, *, plane: Plane, number: str
) -> None:
    """Do what `%%lakeshore submit` says.

    Parameters
    ----------
    shell : InteractiveShell
        Whose names the cell reads and sets.
    options : Namespace
        From `arguments.parse`.
    header, body : str
        The magic's line and what is below it.
    plane : Plane
        Where the jobs go.
    number : str
        Which cell this is, for the names of its code.

    Raises
    ------
    UsageError, SyntaxError, LakeshoreError
        When the cell cannot be shipped; nothing is stored then.
    """
    __tracebackhide__ = True
    if options.result and options.wait is None:
        raise UsageError("-r/--result wants -w/--wait; without it use: %lakeshore result REF")
    if options.fn and options.cell:
        raise UsageError("--fn ships one function, --cell the whole cell: give one of them")
    flags = shell.compile.flags & _FUTURES
    text = source.read(
        body,
        header=header,
        filename=cell.code_name("cell", number),
        transformer=shell.input_transformer_manager,
        flags=flags,
    )
    plan = cell.plan(
        text, shell.user_ns, number=number, name=options.name, fn=options.fn, whole=options.cell, flags=flags
    )
    if options.arg and plan.shape != "def":
        raise UsageError(f"-a/--arg is for a cell that ends in a def; this one ships {plan.label}")
    lines = text.lines if plan.code is None else text.as_function(plan.name)
    linecache.cache[plan.filename] = (sum(map(len, lines)), None, list(lines), plan.filename)
    shape, calls = _calls(shell, plan, options, text, flags)
    with one_line(), warnings_as_lines():
        thunks = _thunks(plan, calls, options)
        if options.dry_run:
            _show_dry_run(plan, calls, thunks, plane)
            return
        try:
            items = _items(calls, thunks, options, plane)
        except CaptureError as error:
            if _OVER not in str(error):
                raise
            raise CaptureError(f"{error} Or allow more: --max-size SIZE, such as 50M.") from None
        ids = plane.submit_many(options.queue, items)
    for call, id in zip(calls, ids, strict=True):
        call.id = id
    answer = _ids(shape)
    shell.user_ns.update({name: answer for name in (*plan.targets, options.out, "_lakeshore") if name})
    with one_line(), jobs.interruptible(plane, ids, options.on_interrupt):
        _say(plan, items, ids, options, plane)
        panel = _show(plan, items, ids, options, plane)
        results = None if options.wait is None else _wait(panel, plane, ids, options)
    if options.result:
        shell.user_ns[options.result] = jobs.shaped(answer, iter(results or ()))


def _calls(
    shell: Any, plan: cell.Plan, options: argparse.Namespace, text: source.Source, flags: int
) -> tuple[Any, list[Call]]:
    """Run what runs here; return the calls, as the shape they were written in and as a list."""
    __tracebackhide__ = True
    namespace = shell.user_ns
    if plan.code is not None:
        function = whole.make_function(
            plan.code, plan.reads, namespace, name=plan.name, source=text.text, filename=plan.filename
        )
        call = Call(function, (), {})
        return call, [call]
    allowed = flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    here = compile(shell.transform_ast(plan.here), plan.filename, "exec", allowed, dont_inherit=True)
    evaluate = None
    if plan.calls is not None:
        evaluate = compile(plan.calls, plan.filename, "eval", flags, dont_inherit=True)
    run_here(here, namespace)
    if evaluate is None:
        call = _named_call(plan.fn or "", namespace, options)
        return call, [call]
    made: list[Call] = []

    def collect(fn: Any, /, *args: Any, **kwargs: Any) -> Call:
        if not is_function(fn):
            raise UsageError(
                f"{getattr(fn, '__name__', type(fn).__name__)} became a {type(fn).__name__}, no function"
            )
        made.append(Call(fn, args, kwargs))
        return made[-1]

    expression = eval(evaluate, namespace)  # noqa: S307 - the user's own cell
    expression.__code__ = expression.__code__.replace(co_name="<module>", co_qualname="<module>")
    shape = expression(collect)
    if not made:
        raise UsageError(f"{plan.label} makes no call: nothing to submit")
    return shape, made


def _named_call(name: str, namespace: dict[str, Any], options: argparse.Namespace) -> Call:
    """The call of a def: its arguments are evaluated among the notebook's names."""
    __tracebackhide__ = True
    fn = namespace.get(name)
    if not callable(fn):
        raise UsageError(f"{name} is a {type(fn).__name__} and cannot be called: no job")
    kwargs: dict[str, Any] = {}
    for key, text in options.arg:
        if key in kwargs:
            raise UsageError(f"-a {key} is given twice")
        _check_parameter(name, fn, key)
        try:
            kwargs[key] = eval(text, namespace)  # noqa: S307 - the user's own expression
        except Exception as error:
            raise UsageError(f"-a {key}={text}: {type(error).__name__}: {error}") from error
    return Call(fn, (), kwargs)


def _check_parameter(name: str, fn: Callable[..., Any], key: str) -> None:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a callable that does not tell
        return
    kinds = {parameter.kind for parameter in parameters.values()}
    if key not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        has = f"it has {', '.join(map(repr, parameters))}" if parameters else "it takes none"
        raise UsageError(
            f"{name}() has no parameter {key!r}; {has}.{cell.nearest(key, parameters)}".rstrip(".")
        )


def _thunks(plan: cell.Plan, calls: list[Call], options: argparse.Namespace) -> list[Thunk]:
    """Make each call ready to be submitted; a function that several calls share is described once."""
    shared: dict[int, list[dict[str, Any]]] = {}
    thunks: list[Thunk] = []
    for call in calls:
        try:
            each = thunk(call.fn, *call.args, **call.kwargs)
        except TypeError as error:  # the arguments do not fit
            fix = " Give arguments with -a NAME=EXPR" if plan.shape == "def" else ""
            raise UsageError(f"{error}{fix}") from error
        each = each.with_options(
            retries=options.retries,
            timeout=options.timeout,
            name=options.name or call.name,
            log=True,
            capture_limit=options.max_size,
        )
        thunks.append(each.sharing(shared.setdefault(id(call.fn), [])))
    return thunks


def _items(
    calls: list[Call], thunks: list[Thunk], options: argparse.Namespace, plane: Plane
) -> list[Submission]:
    """Build every envelope before any is stored; a fan-out's keys are the key and the call's number."""
    keys = (
        [options.key]
        if len(calls) == 1
        else [options.key and f"{options.key}:{n}" for n in range(len(calls))]
    )
    return [
        submission(each, plane=plane, key=key, priority=options.priority, delay=options.delay)
        for each, key in zip(thunks, keys, strict=True)
    ]


def _ids(shape: Any) -> Any:
    return _mapped(shape, lambda call: call.id)


def _mapped(shape: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(shape, (list, tuple)):
        return type(shape)(_mapped(item, leaf) for item in shape)
    if isinstance(shape, dict):
        return {key: _mapped(item, leaf) for key, item in shape.items()}
    return leaf(shape)


def _wait(panel: Any, plane: Plane, ids: list[str], options: argparse.Namespace) -> list[Any]:
    """Wait as the panel does, which also draws where nothing else can; then take the results."""
    started = time.monotonic()
    if panel is not None:
        panel.wait(None if options.wait == math.inf else options.wait)
    left = max(0.0, options.wait - (time.monotonic() - started))
    return jobs.wait(plane, ids, timeout=left)


# -- what the user sees


def _say(
    plan: cell.Plan, items: list[Submission], ids: list[str], options: argparse.Namespace, plane: Plane
) -> None:
    if options.quiet:
        return
    from lakeshore.notebook import pumped

    lines = list(plan.hints)
    if pumped.needed() and options.wait is None:
        lines.append(pumped.hint(ids[0]))
    for item, id in zip(items, ids, strict=True):
        row = plane.get(id) if id != item.id else None
        if row is not None:
            lines.append(
                f"key {item.key!r} exists: {id} ({jobs.describe(row)}); nothing new was stored"
                + (
                    ". The cell has changed since: " + _shown_instead(plane, id)
                    if _changed(plan, plane, item, id)
                    else ""
                )
                + (
                    f". %lakeshore requeue {id} runs it again"
                    if row["state"] in ("failed", "cancelled")
                    else ""
                )
            )
    if lines:
        sys.stdout.write("".join(f"lakeshore: {line}\n" for line in lines))


def _shown_instead(plane: Plane, id: str) -> str:
    return f"the stored job, {name_of(plane, id) or id}, is shown; another --key submits this one"


def _changed(plan: cell.Plan, plane: Plane, item: Submission, id: str) -> bool:
    """Whether the job stored under a key is another than this cell would have stored."""
    stored, mine = jobs.envelope_of(plane, id), wire.Envelope.from_bytes(item.envelope)
    if stored is None:
        return True

    def what(envelope: wire.Envelope) -> tuple[Any, ...]:
        fn = envelope.fn
        source = str(fn.get("source") or "")
        if plan.shape == "cell":  # its first line is the magic's, and has the cell's number
            source = source.partition("\n")[2]
        return fn.get("kind"), fn.get("module"), source, envelope.args, envelope.kwargs

    return what(stored) != what(mine)


def _show(
    plan: cell.Plan, items: list[Submission], ids: list[str], options: argparse.Namespace, plane: Plane
) -> Any:
    if options.quiet:
        return None
    from lakeshore.notebook import pumped, stream

    says_it = plan.label.startswith(f"{plan.name}(")
    name = plan.label if says_it else f"{plan.name} ({plan.label})"
    if len(ids) == 1 and ids[0] != items[0].id:
        stored = name_of(plane, ids[0])
        name = name if stored in (None, plan.name) else str(stored)
    if pumped.needed() and options.wait is not None:
        return pumped.show(plane, ids, name=name)
    if len(ids) == 1:
        return stream.show_job(plane, ids[0], name=name, text=options.text)
    return stream.show_group(plane, ids, name=name, text=options.text)


def _show_dry_run(plan: cell.Plan, calls: list[Call], thunks: list[Thunk], plane: Plane) -> None:
    from IPython.display import display

    rows: list[dict[str, Any]] = []
    for call, each in zip(calls, thunks, strict=True):
        envelope = each.__envelope__(id="dry-run", plane=plane, key=None, parent=None)
        by_value = envelope.fn["kind"] == "pickle"
        python = envelope.fn["runtime"]["python"] if by_value else ""
        rows.append(
            {
                "name": call.name,
                "what": plan.label,
                "type": "by value"
                if by_value
                else f"reference {envelope.fn['module']}:{envelope.fn['qualname']}",
                "size": len(envelope.fn["blob"]) if by_value else 0,
                "python": python,
            }
        )
        rows += [
            {"name": name, "what": "captured", "type": kind, "size": n_bytes}
            for name, kind, n_bytes in (transport.capture_report(call.fn) if by_value else ())
        ]
        rows.append(
            {
                "name": "arguments",
                "what": f"{len(call.args) + len(call.kwargs)}",
                "type": "packed",
                "size": len(envelope.args) + len(envelope.kwargs),
            }
        )
    display(Table(rows, {"name": plain, "what": plain, "type": plain, "size": shown_size, "python": plain}))
