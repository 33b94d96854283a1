"""Kin of faults that people met with other tools: one kernel submits every case, one daemon runs them.

What is tried is the public surface as a notebook uses it. A case is a line in a table: its cells, and the
value that its job must give; None where the submit has to be refused before anything is stored.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakeshore import Dispatch, SyncQueue, run, run_worker, scope, thunk, udf
from lakeshore.errors import PlaneUnavailable

KERNEL = r"""
import contextlib, io, json, os, sys
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
config = Config(); config.HistoryManager.enabled = False; config.InteractiveShell.colors = "nocolor"
ip = InteractiveShell.instance(config=config)
sys.path.insert(0, "")
SUBMIT = "import lakeshore as _dls; _id = _dls.SyncQueue('gpu').submit(_dls.thunk(job, *args))"
ip.run_cell("%load_ext lakeshore")
answers = {}
for name, cells in json.loads(sys.stdin.read()).items():
    ip.user_ns.update(args=(), OUT=None)
    magic = any(cell.startswith("%%lakeshore") for cell in cells)
    listed = any("OUT =" in cell for cell in cells)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for cell in cells if magic or listed else [*cells, SUBMIT]:
            done = ip.run_cell(cell, store_history=True)
            error = done.error_before_exec or done.error_in_exec
            if error is not None:
                answers[name] = {"error": type(error).__name__, "message": str(error)}
                break
        else:
            answers[name] = {"id": ip.user_ns["OUT" if listed else "_lakeshore" if magic else "_id"]}
