"""`lakeshore migrate` between a file and a real PostgreSQL: exact both ways, however often it is killed."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import apsw
import moved_store
import postgres_server
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakeshore import Dispatch, DispatchError, LakeshoreError, PlaneUnavailable
from lakeshore.cli.app import run
from lakeshore.planes import moving
from lakeshore.planes.contract import Submission
from lakeshore.planes.moving_side import STAYS, TABLES
from lakeshore.planes.sqlite_moving import SqliteSide
from lakeshore.planes.store_tokens import Tokens
from lakeshore.planes.store_within import Within

psycopg = pytest.importorskip("psycopg", reason="needs the extra lakeshore[postgres]")
from lakeshore.planes.postgres import PostgresDispatch  # noqa: E402 - only where its driver is
from lakeshore.planes.postgres_moving import PostgresSide  # noqa: E402 - as above

LONG = os.environ.get("LONG_TESTS") == "1"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
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
def fresh():
    return postgres_server.shared().fresh()


@pytest.fixture
def cli(capsys):
    def call(*argv):
        code = run(["migrate", *map(str, argv)])
        return code, *capsys.readouterr()

    return call


def side(where, *, is_target=False):
    text = str(where)
    return (
        PostgresSide(text, is_target=is_target) if "://" in text else SqliteSide(where, is_target=is_target)
    )


def move(source, target, **options):
    here, there = side(source), side(target, is_target=True)
    try:
        return moving.move(here, there, **options)
    finally:
        here.close()
        there.close()


def as_shown(dsn):
    made = PostgresSide(dsn)
    made.close()
    return made.shown


# -- exact, both ways


def test_there_and_back_is_the_same_row_for_row(source, fresh, tmp_path, cli, filled):
    before = moved_store.rows_of_file(source)
    code, out, err = cli(source, fresh)
    assert code == 0, err
    assert "the same on both sides" in out
    assert f"is closed now: whoever comes there is told to go to {as_shown(fresh)}" in " ".join(out.split())
    with PostgresDispatch(fresh) as plane:
        assert Tokens(plane).find(filled[1]).ns == moved_store.ODD[:60]
        assert "nul \\x00 and ✓" in plane.get("failed")["error"]
    code, out, err = cli(fresh, tmp_path / "back.sqlite", "--json")
    assert code == 0, err
    assert json.loads(out)["source_closed"]
    after = moved_store.rows_of_file(tmp_path / "back.sqlite")
    spelt = [
        tuple(v.replace("\0", "\\x00") if isinstance(v, str) else v for v in row)
        for row in before["invocation"]
    ]
    assert moved_store.without_leases(after) == moved_store.without_leases(before | {"invocation": spelt})


def test_work_goes_on_in_postgres(source, fresh):
    with Dispatch(source) as plane:
        frames = list(plane.journal_read("succeeded", timeout=0))
    move(source, fresh)
    with PostgresDispatch(fresh) as plane:
        assert list(plane.journal_read("succeeded", timeout=0)) == frames
        assert plane.result("succeeded", timeout=0) == b"R" * 80_000
        assert plane.envelope("large") == b"B" * 100_000
        assert plane.submit("q", b"again", id="again", key=moved_store.ODD) == "keyed"
        assert plane.submit("q", b"e0", id="m0") == "m0"
        assert plane.journal_append("topic/" + moved_store.ODD[:20], None, b"next") == 40
        assert list(plane.journal_read("closed", timeout=0)) == [(7, b"last")]
        lapsed = plane.get("lapsed")
        with pytest.raises(DispatchError):
            plane.ack("lapsed", "worker ü", fence=lapsed["fence"] + 1)
        assert plane.claim("w", "w2").id == "lapsed"
        assert plane.get("lapsed")["losses"] == lapsed["losses"] + 1
        with pytest.raises(DispatchError):
            plane.ack("lapsed", "worker ü", fence=lapsed["fence"])
        assert [c.id for c in plane.claim_many("q", "w2", 3)] == ["m2", "m5", "m8"]
        plane.submit("q", b"", id="newest")
        high = dict(moved_store.rows_of_file(source)["high"])["invocation"]
        assert Within(plane, "default").row_of("newest") > high
        assert plane.journal_append("new topic", None, b"x") == 0
        plane.close()


def test_what_a_database_made_itself_comes_through(fresh, tmp_path):
    """Its journals are numbered otherwise than a file's, and pruned ones may leave frames about."""
    with PostgresDispatch(fresh) as plane:
        moved_store.fill(plane)
        frames = {id: list(plane.journal_read(id, timeout=0)) for id in ("succeeded", "failed", "closed")}
        plane.prune(older_than=0, states=("failed",))
        del frames["failed"]
    with psycopg.connect(fresh) as raw:
        raw.execute("DELETE FROM lakeshore.worker")
    move(fresh, tmp_path / "a.sqlite")
    first = moved_store.rows_of_file(tmp_path / "a.sqlite")
    assert all(0 < row[0] < 10_000 for row in first["journal"])
    with Dispatch(tmp_path / "a.sqlite") as plane:
        assert {id: list(plane.journal_read(id, timeout=0)) for id in frames} == frames
        assert plane.journal_append("new topic", None, b"x") == 0
    move(tmp_path / "a.sqlite", fresh)
    with PostgresDispatch(fresh) as plane:
        assert {id: list(plane.journal_read(id, timeout=0)) for id in frames} == frames
        assert next(iter(plane.journal_read("new topic", timeout=0))) == (0, b"x")
        assert plane.journal_append("newer topic", None, b"y") == 0
    move(fresh, tmp_path / "b.sqlite")
    second = moved_store.rows_of_file(tmp_path / "b.sqlite")
    assert moved_store.without_leases(first)["invocation"] == moved_store.without_leases(second)["invocation"]
    assert set(first["frame"]) < set(second["frame"])


