"""`%%lakeshore` and `%lakeshore`: parse a line, call what does the work, return its object.

Heavy imports wait for the sub-command that needs them. Every refusal raises, as one line.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope, no_var_expand

from lakeshore import settings
from lakeshore.errors import Detached, DispatchError, UnknownInvocation
from lakeshore.notebook import arguments, completion, elsewhere, jobs, words
from lakeshore.notebook.cell import nearest
from lakeshore.notebook.looks import TAB_SECONDS, answers, impatient
from lakeshore.notebook.one_line import one_line
from lakeshore.notebook.tables import Count, Record, Table, Text, age, ago, first_line, plain, span, when
from lakeshore.planes.contract import Plane
from lakeshore.planes.default import default_plane, open_plane, set_default_plane
from lakeshore.planes.names import name_of
from lakeshore.states import TERMINAL, State

_STATES = tuple(str(state) for state in State)
_ROW_COLUMNS = {
    "id": plain,
    "name": first_line,
    "queue": plain,
    "state": plain,
    "attempt": plain,
    "submitted": plain,
    "took": plain,
    "key": plain,
    "error": first_line,
}


@magics_class
class LakeshoreMagics(Magics):  # type: ignore[misc]
    """The magics of one shell.

    Attributes
    ----------
    matcher : callable
        Its completer, as `ip.Completer.custom_matchers` holds it.
    """

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.matcher = completion.matcher(lambda: impatient(default_plane(), TAB_SECONDS))
        self._bodies: dict[int, list[int]] = {}

    @no_var_expand  # type: ignore[untyped-decorator]
    @needs_local_scope  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    def lakeshore(  # noqa: D102 - its docstring is the help, made below
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> Any:
        __tracebackhide__ = True
        asked = line.rstrip().removesuffix(";")  # which only keeps a cell's value from being shown
        parts = words.expand_all(words.split(asked), self._evaluator(local_ns or {}))
        command, rest = (parts[0], parts[1:]) if parts else ("status" if cell is None else "", [])
        if command in ("-h", "--help"):
            command = "help"
        if command == "submit" and cell is None and ("-h" in rest or "--help" in rest):
            command, rest = "help", ["submit"]
        self._check_command(command, cell)
        try:
            options = arguments.parse(command, rest)
        except arguments.HelpWanted as text:
            sys.stdout.write(str(text))
            return None
        if command == "submit":
            try:
                return self._submit(options, f"%%lakeshore {line}", cell)
            except SyntaxError as error:
                if str(error.filename).startswith(("<lakeshore ", "<tokenize>")):
                    from lakeshore.notebook import syntax

                    count = self._number(cell or "")
                    syntax.show_alone(
                        self.shell, error, header=f"%%lakeshore {line}", body=cell or "", number=count
                    )
                raise error.with_traceback(None) from None
        names = {**self.shell.user_ns, **(local_ns or {})}
        with one_line():
            run: Callable[[argparse.Namespace, dict[str, Any]], Any] = getattr(self, f"_{command}")
            return run(options, names)

    def _evaluator(self, local_ns: dict[str, Any]) -> Callable[[str], Any]:
        def evaluate(text: str) -> Any:
            return eval(text, self.shell.user_global_ns, local_ns or self.shell.user_ns)  # noqa: S307 - the user's own

        return evaluate

    @staticmethod
    def _check_command(command: str, cell: str | None) -> None:
        if command not in arguments.COMMANDS:
            said = f"{command!r} is no command." if command else "which command?"
            hint = nearest(command, arguments.COMMANDS)
            if cell is not None and not hint:
                hint = f" Did you mean %%lakeshore submit {command or 'QUEUE'}?"
            raise UsageError(f"%lakeshore: {said}{hint} There are: {', '.join(arguments.COMMANDS)}")
        if command == "submit" and cell is None:
            raise UsageError("submit ships a cell: use %%lakeshore submit QUEUE as the first line of one")
        if command not in ("submit", "help") and cell is not None and cell.strip():
            raise UsageError(f"{command} takes no cell: use %lakeshore {command} on a line of its own")

    # -- submit

    def _submit(self, options: argparse.Namespace, header: str, body: str | None) -> None:
        __tracebackhide__ = True
        from lakeshore.notebook.submit import submit

        with one_line():
            plane = _plane_at(options.plane)
        submit(self.shell, options, header, body or "", plane=plane, number=self._number(body or ""))

    def _number(self, body: str) -> str:
        """Name this cell: its count, and which text under it where a count is used for several."""
        running = getattr(self.shell.displayhook, "exec_result", None)
        # IPython counts on before the cell runs; what it runs knows its own number.
        count = getattr(running, "execution_count", None) or self.shell.execution_count
        bodies = self._bodies.setdefault(count, [])
        if hash(body) not in bodies:
            bodies.append(hash(body))
        which = bodies.index(hash(body))
        return f"{count}.{which + 1}" if which else str(count)

    # -- looking

    def _status(self, options: argparse.Namespace, names: dict[str, Any]) -> Record:
        from lakeshore.notebook import worker

        plane = impatient(default_plane())
        return Record(
            **_where(plane),
            queues=_queues(plane),
            workers_here=worker.status(),
            last=self.shell.user_ns.get("_lakeshore"),
        )

    def _ls(self, options: argparse.Namespace, names: dict[str, Any]) -> Table:
        plane = impatient(default_plane())
        rows = [
            {
                **row,
                "name": name_of(plane, row["id"]),
                "submitted": ago(row["submitted_at"]),
                "took": _took(row),
            }
            for row in jobs.scan(plane, options.queue, state=options.state, limit=options.n)
        ]
        return Table(rows, _ROW_COLUMNS, empty="no jobs" + (f" in {options.queue}" if options.queue else ""))

    def _queues(self, options: argparse.Namespace, names: dict[str, Any]) -> Table:
        return _queues(impatient(default_plane()))

    def _show(self, options: argparse.Namespace, names: dict[str, Any]) -> Record:
        plane, id = _found_one(options.ref, names)
        row = plane.get(id) or {}
        result = row.pop("result", None)
        record = Record(row)
        for name in [n for n in record if n.endswith("_at") or n == "not_before"]:
            record[name] = when(record[name])
        envelope = jobs.envelope_of(plane, id)
        if envelope is None:
            record["transport"] = "a plain payload, for a program that claims by hand"
        else:
            function = envelope.fn
            record["function"] = (
                function.get("where") or f"{function.get('module')}:{function.get('qualname')}"
            )
            record["transport"] = function.get("kind")
            record["options"] = envelope.cfg or None
            record["source"] = function.get("source")
        record["result_bytes"] = None if result is None else len(result)
        return Record({name: value for name, value in record.items() if value is not None})

    def _logs(self, options: argparse.Namespace, names: dict[str, Any]) -> Text:
        plane, id = _found_one(options.ref, names)
        return Text("".join(jobs.log_lines(plane, id)))

    def _stream(self, options: argparse.Namespace, names: dict[str, Any]) -> Any:
        from lakeshore.notebook import pumped, stream

        plane, ids = _found(options.ref, names)
        if options.wait and pumped.needed():
            panel = pumped.show(plane, ids, since=options.since)
        elif len(ids) == 1:
            panel = stream.show_job(plane, ids[0], since=options.since, text=options.text)
        else:
            panel = stream.show_group(plane, ids, name=options.ref, text=options.text)
        if options.wait:
            with jobs.interruptible(plane, ids):
                panel.wait()
        return Shown(panel)

    def _wait(self, options: argparse.Namespace, names: dict[str, Any]) -> Any:
        found = [_found(ref, names) for ref in options.refs]
        plane, ids = found[0][0], [id for _, each in found for id in each]
        if any(other is not plane for other, _ in found):
            raise UsageError("%lakeshore wait: these jobs are on several planes; wait for those of each")
        timeout = math.inf if options.timeout is None else options.timeout
        with jobs.interruptible(plane, ids):
            results = jobs.wait(plane, ids, timeout=timeout)
        return results[0] if len(ids) == 1 else results

    def _result(self, options: argparse.Namespace, names: dict[str, Any]) -> Any:
        plane, ids = _found(options.ref, names)
        with jobs.interruptible(plane, ids):
            results = jobs.wait(plane, ids, timeout=options.timeout)
        held = names.get(options.ref)
        if len(ids) == 1 and not isinstance(held, (list, tuple, dict)):
            return results[0]
        return jobs.shaped(held, iter(results))

    # -- doing

    def _cancel(self, options: argparse.Namespace, names: dict[str, Any]) -> Table:
        plane = impatient(default_plane())
        if bool(options.refs) == options.all or options.all != (options.queue is not None):
            raise UsageError("%lakeshore cancel: give REFs, or --queue Q --all")
        if options.all:
            chosen = [
                (plane, row["id"])
                for state in ("queued", "running")
                for row in jobs.scan(plane, options.queue, state=state)
            ]
        else:
            found = [_found(ref, names) for ref in options.refs]
            chosen = [(impatient(each), id) for each, ids in found for id in ids]
        rows = [{"id": id, "cancelled": at.cancel(id), "state": _state(at, id)} for at, id in chosen]
        return Table(rows, dict.fromkeys(("id", "cancelled", "state"), plain), empty="nothing to cancel")

    def _requeue(self, options: argparse.Namespace, names: dict[str, Any]) -> Table:
        plane, ids = _found(options.ref, names)
        plane = impatient(plane)
        rows = [{"id": id, "requeued": plane.requeue(id), "state": _state(plane, id)} for id in ids]
        return Table(rows, dict.fromkeys(("id", "requeued", "state"), plain))

    def _prune(self, options: argparse.Namespace, names: dict[str, Any]) -> Count:
        plane = default_plane()
        if options.dry_run:
            before = time.time() - options.older_than
            rows = (
                row
                for state in options.state or TERMINAL
                for row in jobs.scan(plane, state=state, limit=sys.maxsize)
            )
            number = sum((row["finished_at"] or before) < before for row in rows)
        else:
            states = {} if options.state is None else {"states": options.state}
            number = plane.prune(older_than=options.older_than, **states)
        done = "would remove" if options.dry_run else "removed"
        which = "" if options.state is None else f"{' or '.join(options.state)} "
        how_old = f" more than {age(options.older_than)} ago" if options.older_than else ""
        return Count(number, f"{done} {number} {which}job{'' if number == 1 else 's'} that ended{how_old}")

    def _worker(self, options: argparse.Namespace, names: dict[str, Any]) -> Any:
        from lakeshore.notebook import worker

        if options.action == "start":
            asked = {"threads": options.threads, "process": options.process, "root": options.root}
            made = worker.start(_plane_at(options.plane), options.queue, **asked)
            if said := worker.differs(made, **asked):
                sys.stdout.write(f"lakeshore: {said}\n")
            return made
        if options.action == "stop":
            return worker.table(worker.stop(options.queue))
        return worker.status(options.queue)

    def _workers(self, options: argparse.Namespace, names: dict[str, Any]) -> Table:
        from lakeshore.notebook import worker

        return worker.status(options.queue)

    def _plane(self, options: argparse.Namespace, names: dict[str, Any]) -> Plane | Record:
        if options.where == "default":
            set_default_plane(None)
        elif options.where is not None:
            set_default_plane(open_at(options.where))
        plane = default_plane()
        told = _where(plane)
        return Record(told if (said := answers(plane)) is None else {**told, "answers": said})

    def _doctor(self, options: argparse.Namespace, names: dict[str, Any]) -> Table:
        from lakeshore.planes.health import examine

        findings = examine(
            lambda: impatient(default_plane()),
            start_worker=lambda queue: f"%lakeshore worker start {shlex.quote(queue)}",
            another_plane="see the message; %lakeshore plane PATH uses another",
        )
        columns = dict.fromkeys(("check", "state", "found", "fix"), plain)
        return Table((finding._asdict() for finding in findings), columns)

    def _help(self, options: argparse.Namespace, names: dict[str, Any]) -> None:
        if options.command is None:
            sys.stdout.write(arguments.summary())
            return
        self._check_command(options.command, "")
        sys.stdout.write(arguments.parser(options.command).format_help())


# `%lakeshore?` shows the docstring raw, so it is the help itself.
LakeshoreMagics.lakeshore.__doc__ = arguments.overview()


class Shown:
    """A panel that is on display already, as a cell's last value: shows nothing more.

    Attributes
    ----------
    panel : Panel
        What `show_job` gave: `.wait()`, `.freeze()`, `.detach()`, `.state`.
    """

    def __init__(self, panel: Any) -> None:
        self.panel = panel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.panel, name)

    def __repr__(self) -> str:
        return repr(self.panel)

    def _ipython_display_(self) -> None:
        pass


def open_at(where: str) -> Plane:
    """Open the plane in a file, in a directory as LAKESHORE_HOME, or at a URL.

    Raises
    ------
    PlaneUnavailable, NotSupported
        When it cannot be used.
    """
    from lakeshore.planes.sqlite import Dispatch

    environment = settings.read()
    if "://" in where:
        return open_plane(replace(environment, url=where))
    if where == ":memory:":
        return Dispatch(ns=environment.namespace)
    path = Path(where).expanduser().absolute()
    if path.is_dir():
        path /= environment.database.name
    current = default_plane()
    return current if getattr(current, "path", None) == path else Dispatch(path, ns=environment.namespace)


def _plane_at(where: str | None) -> Plane:
    return default_plane() if where is None else elsewhere.opened(where, open_at, default_plane())


def _found(ref: str, names: dict[str, Any]) -> tuple[Plane, list[str]]:
    """Return the ids that a REF means and their plane: the default one, or one that a `--plane` named."""
    try:
        return default_plane(), jobs.resolve(impatient(default_plane()), ref, names)
    except UnknownInvocation:
        for plane in elsewhere.planes():
            with contextlib.suppress(DispatchError):  # no such job there, or no answer
                return plane, jobs.resolve(impatient(plane), ref, names)
        raise


def _found_one(ref: str, names: dict[str, Any]) -> tuple[Plane, str]:
    plane, ids = _found(ref, names)
    return impatient(plane), jobs.one(ref, ids)


def _where(plane: Plane) -> dict[str, Any]:
    path = getattr(plane, "path", None)
    return {"plane": repr(plane), "file": None if path is None else str(path), "trusted": plane.trusted}


def _queues(plane: Plane) -> Table:
    rows = [
        {"queue": queue, **{s: counts.get(s, 0) for s in _STATES}} for queue, counts in plane.queues().items()
    ]
    return Table(
        rows, dict.fromkeys(("queue", *_STATES), plain), empty="no queues yet; %%lakeshore submit QUEUE"
    )


def _took(row: dict[str, Any]) -> str:
    start, end = row["started_at"], row["finished_at"]
    return span(end - start) if start is not None and end is not None else ""


def _state(plane: Plane, id: str) -> str | None:
    row = plane.get(id)
    return None if row is None else row["state"]


def load(ipython: Any) -> None:
    """Register the magics and the completer in a shell; a second time changes nothing but to renew them."""
    _remove(ipython)
    magics = LakeshoreMagics(ipython)
    ipython.register_magics(magics)
    ipython.Completer.custom_matchers.append(magics.matcher)
    Detached.command = "%lakeshore cancel"


def unload(ipython: Any) -> None:
    """Stop this kernel's workers and panels, and take the magics and the completer out of the shell."""
    _remove(ipython)
    if (workers := sys.modules.get("lakeshore.notebook.worker")) is not None:
        sys.stdout.write("".join(f"lakeshore: {said}\n" for said in workers.stop_all()))
    if (panels := sys.modules.get("lakeshore.notebook.stream")) is not None:
        panels.shutdown()


def _remove(ipython: Any) -> None:
    manager = ipython.magics_manager
    magics = manager.registry.pop(LakeshoreMagics.__name__, None)
    for kind in ("line", "cell"):
        manager.magics[kind].pop("lakeshore", None)
    matcher = getattr(magics, "matcher", None)
    matchers = ipython.Completer.custom_matchers
    matchers[:] = [each for each in matchers if each is not matcher]
    Detached.command = "lakeshore cancel"
