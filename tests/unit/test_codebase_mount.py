"""One job's import path: its own code first, and none of it for the next job."""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from lakeshore.codebase import mount
from lakeshore.codebase.mount import Turns
from lakeshore.codebase.unpack import ArchiveRefused


def code(folder: Path, files: dict[str, str] | None = None, **modules: str) -> mount.Mount:
    for name, text in {**modules, **(files or {})}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return mount.at(folder, (".",))


@pytest.fixture(autouse=True)
def _the_process_is_left_as_it_was():
    modules, path = dict(sys.modules), list(sys.path)
    yield
    assert sys.path == path
    assert {n for n in sys.modules if n not in modules and n.startswith("mounted_")} == set()
    sys.path[:] = path


def test_two_commits_of_one_module_never_meet(tmp_path: Path) -> None:
    a = code(tmp_path / "a", mounted_m="import mounted_n\nv = 'a' + mounted_n.v", mounted_n="v = 1 and 'A'")
    b = code(tmp_path / "b", mounted_m="import mounted_n\nv = 'b' + mounted_n.v", mounted_n="v = 1 and 'B'")
    turns = Turns()
    for _ in range(2):
        for each, wanted in ((a, "aA"), (b, "bB")):
            with turns.taken(each):
                import mounted_m

                assert mounted_m.v == wanted
        with turns.taken(None), pytest.raises(ImportError):
            __import__("mounted_m")


def test_an_installed_copy_is_hidden_for_the_time_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code(tmp_path / "installed", {"mounted_p/__init__": "v = 'old'", "mounted_p/sub": "v = 'old sub'"})
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    import mounted_p.sub

    old = sys.modules["mounted_p"], sys.modules["mounted_p.sub"]
    new = code(tmp_path / "new", {"mounted_p/__init__": "v = 'new'", "mounted_p/sub": "v = 'new sub'"})
    with Turns().taken(new):
        assert sys.modules.get("mounted_p.sub") is None
        import mounted_p.sub as again

        assert again.v == "new sub"
    assert (sys.modules["mounted_p"], sys.modules["mounted_p.sub"]) == old
    assert mounted_p.sub.v == "old sub"
    for name in ("mounted_p", "mounted_p.sub"):
        del sys.modules[name]


def test_what_every_process_needs_is_never_hidden(tmp_path: Path) -> None:
    from lakeshore import errors

    mine = code(tmp_path, {"lakeshore/__init__": "", "lakeshore/errors": "x = 1"}, json="x = 1", mounted_q="")
    (tmp_path / "msgpack").mkdir()  # a folder of data hides no package
    msgpack = sys.modules["msgpack"]
    with Turns().taken(mine):
        import json

        from lakeshore import errors as same

        assert same is errors
        assert not hasattr(json, "x")
        assert sys.modules["msgpack"] is msgpack
    assert mine.brings("mounted_q")
    assert not any(
        map(mine.brings, ("json", "lakeshore.errors", "msgpack", "mounted_q.x", "../mounted_q", ""))
    )


def test_nothing_stays_in_a_package_of_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code(tmp_path / "installed", {"mounted_space/a": "v = 1"})
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    import mounted_space.a

    mine = code(tmp_path / "mine", {"mounted_space/b": "v = 2", "mounted_space/c/d": "v = 3"})
    with Turns().taken(mine):
        import mounted_space.b
        import mounted_space.c.d

        assert (mounted_space.b.v, mounted_space.c.d.v) == (2, 3)
    with pytest.raises(ImportError):
        from mounted_space import b  # noqa: F401
    with pytest.raises(ImportError):
        from mounted_space import c  # noqa: F401
    assert mounted_space.a.v == 1
    for name in [name for name in sys.modules if name.startswith("mounted_space")]:
        del sys.modules[name]


def test_the_standard_library_is_never_hidden_loaded_or_not(tmp_path: Path) -> None:
    finders = list(sys.meta_path)
    files = {
        "this/__init__": "",
        "xdrlib_mine": "",
        "mounted_pkg/__init__": "",
        "mounted_pkg/tabnanny": "v = 1",
    }
    mine = code(tmp_path, files, tabnanny="mine = 1", mounted_u="import tabnanny")
    sys.modules.pop("tabnanny", None)
    with Turns().taken(mine):
        import mounted_u
        from mounted_pkg import tabnanny as inner

        assert not hasattr(mounted_u.tabnanny, "mine")
        assert inner.v == 1  # in a package a name is one's own
    assert sys.meta_path == finders
    assert sys.modules["tabnanny"] is mounted_u.tabnanny


