"""Run context: keys, scopes, return-your-keys, progress."""

import asyncio
import contextvars
import gc
import os
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore import KeyContractError, run, scope
from lakeshore.context import RunContext, current, job_context
from lakeshore.keys import KeyNotFound, check_prefix

BAD_KEYS = [
    "", ".", "./", "a/..", "a\0b", "/abs", "///", "a\\b", "C:/x", "c:x", "..", "../..", "../x", "a/../../x",
    "\udce9", "x" * 256, None, 5, b"k", ["a"], True,
]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
@pytest.mark.parametrize("verb", ["write", "read"])
def test_bad_key_is_refused_before_the_disk_is_touched(tmp_path, key, verb):
    root = tmp_path / "root"
    with scope("", root=root), pytest.raises(KeyContractError):
        getattr(run, verb)(key)
    assert not root.exists()


@pytest.mark.parametrize("prefix", [key for key in BAD_KEYS if key != ""], ids=repr)
def test_bad_prefix_is_refused_everywhere(tmp_path, prefix):
    with pytest.raises(KeyContractError), scope(prefix, root=tmp_path / "root"):
        pass
    with pytest.raises(KeyContractError):
        job_context(prefix=prefix, root=tmp_path / "root", invocation_id="i")
    assert not (tmp_path / "root").exists()


def test_dotdot_climbs_to_a_parent_scope_and_never_out(tmp_path):
    with scope("a/b", root=tmp_path):
        assert run.write("../shared.txt") == tmp_path / "a/shared.txt"
        assert run.write("../../top.txt") == tmp_path / "top.txt"
        with scope(".."):
            assert run.prefix == "a"
        with scope("../.."):
            assert run.prefix == ""
        with pytest.raises(KeyContractError, match="climbs out"):
            run.write("../../../out.txt")
        with pytest.raises(KeyContractError, match="climbs out"), scope("../../.."):
            pass