@pytest.mark.parametrize("way", ["to a database", "between databases", "back to a file"])
def test_run_again_after_all_ended_and_was_pruned_brings_no_job_back(way, fresh, tmp_path, cli):
    source, target = tmp_path / "a.sqlite", fresh
    if way != "to a database":
        source, target = fresh, tmp_path / "b.sqlite"
        if way == "between databases":
            target = postgres_server.shared().fresh()

    def opened(where):
        return PostgresDispatch(where) if "://" in str(where) else Dispatch(where)

    with opened(source) as plane:
        plane.submit_many("q", [Submission(envelope=b"pay", id=f"j{n}") for n in range(3)])
    assert cli(source, target)[0] == 0
    with opened(target) as plane:
        for held in plane.claim_many("q", "w", 3):
            plane.journal_append(held.id, None, b"f")
            plane.ack(held.id, "w", fence=held.fence)
        plane.prune(older_than=0)
        assert plane.queues() == {}
    for words in ([], ["--keep"], ["--again"]):
        code, out, err = cli(source, target, *words)
        assert (code, err) == (0, "")
        assert "before. Nothing was changed" in " ".join(out.split())
    assert "there is nothing to do" in " ".join(cli(source, target, "--dry-run")[1].split())
    with opened(target) as plane:
        assert plane.queues() == {}


def test_a_database_made_anew_is_filled_again_only_when_told_so(source, fresh, cli):
    move(source, fresh)
    with psycopg.connect(fresh, autocommit=True) as raw:
        raw.execute("DROP SCHEMA lakeshore CASCADE")
    code, out, err = cli(source, fresh)
    assert code == 3, out
    assert "what is there now is another store" in " ".join(err.split())
    assert cli(source, fresh, "--again")[0] == 0
    with PostgresDispatch(fresh) as plane:
        assert plane.count("q") > 0