def test_a_body_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    mine = code(tmp_path, mounted_r="raise RuntimeError('at import')", mounted_s="")
    turns = Turns()
    with pytest.raises(RuntimeError), turns.taken(mine):
        __import__("mounted_s")
        __import__("mounted_r")
    with turns.taken(None):
        pass


def test_a_job_with_other_code_waits_and_one_with_the_same_does_not(tmp_path: Path) -> None:
    a, b = code(tmp_path / "a", mounted_t="v = 1"), code(tmp_path / "b", mounted_t="v = 2")
    turns, order, inside = Turns(), [], threading.Event()

    def other() -> None:
        with turns.taken(b):
            order.append(__import__("mounted_t").v)

    def same() -> None:
        with turns.taken(a):
            order.append(__import__("mounted_t").v)
            inside.set()

    with turns.taken(a):
        waits, joins = threading.Thread(target=other), threading.Thread(target=same)
        waits.start()
        joins.start()
        assert inside.wait(10)
        order.append(__import__("mounted_t").v)
    waits.join()
    joins.join()
    assert order == [1, 1, 2]


def test_a_wait_for_the_turn_can_be_broken_off(tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    turns, told = Turns(), []
    a, b = code(tmp_path / "a", mounted_u=""), code(tmp_path / "b", mounted_u="")

    def wait() -> None:
        try:
            with turns.taken(b):
                told.append("entered")
        except Stop:
            told.append("stopped")

    with turns.taken(a):
        waits = threading.Thread(target=wait)
        waits.start()
        assert waits.ident is not None
        while waits.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waits.ident), ctypes.py_object(Stop))
            waits.join(0.05)
        assert told == ["stopped"]
    with turns.taken(b):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stop_at_any_moment_leaves_nothing_in_force(tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    mine = code(tmp_path, mounted_x="")
    module = types.ModuleType("mounted_x")  # an import that is cut leaves the file open that it reads
    module.__file__ = str(tmp_path / "mounted_x.py")
    turns, before = Turns(), list(sys.path)
    ends = random.Random(3)

    def work() -> None:
        with contextlib.suppress(Stop), turns.taken(mine):
            sys.modules["mounted_x"] = module

    for _ in range(60):
        worker = threading.Thread(target=work)
        worker.start()
        time.sleep(ends.random() * 0.002)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(Stop))
        worker.join(10)
        assert not worker.is_alive()
        assert sys.path == before
        assert "mounted_x" not in sys.modules


def test_a_kept_mount_stays_loaded_until_another_comes(tmp_path: Path) -> None:
    a, b = code(tmp_path / "a", mounted_v="v = object()"), code(tmp_path / "b", mounted_v="v = 2")
    turns = Turns(keep=True)
    with turns.taken(a):
        first = __import__("mounted_v").v
    with turns.taken(a):
        assert __import__("mounted_v").v is first
    with turns.taken(b):
        assert __import__("mounted_v").v == 2
    with turns.taken(None), pytest.raises(ImportError):
        __import__("mounted_v")


def test_a_root_within_the_tree_is_what_is_imported_from(tmp_path: Path) -> None:
    code(tmp_path / "src", mounted_w="v = 1")
    with Turns().taken(mount.at(tmp_path, ("src", "."))):
        assert __import__("mounted_w").v == 1


DIGEST = "sha256:" + "0" * 64


def test_a_stamp_is_read() -> None:
    assert mount.read_stamp(None) is None
    assert mount.read_stamp({"remote": "x", "commit": "y"}) is None
    assert mount.read_stamp({"digest": DIGEST}) == (DIGEST, (".",))
    assert mount.read_stamp({"digest": DIGEST, "roots": ["src", "."]}) == (DIGEST, ("src", "."))


@pytest.mark.parametrize(
    "stamp",
    [
        {"digest": "../../etc"},
        {"digest": 7},
        {"digest": DIGEST, "roots": ["../up"]},
        {"digest": DIGEST, "roots": ["/etc"]},
        {"digest": DIGEST, "roots": [7]},
        {"digest": DIGEST, "roots": "src"},
        {"digest": DIGEST, "roots": ["a"] * 101},
    ],
)
def test_a_stamp_that_leads_elsewhere_is_refused(stamp: dict) -> None:
    with pytest.raises(ArchiveRefused):
        mount.read_stamp(stamp)