print("@@" + json.dumps(answers))
"""

MODULES = {
    "helper_m.py": """
        K = 10
        class Box:
            def __init__(self, n): self.n = n
        def f(x): return x + K
    """,
    "pkg_m/__init__.py": "from .base import B",
    "pkg_m/base.py": "B = 2",
    "pkg_m/sub.py": "from . import B\ndef g(x): return x * B",
    "udf_m.py": "from lakeshore import udf\n@udf\ndef half(x): return x / 2",
}

# Cells -> the value of `job(*args)`, or of each id in OUT. The worker lacks the notebook's modules.
CALLS: dict[str, tuple[Any, list[str]]] = {
    "a module": (11, ["import helper_m", "def job(): return helper_m.f(1)"]),
    "a name of a module": (11, ["from helper_m import f", "def job(): return f(1)"]),
    "a module's function as the job": (11, ["from helper_m import f as job\nargs = (1,)"]),
    "a module's class": (
        [4, True],
        ["from helper_m import Box", "def job(b): return [b.n, type(b) is Box]\nargs = (Box(4),)"],
    ),
    "a subclass of it": (
        7,
        ["class Sub(Box):\n    def __init__(self): super().__init__(7)", "def job(): return Sub().n"],
    ),
    "a relative import": (4, ["from pkg_m.sub import g", "def job(): return g(2)"]),
    "a package by its dots": (4, ["import pkg_m.sub", "def job(): return pkg_m.sub.g(2)"]),
    "a module's udf": (2.0, ["from udf_m import half", "def job(): return half(4)"]),
    "a module as default": (11, ["def job(m=helper_m): return m.f(1)"]),
    "a module patched by a cell": (21, ["helper_m.K = 20", "def job(): return helper_m.f(1)"]),
    "a generic class": (
        ["bar", 6, True],
        [
            """
            from typing import Generic, TypeVar
            T = TypeVar('T')
            class Base(Generic[T]):
                foo = 'bar'
                def __init__(self, v: T): self.v = v
            class Child(Base[int]):
                @property
                def twice(self): return self.v * 2
            """,
            "c = Child(3)\ndef job(): return [c.foo, c.twice, isinstance(c, Base)]",
        ],
    ),
    "a metaclass, slots and a descriptor": (
        ["a", 2, "unset"],
        [
            """
            class Meta(type):
                def __new__(m, n, b, d): return super().__new__(m, n, b, {**d, 'tag': n.lower()})
            class D:
                def __set_name__(self, o, n): self.n = '_' + n
                def __get__(self, o, t=None): return getattr(o, self.n, 'unset')
                def __set__(self, o, v): setattr(o, self.n, v)
            class A(metaclass=Meta):
                __slots__ = ('_b',)
                b = D()
            """,
            "s = A(); s.b = 2\ndef job(): return [A.tag, s.b, A().b]",
        ],
    ),
    "frozen slots": (
        [2, 4, "FrozenInstanceError"],
        [
            """
            from dataclasses import dataclass, replace
            @dataclass(frozen=True, slots=True)
            class P:
                x: int = 3
                y: int = 4
            p = P(1)
            def job():
                q = replace(p, x=2)
                try: q.x = 5
                except Exception as e: return [q.x, q.y, type(e).__name__]
            """,
        ],
    ),
    "single dispatch": (
        ["int", "any"],
        [
            """
            import functools
            @functools.singledispatch
            def kind(x): return 'any'
            @kind.register
            def of_int(x: int): return 'int'
            """,
            "def job(): return [kind(1), kind('')]",
        ],
    ),
    "a class's state begins anew with each job": (
        [1, 1, 1],
        [
            "from lakeshore import SyncQueue, thunk\nq = SyncQueue('gpu')\nclass C: n = 0",
            "def job():\n    C.n += 1\n    return C.n\nOUT = [q.submit(thunk(job)) for _ in range(3)]",
        ],
    ),
    "a class changed between two submits": (
        [[0, None], [5, "new"], [5, None]],
        [
            "class C: n = 0\ndef job(): return [C.n, getattr(C, 'm', None)]\na = q.submit(thunk(job))",
            "C.n = 5; C.m = 'new'\nb = q.submit(thunk(job))",
            "del C.m\nOUT = [a, b, q.submit(thunk(job))]",
        ],
    ),
    "an enum defined again": (
        [[True, 1], [False, 2]],
        [
            """
            import enum
            class E(enum.Enum): A = 1
            old = E.A
            def job(): return [old is E.A, E.A.value]
            a = q.submit(thunk(job))
            """,
            "class E(enum.Enum): A = 2\nOUT = [a, q.submit(thunk(job))]",
        ],
    ),
    "globals edited between two submits": (
        [[1, [1]], [20, [2]], [20, [2]]],
        [
            """
            K = 1; L = []
            def h(): return K
            def job():
                L.append(K)
                return [h(), list(L)]
            a = q.submit(thunk(job))
            """,
            "K = 2\ndef h(): return K * 10\nOUT = [a, q.submit(thunk(job)), q.submit(thunk(job))]",
        ],
    ),
}

# Cells, one of them a %%lakeshore cell -> the value of each job that it submitted; None: refused.
MAGICS: dict[str, tuple[Any, list[str]]] = {
    "blank lines before": (3, ["%%lakeshore submit gpu\n\n\n# c\ndef job(): return 3"]),
    "a comment on the magic's line": (3, ["%%lakeshore submit gpu  # it's my job\ndef job(): return 3"]),
    "a cell cut out of a block": (3, ["%%lakeshore submit gpu\n\n    def job():\n        return 3"]),
    "statements cut out of a block": (4, ["%%lakeshore submit gpu --cell\n    x = 2\n    x * 2"]),
    "flags before the queue": (3, ["%%lakeshore submit --quiet gpu\ndef job(): return 3"]),
    "braces in an argument": ({"a": 1}, ['%%lakeshore submit gpu -a d={"a":1}\ndef job(d): return d']),
    "magics inside a string": (
        3,
        ["%%lakeshore submit gpu\ndef job():\n    return len('''\n%time x\n!ls'''.splitlines())"],
    ),
    "braces and dollars in the body": ("{a} $b", ["%%lakeshore submit gpu\ndef job(): return '{a} $b'"]),
    "lines that end as on Windows": (1, ["%%lakeshore submit gpu\r\ndef job():\r\n    return 1\r\n"]),
    "a line that goes on": (3, ["%%lakeshore submit gpu\ndef job():\n    return 1 + \\\n        2"]),
    "names beyond ASCII": ("πé", ["%%lakeshore submit gpu\ndef jöb(ñ='é'): return 'π' + ñ"]),
    "annotations of no name": (
        1,
        ["%%lakeshore submit gpu\nfrom __future__ import annotations\ndef job(x: No = 1) -> Nope: return x"],
    ),
    "the last output": (11, ["5 + 5", "%%lakeshore submit gpu\ndef job(): return _ + 1"]),
    "names like flags": (
        7,
        ["gpu = 3; submit = 4", "%%lakeshore submit gpu\ndef job(): return gpu + submit"],
    ),
    "a module's main": (3, ["%%lakeshore submit gpu\nif __name__ == '__main__':\n    r = 3\nr"]),
    "an await": (5, ["import asyncio", "%%lakeshore submit gpu\nawait asyncio.sleep(0)\n5"]),
    "a fan-out": (
        [0, 1, 4],
        ["def sq(x): return x * x", "%%lakeshore submit gpu\n[sq(i) for i in range(3)]"],
    ),
    "a partial": (
        3,
        [
            "import functools\nadd1 = functools.partial(lambda a, b: a + b, 1)",
            "%%lakeshore submit gpu\nadd1(2)",
        ],
    ),
    "a list changed afterwards": (
        [1],
        ["L = [1]", "%%lakeshore submit gpu\ndef job(): return L", "L.append(2)"],
    ),
    "two jobs to choose from": (None, ["%%lakeshore submit gpu\ndef a(): return 1\ndef b(): return 2"]),
    "a flag misspelled": (None, ["%%lakeshore submit gpu --prioriti 3\ndef job(): return 1"]),
    "a command misspelled": (None, ["%%lakeshore sumbit gpu\ndef job(): return 1"]),
    "a queue of no name": (None, ["%%lakeshore submit $nosuch\ndef job(): return 1"]),
    "no queue": (None, ["%%lakeshore submit\ndef job(): return 1"]),
    "an argument missing": (None, ["%%lakeshore submit gpu\ndef job(n): return n"]),
    "an argument too many": (None, ["%%lakeshore submit gpu -a zz=1\ndef job(n=1): return n"]),
    "a magic in the body": (None, ["%%lakeshore submit gpu\n%matplotlib inline\ndef job(): return 1"]),
    "help in the body": (None, ["%%lakeshore submit gpu\nlen?\n1"]),
    "a global": (None, ["n = 0", "%%lakeshore submit gpu\ndef job():\n    global n\n    n += 1"]),
    "a call in a call": (None, ["def f(x): return x", "%%lakeshore submit gpu\nf(f(1))"]),
    "an open file": (
        None,
        ["fh = open('/dev/null')", "%%lakeshore submit gpu\ndef job(): return fh.name", "fh.close()"],
    ),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], SyncQueue]]:
    """Run all cells in one kernel, then all jobs in one daemon of another folder."""
    base = tmp_path_factory.mktemp("kin")
    for folder in ("home", "notebook", "elsewhere"):
        (base / folder).mkdir(mode=0o700)
    for name, text in MODULES.items():
        path = base / "notebook" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    env = {**os.environ, "LAKESHORE_HOME": str(base / "home")}
    cells = {
        name: [textwrap.dedent(cell).strip("\n") for cell in case[1]]
        for name, case in {**CALLS, **MAGICS}.items()
    }
    kernel = subprocess.run(
        [sys.executable, "-c", KERNEL],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        cwd=base / "notebook",
        env=env,
        timeout=120,
    )
    lines = [line for line in kernel.stdout.splitlines() if line.startswith("@@")]
    assert lines, kernel.stderr[-3000:]
    plane = Dispatch(base / "home" / "dispatch.sqlite")
    queue = SyncQueue("gpu", dispatch=plane)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "lakeshore.daemon", "--queue", "gpu", "--retries", "0"],
        cwd=base / "elsewhere",
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield json.loads(lines[-1][2:]), queue
    finally:
        daemon.terminate()
        daemon.wait(20)
        plane.close()


def value(queue: SyncQueue, ids: Any) -> Any:
    return [value(queue, one) for one in ids] if isinstance(ids, list) else queue.result(ids, timeout=60)


@pytest.mark.parametrize("name", [*CALLS, *(name for name, case in MAGICS.items() if case[0] is not None)])
def test_job_gives_its_value(name: str, ran: tuple[dict[str, Any], SyncQueue]) -> None:
    answers, queue = ran
    assert "id" in answers[name], answers[name]
    assert value(queue, answers[name]["id"]) == {**CALLS, **MAGICS}[name][0]


@pytest.mark.parametrize("name", [name for name, case in MAGICS.items() if case[0] is None])
def test_cell_is_refused_in_one_line(name: str, ran: tuple[dict[str, Any], SyncQueue]) -> None:
    answer = ran[0][name]
    assert answer.get("error") in ("UsageError", "CaptureError"), answer
    assert len(answer["message"]) > 20 and "\n" not in answer["message"]


def test_refused_cells_stored_nothing(ran: tuple[dict[str, Any], SyncQueue]) -> None:
    answers, queue = ran
    ids = [one for answer in answers.values() for one in [answer.get("id", [])]]
    flat = {one for group in ids for one in (group if isinstance(group, list) else [group])}
    before = {row["id"] for row in queue.invocations(limit=500)}
    assert before == flat


# ---- files: a body passes or fails here as it does on a worker, with the same kind of error


def wrote(*keys: str) -> None:
    for key in keys:
        run.write(key).write_text("1")


def by_scope() -> str:
    with scope("sub"):
        wrote("x")
    return "sub/x"


def by_threads() -> str:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(wrote, ["t1", "t2"]))
    return "t1"


def by_yields(*told: str) -> Iterator[str]:
    wrote("a")
    yield from told


def folder_only() -> str:
    (run.write("d", dir=True) / "f").write_text("1")
    return "d/f"


BODIES: dict[str, tuple[bool, Callable[[], Any]]] = {
    "the key": (True, lambda: wrote("a") or "a"),
    "a dict of keys": (True, lambda: wrote("a") or {"model": "a", "note": None}),
    "one key twice": (True, lambda: wrote("a", "a") or ["a", "a"]),
    "data that looks like a key": (True, lambda: "never written"),
    "an empty manifest": (True, list),
    "a key of a nested scope": (True, by_scope),
    "yielded keys": (True, lambda: by_yields("a")),
    "yields of something else": (False, lambda: by_yields("zzz")),
    "nothing returned": (False, lambda: wrote("a")),
    "no file behind the key": (False, lambda: run.write("a") and "a"),
    "the path for the key": (False, lambda: wrote("a") or str(run.read("a"))),
    "a file where a folder is needed": (False, lambda: wrote("a", "a/b") or ["a", "a/b"]),
    "a file of the folder for its key": (False, folder_only),
    "a key written in a thread": (False, by_threads),
    "another spelling of an accent": (False, lambda: wrote("\u00e9") or "e\u0301"),
}


@pytest.mark.parametrize("name", list(BODIES))
def test_files_are_judged_alike_here_and_on_a_worker(name: str, tmp_path: Path) -> None:
    passes, body = BODIES[name]
    wrapped = udf(body)
    local: Any = None
    with scope("s", root=tmp_path / "here"):
        try:
            local = wrapped.local()
            local = list(local) if isinstance(local, Iterator) else local
        except ValueError as error:
            local = error
    plane = Dispatch(":memory:")
    queue = SyncQueue("gpu", dispatch=plane)
    one = queue.submit(thunk(wrapped))
    run_worker(queue, once=True, retries=0, root=tmp_path / "there", allow_pickled=True)
    row = queue.status(one)
    if passes:
        assert row["state"] == "succeeded", row["error"]
        assert queue.result(one) == local
    else:
        assert row["state"] == "failed" and row["error"].startswith("KeyContractError: ")
        assert type(local).__name__ == "KeyContractError"
    plane.close()


# ---- the SQLite file


@pytest.mark.parametrize(
    "name", ["with space", "ünï漢", "a?b", "a#b", "50%20x", "file:x", "a;b'\"", "-x", "a&mode=ro"]
)
def test_file_of_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.sqlite"
    for id, argument in (("text", str(path)), ("path", path)):
        with_plane = Dispatch(argument)
        with_plane.submit("gpu", b"e", id=id)
        with_plane.close()
    plane = Dispatch(path)
    assert plane.count("gpu") == 2
    plane.close()
    assert path.exists() and all(found.name.startswith(path.name) for found in tmp_path.iterdir())


def test_relative_path_means_the_folder_it_was_said_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    plane = Dispatch("d.sqlite")
    monkeypatch.chdir(tmp_path / "b")
    plane.submit("gpu", b"e", id="x")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(plane.count, "gpu").result() == 1
    plane.close()
    assert (tmp_path / "a" / "d.sqlite").exists() and not list((tmp_path / "b").iterdir())


def test_planes_of_one_file_by_link_and_by_name_agree(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "f.sqlite").symlink_to(tmp_path / "real" / "d.sqlite")
    paths = (tmp_path / "real" / "d.sqlite", tmp_path / "link" / "d.sqlite", tmp_path / "f.sqlite")
    planes = [Dispatch(path) for path in paths]
    for index, plane in enumerate(planes):
        plane.submit("gpu", b"e", id=f"x{index}")
    assert [plane.count("gpu") for plane in planes] == [3, 3, 3]
    planes[0].close()
    planes[1].submit("gpu", b"e", id="y")
    assert planes[2].count("gpu") == 4
    for plane in planes[1:]:
        plane.close()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["f.sqlite", "link", "real"]


LOST = {
    "deleted": lambda path: path.unlink(),
    "replaced": lambda path: os.replace(path.parent.parent / "other", path),
    "its folder renamed": lambda path: path.parent.rename(path.parent.parent / "away"),
    "its WAL deleted": lambda path: Path(f"{path}-wal").unlink(),
    "its index deleted": lambda path: Path(f"{path}-shm").unlink(),
}


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("name", list(LOST))
def test_nothing_is_acknowledged_into_a_file_that_is_gone(name: str, settled: bool, tmp_path: Path) -> None:
    path = tmp_path / "home" / "d.sqlite"
    path.parent.mkdir()
    plane = Dispatch(path)
    if settled:
        os.utime(path.parent, (1, 1.5))  # long ago: the plane takes the folder for unchanged
    plane.submit("gpu", b"e", id="kept")
    (tmp_path / "other").touch()
    LOST[name](path)
    for call in (
        lambda: plane.submit("gpu", b"e", id="lost"),
        lambda: plane.claim("gpu", "w"),
        lambda: plane.journal_append("topic", None, b"f"),
        lambda: plane.get("kept"),
    ):
        with pytest.raises(PlaneUnavailable, match="moved or deleted while open.*make a new Dispatch"):
            call()
    plane.close()


def test_a_folder_that_was_put_back_goes_on(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    plane = Dispatch(home / "d.sqlite")
    home.rename(away)
    with pytest.raises(PlaneUnavailable, match="moved or deleted"):
        plane.submit("gpu", b"e", id="x")
    away.rename(home)
    (home / "beside").touch()
    plane.submit("gpu", b"e", id="x")
    with Dispatch(home / "d.sqlite") as other:
        assert other.count("gpu") == 1
    plane.close()


def test_a_worker_says_that_its_file_is_gone(tmp_path: Path) -> None:
    plane = Dispatch(tmp_path / "d.sqlite")
    told: list[Any] = []
    (tmp_path / "d.sqlite").unlink()
    run_worker(SyncQueue("gpu", dispatch=plane), on_event=told.append, stop=lambda: bool(told))
    assert told[0].kind == "plane_away" and "moved or deleted while open" in told[0].detail
    plane.close()