def test_one_database_to_another(source, fresh):
    move(source, fresh)
    second = postgres_server.shared().fresh()
    assert move(fresh, second).closed
    assert move(second, fresh).closed
    with PostgresDispatch(fresh) as plane:
        assert plane.count("q") > 0
    with pytest.raises(LakeshoreError):
        PostgresDispatch(second)


def test_one_namespace(source, fresh, filled):
    odd = moved_store.ODD[:60]
    move(source, fresh, ns=odd, keep=True)
    with PostgresDispatch(fresh) as plane:
        assert plane.queues() == {}
        assert Within(plane, odd).queues() == {"q": {"queued": 7}}
        assert Tokens(plane).find(filled[1]) is not None
    second = postgres_server.shared().fresh()
    there = move(fresh, second, ns=odd, keep=True)
    assert there.copied == sum(rows for rows, _ in there.rows.values()) > 0


def test_every_table_and_column_is_moved_or_said_to_stay(fresh):
    """One that is added to the schema fails here until it is moved, or has a reason to stay."""
    PostgresDispatch(fresh).close()
    with psycopg.connect(fresh) as raw:
        found: dict[str, set[str]] = {}
        for table, column in raw.execute(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE n.nspname = 'lakeshore' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
        ):
            found.setdefault(table, set()).add(column)
    moved = {table.name: set(table.columns) for table in TABLES}
    assert {name: columns for name, columns in found.items() if name not in STAYS} == moved


# -- closed


def test_a_database_that_was_moved_is_closed_to_whoever_has_it_open(source, fresh, tmp_path):
    move(source, fresh)
    plane = PostgresDispatch(fresh)
    move(fresh, tmp_path / "back.sqlite")
    for verb in (
        lambda: plane.submit("q", b"", id="late"),
        lambda: plane.claim("q", "w"),
        lambda: plane.claim("nothing here", "w"),
        lambda: plane.cancel("m0"),
        lambda: plane.journal_append("t", None, b""),
    ):
        with pytest.raises(DispatchError, match=r"was moved to .*back\.sqlite on \d{4}-\d\d-\d\d"):
            verb()
    assert plane.get("m0")["state"] == "queued"
    plane.close()
    with pytest.raises(PlaneUnavailable, match=r"open: database .*: this store was moved to .*back\.sqlite"):
        PostgresDispatch(fresh)


def test_a_database_in_use_is_refused(source, fresh, tmp_path):
    move(source, fresh)
    with PostgresDispatch(fresh) as plane:
        held = plane.claim("q", "busy", lease=60)
        with pytest.raises(DispatchError, match=rf"1 running: {held.id} \('q', held by 'busy'\); 1 at work"):
            move(fresh, tmp_path / "back.sqlite")
        plane.ack(held.id, "busy")
    move(fresh, tmp_path / "back.sqlite", lapse=True)


def test_a_target_in_use_and_one_store_by_two_addresses_are_refused(source, fresh):
    with PostgresDispatch(fresh) as plane:
        plane.submit("q", b"", id="mine")
    with pytest.raises(DispatchError, match=r"is not empty \(1 invocations\)"):
        move(source, fresh)
    with pytest.raises(DispatchError, match="are one store"):
        move(fresh, fresh + "&connect_timeout=7")
    with PostgresDispatch(fresh) as plane:
        assert plane.count("q") == 1


# -- killed


KILLER = """
    import os, signal, sys
    from pathlib import Path
    from lakeshore.planes import moving
    from lakeshore.planes.postgres_moving import PostgresSide
    from lakeshore.planes.sqlite_moving import SqliteSide

    moving._BATCH_ROWS = 25
    points, at = 0, int(sys.argv[3])

    def point():
        global points
        points += 1
        if points == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def killing(verb):
        def call(*args):
            point()
            answer = verb(*args)
            point()
            return answer
        return call

    def side(text, is_target):
        made = PostgresSide(text, is_target=is_target) if "://" in text else SqliteSide(
            Path(text), is_target=is_target)
        for name in ("put", "close_for", "finish"):
            setattr(made, name, killing(getattr(made, name)))
        return made

    here, there = side(sys.argv[1], False), side(sys.argv[2], True)
    moved = moving.move(here, there)
    here.close()
    there.close()
    print(points)
"""


