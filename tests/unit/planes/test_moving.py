"""Moving a store: what is moved, what is refused, and that nothing can run twice; files only."""

from __future__ import annotations

import os
import shutil
import time

import apsw
import moved_store
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore import Dispatch, DispatchError, PlaneUnavailable
from lakeshore.planes import moving
from lakeshore.planes.moving_side import CLOSED, STAYS, TABLES, Gate
from lakeshore.planes.sqlite_moving import SqliteSide
from lakeshore.planes.store_tokens import Tokens
from lakeshore.planes.store_within import RESERVED, Within


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A file with something of everything, at which nobody works; and a token of it."""
    path = tmp_path_factory.mktemp("filled") / "a.sqlite"
    with Dispatch(path) as plane:
        token = moved_store.fill(plane)
    moved_store.clear_presence(path)
    return path, token


@pytest.fixture
def source(filled, tmp_path):
    path = tmp_path / "source.sqlite"
    shutil.copyfile(filled[0], path)
    path.chmod(0o600)
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target.sqlite"


def move(source, target, **options):
    here, there = SqliteSide(source), SqliteSide(target, is_target=True)
    try:
        return moving.move(here, there, **options)
    finally:
        here.close()
        there.close()


# -- what is moved


def test_every_table_and_column_is_moved_or_said_to_stay(tmp_path):
    """One that is added to the schema fails here until it is moved, or has a reason to stay."""
    with Dispatch(tmp_path / "a.sqlite"):
        raw = apsw.Connection(str(tmp_path / "a.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
        names = [row[0] for row in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = {
            name: {row[0] for row in raw.execute("SELECT name FROM pragma_table_info(?)", (name,))}
            for name in names
        }
        raw.close()
    moved = {table.name: set(table.columns) for table in TABLES}
    assert {name: columns[name] for name in names if name not in STAYS} == moved


def test_a_copy_is_the_same_row_for_row(source, target):
    before = moved_store.rows_of_file(source)
    moved = move(source, target)
    after = moved_store.rows_of_file(target)
    spelt = [
        tuple(v.replace("\0", "\\x00") if isinstance(v, str) else v for v in row)
        for row in before["invocation"]
    ]
    assert moved_store.without_leases(after) == moved_store.without_leases(before | {"invocation": spelt})
    assert sum(rows for rows, _ in moved.rows.values()) == moved.copied
    assert moved.removed == 0


def test_work_goes_on_where_it_was(source, target, filled):
    with Dispatch(source) as plane:
        other = Within(plane, moved_store.ODD[:60])
        frames = list(plane.journal_read("succeeded", timeout=0))
        row = other.row_of("said")
    moved_store.clear_presence(source)
    move(source, target)
    with Dispatch(target) as plane:
        assert list(plane.journal_read("succeeded", timeout=0)) == frames
        assert plane.result("succeeded", timeout=0) == b"R" * 80_000
        assert plane.envelope("large") == b"B" * 100_000
        assert plane.submit("q", b"again", id="again", key=moved_store.ODD) == "keyed"  # its key is known
        assert plane.submit("q", b"e0", id="m0") == "m0"  # so is an id
        with pytest.raises(DispatchError):
            plane.submit("q", b"another", id="m0")
        assert plane.journal_append("topic/" + moved_store.ODD[:20], None, b"next") == 40
        assert plane.journal_append("topic/" + moved_store.ODD[:20], 3, b"trimmed") == 3
        assert list(plane.journal_read("closed", timeout=0)) == [(7, b"last")]
        lapsed = plane.get("lapsed")
        with pytest.raises(DispatchError):
            plane.ack("lapsed", "worker ü", fence=lapsed["fence"] + 1)
        assert plane.claim("w", "w2").id == "lapsed"
        assert plane.get("lapsed")["losses"] == lapsed["losses"] + 1
        assert plane.get("lapsed")["fence"] == lapsed["fence"] + 1
        assert [c.id for c in plane.claim_many("q", "w2", 3)] == ["m2", "m5", "m8"]
        assert Tokens(plane).find(filled[1]).ns == moved_store.ODD[:60]
        assert Within(plane, moved_store.ODD[:60]).row_of("said") == row
        plane.submit("q", b"", id="newest")
        high = dict(moved_store.rows_of_file(source)["high"])["invocation"]
        assert Within(plane, "default").row_of("newest") > high


def test_run_twice_changes_nothing(source, target):
    move(source, target)
    before = moved_store.rows_of_file(target)
    assert move(source, target).already
    assert moved_store.rows_of_file(target) == before


def empty(path):
    """Take out every row, as pruning does once all has ended and is old."""
    raw = apsw.Connection(str(path))
    raw.execute("DELETE FROM invocation; DELETE FROM payload; DELETE FROM frame; DELETE FROM journal")
    raw.close()


def test_run_again_after_all_ended_and_was_pruned_brings_no_job_back(source, target):
    move(source, target)
    empty(target)
    assert move(source, target).already
    assert move(source, target, again=True).already
    with Dispatch(target) as plane:
        assert plane.queues() == {}


def test_a_kept_copy_that_ended_and_was_pruned_is_filled_again_only_when_told_so(source, target):
    move(source, target, keep=True)
    empty(target)
    for keep in (True, False):
        with pytest.raises(DispatchError, match=r"is empty, but held jobs before .*--again"):
            move(source, target, keep=keep)
    with Dispatch(target) as plane:
        assert plane.queues() == {}
    assert move(source, target, again=True).closed
    with Dispatch(target) as plane:
        assert plane.count("q", state="queued") > 0


@pytest.mark.parametrize("then", ["nothing", "an empty plane", "another job"])
def test_a_target_that_was_made_anew_is_filled_again_only_when_told_so(source, target, then):
    move(source, target)
    for each in target.parent.glob("target.sqlite*"):
        each.unlink()
    if then != "nothing":
        with Dispatch(target) as plane:
            if then == "another job":
                plane.submit("q", b"", id="mine")
    with pytest.raises(
        DispatchError, match=r"was moved to .* before, and what is there now is another store"
    ):
        move(source, target)
    if then == "another job":
        with pytest.raises(DispatchError, match="is in use already"):
            move(source, target, again=True)
    else:
        assert move(source, target, again=True).copied > 30


def test_a_closed_store_that_was_put_back_after_the_way_back_is_asked_about(source, target):
    """Of two stores that each say they were moved to the other one is older than what ran since."""
    move(source, target)
    old = source.read_bytes()
    move(target, source)
    empty(source)
    source.write_bytes(old)
    with pytest.raises(DispatchError, match="what is there now is another store"):
        move(source, target)
    with pytest.raises(PlaneUnavailable, match="was moved to"):
        Dispatch(target)


def test_a_copy_that_was_kept_is_moved_later(source, target):
    assert not move(source, target, keep=True).closed
    again = move(source, target)
    assert again.closed
    assert again.copied == 0


def test_a_copy_that_went_on_is_no_target(source, target):
    move(source, target, keep=True)
    with Dispatch(target) as plane:
        plane.cancel("m1")
    with pytest.raises(
        DispatchError, match=r"is in use already, and differs .*invocations of namespace 'default'"
    ):
        move(source, target)
    with Dispatch(source) as plane:  # neither is closed
        assert plane.count("q") > 0


def test_it_can_be_moved_back(source, target):
    move(source, target)
    with Dispatch(target) as plane:
        plane.cancel("m1")
        plane.submit("q", b"", id="made_there")
        plane.journal_append("succeeded.log", None, b"late")
    back = move(target, source)
    assert 0 < back.copied < 10
    with Dispatch(source) as plane:
        assert plane.get("made_there")["state"] == "queued"
        assert plane.get("m1")["state"] == "cancelled"
    with pytest.raises(PlaneUnavailable):
        Dispatch(target)


def test_one_namespace_goes_with_what_servers_keep_of_it(source, target, filled):
    odd = moved_store.ODD[:60]
    with Dispatch(source) as plane:
        ours = Tokens(plane).create(ns="default", role="producer")[0]
    move(source, target, ns=odd, keep=True)
    with Dispatch(target) as plane:
        assert plane.queues() == {}
        assert Within(plane, odd).queues() == {"q": {"queued": 7}}
        assert Tokens(plane).find(filled[1]) is not None
        assert Tokens(plane).find(ours) is None
        row = Within(plane, odd).row_of("said")
        assert [each for each in journals(target, RESERVED) if each.endswith(f"-row-{row}")]
    with Dispatch(source) as plane:
        assert plane.count("q") > 0


def journals(path, ns):
    raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [row[0] for row in raw.execute("SELECT id FROM journal WHERE ns = ?", (ns,))]
    finally:
        raw.close()


# -- nothing runs twice


def test_the_source_is_closed_to_whoever_has_it_open(source, target):
    plane = Dispatch(source)
    move(source, target)
    for verb in (
        lambda: plane.submit("q", b"", id="late"),
        lambda: plane.claim("q", "w"),
        lambda: plane.claim("nothing here", "w"),
        lambda: plane.cancel("m0"),
        lambda: plane.journal_append("t", None, b""),
        lambda: plane.requeue("failed"),
    ):
        with pytest.raises(DispatchError, match=r"was moved to .*target\.sqlite.* on \d{4}-\d\d-\d\d"):
            verb()
    assert plane.get("m0")["state"] == "queued"  # to look is allowed
    plane.close()
    with pytest.raises(
        PlaneUnavailable, match=r"open: .*source\.sqlite': this store was moved to .*target\.sqlite"
    ):
        Dispatch(source)


def test_a_target_is_closed_until_all_of_it_is_there(source, target, monkeypatch):
    there = SqliteSide(target, is_target=True)

    def interrupted(high):
        raise KeyboardInterrupt

    monkeypatch.setattr(there, "finish", interrupted)
    here = SqliteSide(source)
    with pytest.raises(KeyboardInterrupt):
        moving.move(here, there, keep=True)
    here.close()
    there.close()
    with pytest.raises(PlaneUnavailable, match="is being filled from"):
        Dispatch(target)
    with Dispatch(source) as plane:
        plane.submit("q", b"", id="meanwhile")
        plane.cancel("m3")
    again = move(source, target)
    assert (again.copied, again.removed) == (2, 1)
    with Dispatch(target) as plane:
        assert plane.get("meanwhile")["state"] == "queued"


def test_nobody_writes_to_the_source_meanwhile(source, target):
    plane, wrote = Dispatch(source), []
    here, there = SqliteSide(source), SqliteSide(target, is_target=True)
    seen = []

    def show(what, done, total):
        raw = apsw.Connection(str(source))
        try:
            raw.execute("BEGIN IMMEDIATE")
            wrote.append(what)
        except apsw.BusyError:
            seen.append(what)
        finally:
            raw.close()

    moving._SHOWN_EVERY, kept = 10, moving._SHOWN_EVERY
    try:
        moving.move(here, there, show=show)
    finally:
        moving._SHOWN_EVERY = kept
        here.close()
        there.close()
        plane.close()
    assert set(seen) == {"copying", "verifying"}
    assert not wrote


# -- what is refused


def test_a_source_in_use_is_refused_and_waited_for(source, target):
    with Dispatch(source) as plane:
        held = plane.claim("q", "busy", lease=60)
        with pytest.raises(
            DispatchError, match=rf"in use: 1 running: {held.id} \('q', held by 'busy'\); 1 at work"
        ):
            move(source, target)
        assert not target.exists()
        began = time.monotonic()
        with pytest.raises(DispatchError, match="in use"):
            move(source, target, wait=0.3)
        assert time.monotonic() - began >= 0.3
        plane.ack(held.id, "busy")
    assert move(source, target, wait=5, is_gone=lambda worker: worker["pid"] == os.getpid()).closed


def test_running_jobs_run_again_when_told_so(source, target):
    with Dispatch(source) as plane:
        held = plane.claim("q", "busy", lease=60)
        move(source, target, lapse=True)
        with pytest.raises(DispatchError):
            plane.ack(held.id, "busy", fence=held.fence)
    with Dispatch(target) as plane:
        assert {plane.claim("q", "w").id for _ in range(1)} == {held.id}
        assert plane.get(held.id)["losses"] == 1


def test_targets_that_are_not_empty_are_refused_untouched(source, target, tmp_path):
    with Dispatch(target) as plane:
        plane.submit("q", b"", id="mine")
    before = target.read_bytes()
    with pytest.raises(DispatchError, match=r"is not empty \(1 invocations\).* Name a new file"):
        move(source, target)
    assert target.read_bytes() == before
    (tmp_path / "foreign").write_text("text\n" * 100)
    with pytest.raises(PlaneUnavailable):
        move(source, tmp_path / "foreign")
    with pytest.raises(PlaneUnavailable, match="does not exist"):
        move(source, tmp_path / "no" / "folder")
    with pytest.raises(DispatchError, match="are one store"):
        move(source, source)
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "hard").hardlink_to(source)
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("link", "hard", "folder/source.sqlite", "folder/hard"):
        with pytest.raises(DispatchError, match="are one store"):
            move(source, tmp_path / name)
        with pytest.raises(DispatchError, match="are one store"):
            move(tmp_path / name, source)
    with pytest.raises(PlaneUnavailable, match="no file"):
        move(tmp_path / "nothing", target)
    with Dispatch(source) as plane:
        assert plane.count("q") > 0


def test_an_empty_plane_is_a_target(source, target):
    Dispatch(target).close()
    assert move(source, target).closed


def test_half_a_copy_is_no_source_and_no_target_of_another(source, target, tmp_path):
    there = SqliteSide(target, is_target=True)
    there.close_for(Gate("from", str(source.resolve()), None, time.time()))
    there.close()
    with pytest.raises(DispatchError, match="holds half of a copy"):
        move(target, tmp_path / "new.sqlite")
    Dispatch(tmp_path / "another.sqlite").close()
    with pytest.raises(DispatchError, match="is being filled from"):
        move(tmp_path / "another.sqlite", target)
    move(source, target)
    with pytest.raises(DispatchError, match="was moved to"):
        move(source, tmp_path / "new.sqlite")


def test_a_target_that_was_taken_meanwhile_is_refused(source, target, tmp_path):
    gate = Gate("from", str(source.resolve()), None, time.time())
    there = SqliteSide(target, is_target=True)
    assert there.look() is None
    with Dispatch(target) as plane:
        plane.submit("q", b"", id="mine")
    with pytest.raises(DispatchError, match="was taken by another program"):
        there.close_for(gate)
    there.close()
    with Dispatch(target) as plane:
        assert plane.count("q") == 1
    first, second = (SqliteSide(tmp_path / "new.sqlite", is_target=True) for _ in range(2))
    first.close_for(gate)
    with pytest.raises(DispatchError, match="was taken by another program"):
        second.close_for(Gate("from", "/another.sqlite", None, time.time()))
    first.close()
    second.close()


def test_a_source_of_an_older_version_is_refused(source, target, monkeypatch):
    monkeypatch.setattr("lakeshore.planes.sqlite_moving.migrations.newest", lambda engine: 9)
    with pytest.raises(PlaneUnavailable, match=r"schema 1, and 9 is the newest.*lakeshore db migrate"):
        move(source, target)


def test_a_gate_is_a_version_that_no_plane_has():
    from lakeshore.planes import migrations

    assert max(migrations.newest("sqlite"), migrations.newest("postgres")) < CLOSED


# -- the walk


_KEYS = st.dictionaries(st.integers(0, 30), st.sampled_from("ab"), max_size=12)


@given(source=_KEYS, target=_KEYS)
def test_the_differences_make_the_one_the_other(source, target):
    def rows(table):
        return [("ns", key, value) for key, value in sorted(table.items())]

    found = dict(target)
    for old, new in moving.differences(rows(source), iter(rows(target)), 1):
        if old is not None:
            del found[old[0]]
        if new is not None:
            assert new[1] not in found
            found[new[1]] = new[2]
    assert found == source


@given(same=_KEYS)
def test_what_is_the_same_is_left_alone(same):
    rows = [("ns", key, value) for key, value in sorted(same.items())]
    assert list(moving.differences(rows, iter(rows), 1)) == []