def test_links_are_resolved(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir(), outside.mkdir()
    (root / "door").symlink_to(outside)
    (root / "inner").symlink_to(root)
    with scope("", root=root):
        for key in ("door/x", "door"):
            with pytest.raises(KeyContractError, match="link"):
                run.write(key)
        with pytest.raises(KeyContractError, match="link"):
            run.read("door")
        with pytest.raises(KeyContractError, match="link"), scope("door"):
            pass
        run.write("inner/ok.txt").write_text("x")
    with pytest.raises(KeyContractError, match="link"):
        job_context(prefix="door", root=root, invocation_id="i")
    assert not list(outside.iterdir())


def test_the_root_may_itself_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    with scope("s", root=tmp_path / "root"):
        run.write("k").write_text("x")
        assert run.read("k").read_text() == "x"


@pytest.mark.parametrize("key", ["d/" * 3000 + "x", "d/" * 1500 + "x", f"{'d' * 250}/" * 20 + "x"])
def test_a_path_that_no_file_system_takes_is_refused(tmp_path, key):
    with scope("s", root=tmp_path):
        for verb in (run.write, run.read, lambda key: run.write(key, dir=True)):
            with pytest.raises(KeyContractError, match="parts|longer than"):
                verb(key)
    assert not list(tmp_path.iterdir())


@given(st.text(max_size=40))
def test_a_key_that_is_taken_stays_inside(tmp_path_factory, key):
    root = tmp_path_factory.getbasetemp() / "prop"
    with scope("deep/er", root=root):
        try:
            path = run.write(key)
        except KeyContractError:
            return
        assert os.path.realpath(path).startswith(os.path.realpath(root) + os.sep)


def test_write_makes_parents_or_the_directory(tmp_path):
    with scope("s", root=tmp_path):
        assert run.write("a/b/c.txt").parent.is_dir()
        assert not run.write("a/b/c.txt").exists()
        assert run.write("d/e", dir=True).is_dir()
        run.write("f").write_text("x")
        with pytest.raises(KeyContractError, match="is a file"):
            run.write("f/g")


def test_read_says_what_is_missing(tmp_path):
    with scope("s", root=tmp_path):
        with pytest.raises(KeyNotFound, match=r"'x\.txt'.*scope 's'") as caught:
            run.read("x.txt")
    assert isinstance(caught.value, (KeyContractError, FileNotFoundError))


def test_read_all_and_write_all_mirror_the_shape(tmp_path):
    shape = {"a": "x/1", "b": ["x/2", ("x/3",)], "c": []}
    with scope("", root=tmp_path):
        paths = run.write_all(shape)
        assert paths == {"a": tmp_path / "x/1", "b": [tmp_path / "x/2", (tmp_path / "x/3",)], "c": []}
        for path in (paths["a"], paths["b"][0], paths["b"][1][0]):
            path.write_text("x")
        assert run.read_all(shape) == paths


def test_write_all_checks_all_before_it_makes_one(tmp_path):
    with scope("", root=tmp_path), pytest.raises(KeyContractError):
        run.write_all(["fine/x", "/bad"])
    assert not list(tmp_path.iterdir())


def test_outside_any_scope_the_root_is_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (run.prefix, run.root, run.invocation_id, run.attempt, run.cancelled) == (
        "",
        tmp_path,
        None,
        0,
        False,
    )
    with scope("s"):
        monkeypatch.chdir("/")
        assert run.root == tmp_path


def test_scopes_nest_and_restore(tmp_path):
    with scope("a", root=tmp_path):
        with scope("b") as inner, scope(""):
            assert run.prefix == inner.prefix == "a/b"
        assert run.prefix == "a"
        with pytest.raises(RuntimeError), scope("c"):
            raise RuntimeError
        assert run.prefix == "a"
    assert run.prefix == ""


def test_a_chdir_moves_neither_this_root_nor_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with job_context(prefix="", root=None, invocation_id="i"):
        monkeypatch.chdir("/")
        assert run.write("x") == tmp_path / "x"


def test_an_abandoned_generator_takes_no_scope_away(tmp_path):
    def feed(name):
        with scope(name):
            yield

    with scope("one", root=tmp_path):
        left = feed("inner")
        next(left)
    assert run.prefix == ""
    with scope("two", root=tmp_path):
        left.close()
        assert run.prefix == "two"
        other = contextvars.copy_context()
        left = feed("three")
        next(left)
        other.run(left.close)
    assert run.prefix == ""
    gc.collect()


def test_the_proxy_pickles_by_name():
    assert pickle.loads(pickle.dumps(run)) is run
    assert "root" in dir(run)


def written(tmp_path, prefix=""):
    return job_context(prefix=prefix, root=tmp_path, invocation_id="i")


@pytest.mark.parametrize(
    "result", ["a.txt", ["a.txt"], ("a.txt", "data"), {"k": "a.txt"}, {"k": [{"l": ("./a.txt",)}]}], ids=repr
)
def test_a_returned_key_is_found_in_any_shape(tmp_path, result):
    with written(tmp_path) as context:
        context.write("a.txt").write_text("x")
        context.check_keys(result)


def test_an_unreturned_key_is_named(tmp_path):
    with written(tmp_path) as context:
        context.write("a.txt").write_text("x")
        context.write("forgotten.txt").write_text("x")
        with pytest.raises(KeyContractError, match=r"'forgotten\.txt' was written but not returned"):
            context.check_keys(["a.txt"])
        context.check_keys(["a.txt"], {"forgotten.txt"})


def test_a_key_of_another_unicode_form_is_told_apart(tmp_path):
    with scope("", root=tmp_path):
        run.write("caf\u00e9").write_text("1")
        for result in ("cafe\u0301", ["x", {"k": "./cafe\u0301"}]):
            with pytest.raises(KeyContractError, match=r"another Unicode form.*'caf\\xe9'"):
                current().check_keys(result)


def test_a_returned_key_without_a_file_is_named(tmp_path):
    with written(tmp_path) as context:
        context.write("a.txt")
        with pytest.raises(KeyContractError, match=r"'a\.txt' was returned but there is no file"):
            context.check_keys("a.txt")


@pytest.mark.parametrize("prefix", ["", "p/q"])
def test_a_returned_key_is_a_file_within_the_root(tmp_path, prefix):
    root = tmp_path / "root"
    (tmp_path / "secret").write_text("s")
    (root / "d").mkdir(parents=True)
    (root / "real").write_text("r")
    makers = {
        "pipe": os.mkfifo,
        "out": lambda path: path.symlink_to(tmp_path / "secret"),
        "folder_out": lambda path: path.symlink_to(tmp_path),
        "device": lambda path: path.symlink_to(os.devnull),
    }
    for kind, make in makers.items():
        with written(root, prefix) as context:
            make(context.write(f"d/{kind}"))
            with pytest.raises(KeyContractError, match=f"'d/{kind}'.*(is a pipe|leads out of the root)"):
                context.check_keys(f"d/{kind}")
    with written(root, prefix) as context:
        context.write("d/in").symlink_to(root / "real")
        with scope("", root=tmp_path / "another"):
            run.write("x/y").write_text("1")
        context.check_keys(["d/in", "x/y"])


def test_a_returned_string_that_was_never_written_is_data(tmp_path):
    with written(tmp_path) as context:
        context.check_keys(["no", "key"])


def test_keys_of_nested_scopes_count_from_the_body_or_as_written(tmp_path):
    for returned in ("sub/x", "x", "sub/./x"):
        with written(tmp_path, "p") as context:
            with scope("sub"):
                run.write("x").write_text("1")
            context.check_keys(returned)


def test_progress_is_thinned_and_the_last_always_leaves():
    seen = []
    with job_context(prefix="", root="/", invocation_id="i", on_progress=lambda *a: seen.append(a)):
        for i in range(1000):
            with scope(""):
                run.progress(i, note="n")
    assert seen[0] == (0.0, None, "n")
    assert seen[-1] == (999.0, None, "n")
    assert len(seen) < 20


def test_progress_and_display_work_outside_a_job(capsys):
    run.progress(1, 2)
    run.display("shown")
    assert "shown" in capsys.readouterr().out


def test_the_job_says_who_it_is():
    stop = threading.Event()
    with job_context(prefix="p/q", root="/", invocation_id="i", attempt=2, fence=7, cancelled=stop.is_set):
        assert (run.prefix, run.invocation_id, run.attempt, run.fence) == ("p/q", "i", 2, 7)
        assert not run.cancelled
        stop.set()
        assert run.cancelled
    assert run.invocation_id is None


def test_tasks_and_to_thread_have_the_scope(tmp_path):
    async def main():
        with scope("s", root=tmp_path):
            return await asyncio.gather(asyncio.to_thread(lambda: run.prefix), asyncio.create_task(prefix()))

    async def prefix():
        return run.prefix

    assert asyncio.run(main()) == ["s", "s"]


def test_check_prefix_returns_the_normal_form():
    assert [check_prefix(p) for p in ("", "a/./b/", "a/../b")] == ["", "a/b", "b"]
    assert isinstance(current(), RunContext)