def killed_at(script, source, target, point):
    """Move, and die at a point; returns how many there were, None when it died."""
    done = subprocess.run(
        [sys.executable, script, str(source), str(target), str(point)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("back", [False, True], ids=["to_postgres", "to_a_file"])
def test_killed_at_every_step_it_goes_on(filled, fresh, tmp_path, back):
    """At no point do both take jobs; run again it is whole, and the same as one that was never killed."""
    script = tmp_path / "killer.py"
    script.write_text(textwrap.dedent(KILLER))
    wanted = None
    if back:
        move(shutil.copyfile(filled[0], tmp_path / "start.sqlite"), fresh)
    points = list(range(1, 100)) if LONG else [9, 15, 16, 17, 18]
    for point in points:
        here = fresh if back else shutil.copyfile(filled[0], tmp_path / f"{point}.sqlite")
        there = tmp_path / f"{point}.sqlite" if back else postgres_server.shared().fresh()
        through = killed_at(script, here, there, point)
        closed = [where for where in (here, there) if not looks_open(where)]
        assert closed, f"both are open after a kill at {point}"
        if through is None:
            move(here, there)
        found = rows_of(there, tmp_path)
        wanted = wanted or found
        assert found == wanted, point
        assert looks_open(there)
        assert not looks_open(here)
        if back:
            move(there, here)  # for the next point
        if through is not None:
            break


def looks_open(where):
    """Whether a plane could take jobs there, without leaving anything."""
    if "://" not in str(where) and not where.exists():
        return False
    try:
        plane = PostgresDispatch(str(where)) if "://" in str(where) else Dispatch(where)
    except LakeshoreError:
        return False
    with plane:
        return bool(plane.count("q"))


def rows_of(where, tmp_path):
    """Return all rows of a store in the form in which engines agree."""
    made = side(where)
    try:
        made.look()
        return [
            row for table in TABLES for row in moving.plain(table, made.rows(table, moving.Selection()))
        ] + [made.high()]
    finally:
        made.close()


@pytest.mark.parametrize("rows", [200_000 if LONG else 3_000])
def test_killed_at_any_moment_it_goes_on(tmp_path, rows):
    """The command itself, killed by the clock, several times in one move."""
    source = tmp_path / "source.sqlite"
    with Dispatch(source, durable=False) as plane:
        plane.submit_many("q", [Submission(envelope=b"e" * 50, id=f"j{n}") for n in range(rows)])
        for n in range(0, rows, 100):
            plane.journal_extend(f"j{n}", [b"frame %d" % k for k in range(100)])
    dsn = postgres_server.shared().fresh()
    command = [sys.executable, "-m", "lakeshore.cli", "migrate", str(source), dsn]
    pause = 0.0
    while True:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.stderr.readline()  # it is at work
        try:
            out, err = running.communicate(timeout=pause)
            break
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
            pause += 0.12 if LONG else 0.04 + pause
    assert running.returncode == 0, err
    with PostgresDispatch(dsn) as plane:
        assert plane.count("q") == rows
        assert len(plane.invocations(limit=rows)) == rows


def test_ctrl_c_says_how_to_go_on(tmp_path):
    source = tmp_path / "source.sqlite"
    with Dispatch(source, durable=False) as plane:
        plane.submit_many("q", [Submission(envelope=b"e", id=f"j{n}") for n in range(15_000)])
    dsn = postgres_server.shared().fresh()
    command = [sys.executable, "-m", "lakeshore.cli", "migrate", str(source), dsn]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "copying" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert "stopped" in err
    assert "the same command, given again" in err
    assert running.returncode == 130
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("kind", ["file", "database"])
def test_ctrl_c_at_the_switch_is_held_once_and_told_as_it_is(
    cli, source, tmp_path, monkeypatch, kind, presses
):
    """Between the two steps both are closed: the first Ctrl-C waits for them, the second is told so."""
    target = tmp_path / "b.sqlite" if kind == "file" else postgres_server.shared().fresh()
    engine = SqliteSide if kind == "file" else PostgresSide
    finish = engine.finish

    def pressed(side, high):
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        finish(side, high)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "finish", pressed)
        code, out, err = cli(source, target)
    assert "Ctrl-C again breaks that off" in err
    with pytest.raises(PlaneUnavailable, match="was moved to"):
        Dispatch(source)
    if presses == 1:
        assert code == 0
        assert "the same on both sides" in out
    else:
        assert code == 130
        assert "not open yet: nobody can work until the same command, given again" in " ".join(err.split())
        assert cli(source, target)[0] == 0
    with Dispatch(target) if kind == "file" else PostgresDispatch(target) as plane:
        assert plane.count("q") > 0


def test_ctrl_c_once_it_is_through_does_not_hide_the_report(cli, source, tmp_path, monkeypatch):
    close = SqliteSide.close

    def pressed(side):
        close(side)
        if side._is_target:
            raise KeyboardInterrupt

    monkeypatch.setattr(SqliteSide, "close", pressed)
    code, out, _ = cli(source, tmp_path / "b.sqlite")
    assert code == 0
    assert "the same on both sides" in out


def test_ctrl_c_while_it_waits_has_done_nothing(cli, source, tmp_path, monkeypatch):
    with Dispatch(source) as plane:
        plane.claim("q", "busy", lease=60)

    def pressed(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(moving.time, "sleep", pressed)
    code, out, err = cli(source, tmp_path / "b.sqlite", "--wait", "60")
    assert code == 130
    assert "is as it was" in " ".join(err.split())
    assert not (tmp_path / "b.sqlite").exists()


# -- hostile values


@pytest.mark.parametrize("kind", ["file", "database"])
@pytest.mark.parametrize("gone", ["DELETE FROM {}", "DROP TABLE {} CASCADE"])
def test_a_closed_store_whose_note_is_gone_is_refused_everywhere(source, tmp_path, capsys, kind, gone):
    new = tmp_path / "new.sqlite"
    if kind == "file":
        move(source, tmp_path / "b.sqlite")
        altered = source
        raw = apsw.Connection(str(source))
        raw.execute(gone.removesuffix(" CASCADE").format("moving"))
        raw.close()
    else:
        altered = postgres_server.shared().fresh()
        move(source, altered)
        move(altered, tmp_path / "b.sqlite")
        with psycopg.connect(altered, autocommit=True) as raw:
            raw.execute(gone.format("lakeshore.moving"))
    before = moved_store.rows_of_file(altered) if kind == "file" else None
    for words in (
        ["db", "status", "--store", altered],
        ["db", "migrate", "--store", altered],
        ["migrate", altered, new],
        ["migrate", tmp_path / "b.sqlite", altered],
        ["ls", "--plane", altered],
        ["doctor", "--plane", altered],
    ):
        assert run([*map(str, words)]) in (1, 3)
        out, err = capsys.readouterr()
        assert "its note of where it was moved is gone" in " ".join((out + err).split()), words
        assert "fault of lakeshore" not in out + err
    assert not new.exists()
    assert before is None or moved_store.rows_of_file(altered) == before


_TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20).filter(
    lambda text: len(text.encode()) <= 255
)
_JOB = st.fixed_dictionaries(
    {
        "envelope": st.binary(max_size=50),
        "key": st.none() | _TEXT,
        "priority": st.floats(allow_nan=False, allow_infinity=False)
        | st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308, -1.7976931348623157e308, math.pi]),
        "parent": st.none() | st.sampled_from(["p", "A-_9"]),
        "delay": st.sampled_from([0.0, 1e-6, 3e8]),
    }
)


@settings(max_examples=100 if LONG else 5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    jobs=st.lists(st.tuples(_TEXT, _TEXT, _JOB), max_size=6),
    errors=st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=30), max_size=3),
    frames=st.lists(
        st.tuples(_TEXT, st.integers(0, 2**62 - 2) | st.none(), st.binary(max_size=20)), max_size=6
    ),
)
def test_whatever_a_store_holds_comes_through(tmp_path_factory, jobs, errors, frames):
    folder = tmp_path_factory.mktemp("values")
    with Dispatch(folder / "a.sqlite", durable=False) as plane:
        for n, (ns, queue, job) in enumerate(jobs):
            Within(plane, ns).submit(queue, id=f"j{n}", **job)
        for n, error in enumerate(errors):
            plane.submit("errors", b"", id=f"e{n}")
            plane.claim("errors", "w", lease=0)
            plane.nack(f"e{n}", "w", error=error, retry=False)
        for journal, seq, body in frames:
            plane.journal_append(journal, seq, body)
    moved_store.clear_presence(folder / "a.sqlite")
    before = moved_store.without_leases(moved_store.rows_of_file(folder / "a.sqlite"))
    dsn = postgres_server.shared().fresh()
    move(folder / "a.sqlite", dsn)
    move(dsn, folder / "b.sqlite")
    after = moved_store.without_leases(moved_store.rows_of_file(folder / "b.sqlite"))
    spelt = [
        tuple(v.replace("\0", "\\x00") if isinstance(v, str) else v for v in row)
        for row in before["invocation"]
    ]
    assert after == before | {"invocation": spelt, "high": after["high"]}
    highs = {"invocation": 0, "journal": 0} | dict(before["high"])
    assert dict(after["high"]) == highs


# -- the command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://user:hush@host:1/x", "b.sqlite"], "SOURCE http://…: is a control plane"),
        (["a.sqlite", "https://host"], "TARGET https://…: is a control plane"),
        (
            ["a.sqlite", "mysql://user:hush@host/x"],
            "TARGET mysql://…: wants a SQLite file, or postgresql://…",
        ),
        (["a.sqlite", ":memory:"], "TARGET ':memory:': wants a SQLite file"),
        (["a.sqlite", "postgresql://user:hush@host:x/d"], "host or port cannot be told"),
        (["a.sqlite", "b.sqlite", "--running", "stop"], "--running 'stop': wants refuse or lapse"),
        (["a.sqlite", "b.sqlite", "--namespace", "x"], "Give --keep too"),
        (["a.sqlite", "b.sqlite", "--namespace", "x\n", "--keep"], "namespace"),
        (["a.sqlite", "b.sqlite", "--wait", "-1"], "--wait"),
        (["a.sqlite"], "TARGET"),
    ],
)
def test_bad_input_is_refused_before_anything_is_touched(cli, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*words)
    assert code == 2
    assert said in err
    assert "hush" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_never_shown(cli, tmp_path, source):
    code, out, err = cli(source, "postgresql://me:hush%40@127.0.0.1:1/db?connect_timeout=2")
    assert code == 3
    assert "hush" not in out + err


def test_a_dry_run_touches_nothing(cli, source, fresh):
    before = source.read_bytes()
    code, out, err = cli(source, fresh, "--dry-run")
    assert code == 0, err
    assert "can be moved to" in out
    assert source.read_bytes() == before
    with PostgresDispatch(fresh) as plane:
        assert plane.queues() == {}
    told = json.loads(cli(source, fresh, "--dry-run", "--json")[1])
    assert told["rows"]["invocation"] > 30
    assert told["running"] == told["workers"] == []
