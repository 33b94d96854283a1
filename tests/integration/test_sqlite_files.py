"""What the file plane does with files: whose they are, what is refused and how, full and read-only disks."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakeshore import Dispatch, DispatchError, PlaneUnavailable
from lakeshore.errors import CaptureError
from lakeshore.planes import migrations, sqlite, sqlite_files
from lakeshore.planes.sqlite_files import make_home
from lakeshore.planes.sqlite_schema import APPLICATION_ID, tables_of_schema

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else or to mount")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def as_nobody(code: str, *arguments: object) -> str:
    """Run Python as a user without rights, and return what it printed."""
    # That user may not read this interpreter's files, so all that is imported late is imported before.
    warm = (
        "import os, tempfile\nfrom lakeshore import Dispatch\n"
        "with tempfile.TemporaryDirectory() as d:\n    Dispatch(d + '/p').close()\n"
    )
    head = f"{warm}os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- whose file it is -----------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_files_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    home, before = tmp_path / "home" / "deep", os.umask(umask & 0o077)
    home.parent.mkdir()
    os.umask(umask)
    try:
        make_home(home)
        with Dispatch(home / "p.sqlite") as plane:
            plane.submit("gpu", b"e", id="a")
            plane.claim("none", "w", wait=0.01)
            made = {path.name: mode(path) for path in home.iterdir()}
    finally:
        os.umask(before)
    assert mode(home) == 0o700
    assert made.pop("p.sqlite-bells") == 0o700
    assert set(made) >= {"p.sqlite", "p.sqlite-wal", "p.sqlite-shm", "p.sqlite-writers"}
    assert set(made.values()) == {0o600}


def test_trust_follows_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    tmp_path.chmod(0o700)
    with Dispatch(path) as plane:
        assert plane.trusted
        for bad in (0o620, 0o602):
            path.chmod(bad)
            assert not plane.trusted
        path.chmod(0o644)
        assert plane.trusted, "readable by others is fine"
        for folder, trusted in ((0o770, False), (0o707, False), (0o1777, True), (0o755, True)):
            tmp_path.chmod(folder)
            assert plane.trusted is trusted, oct(folder)
    assert Dispatch(":memory:").trusted


@as_root
def test_another_users_file_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    with Dispatch(path) as plane:
        os.chown(path, NOBODY, NOBODY)
        assert not plane.trusted
        os.chown(path, 0, 0)
        os.chown(tmp_path, NOBODY, NOBODY)
        assert not plane.trusted


# -- who else was there first: a plane in a directory such as /tmp -------------------


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    """Return the path of a plane in a directory that everybody may put files into."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder / "p.sqlite"


def plant(path: Path, how: str) -> None:
    """Put at `path` what a stranger may have put there."""
    if how == "link":
        (path.parent.parent / "target").write_bytes(b"")
        path.symlink_to(path.parent.parent / "target")
        return
    path.touch()
    if how == "second name":
        (path.parent.parent / f"other{path.name}").hardlink_to(path)
    elif how == "mode":
        path.chmod(0o666)
    else:
        os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("how", ["link", "second name", "mode", pytest.param("owner", marks=as_root)])
@pytest.mark.parametrize("when", ["before the first open", "before a later one"])
def test_what_sqlite_would_read_of_a_strangers_is_refused(
    sticky: Path, suffix: str, how: str, when: str
) -> None:
    if when == "before a later one":
        Dispatch(sticky).close()
    plant(Path(f"{sticky}{suffix}"), how)
    with pytest.raises(PlaneUnavailable, match=rf"p\.sqlite{suffix}'.*directory of your own"):
        Dispatch(sticky)
    Path(f"{sticky}{suffix}").unlink()
    with Dispatch(sticky) as plane:
        assert plane.trusted
        plane.submit("gpu", b"e", id="a")


@as_root
def test_a_strangers_file_that_comes_while_a_plane_opens_is_refused(
    sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raced(sqlite.Connection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            plant(Path(f"{sticky}-wal"), "owner")

    Dispatch(sticky).close()
    monkeypatch.setattr(sqlite, "Connection", Raced)
    with pytest.raises(PlaneUnavailable, match=r"p\.sqlite-wal' belongs to another user"):
        Dispatch(sticky)


@as_root
def test_a_plane_stops_being_trusted_when_its_wal_is_a_strangers(sticky: Path) -> None:
    with Dispatch(sticky) as plane:
        assert plane.trusted
        os.chown(f"{sticky}-wal", NOBODY, NOBODY)
        assert not plane.trusted


@pytest.mark.parametrize("how", ["link", pytest.param("owner", marks=as_root)])
def test_a_strangers_side_file_orders_nobody(sticky: Path, how: str) -> None:
    side = Path(f"{sticky}-writers")
    plant(side, how)
    with Dispatch(sticky) as plane:
        plane.submit("gpu", b"e", id="a")
        assert plane._turn._fd == -1
        assert plane.trusted, "the side file holds nothing"
    assert side.lstat().st_size == 0 or side.is_symlink()


def test_a_database_may_be_a_link_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "links" / "p.sqlite", tmp_path / "real" / "r.sqlite"
    Dispatch(real).close()
    link.symlink_to(real)
    with Dispatch(link) as plane, Dispatch(real) as same:
        assert plane.trusted
        plane.submit("gpu", b"e", id="a")
        assert same.count("gpu") == 1
        assert sorted(path.name for path in link.parent.iterdir()) == ["p.sqlite"], (
            "its parts lie beside the file"
        )
        for folder in (link.parent, real.parent):
            folder.chmod(0o777)
            assert not plane.trusted, folder
            folder.chmod(0o700)
        if os.geteuid() == 0:
            os.lchown(link, NOBODY, NOBODY)
            assert not plane.trusted, "a stranger says where the file is"
    real.unlink()
    with pytest.raises(PlaneUnavailable, match="is not a file"):
        Dispatch(link)
    assert not real.exists()


# -- what is refused --------------------------------------------------------------


def test_a_foreign_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE t (a)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(PlaneUnavailable, match=r"theirs\.db.*another program"):
        Dispatch(path)
    assert path.read_bytes() == before
    assert not (tmp_path / "theirs.db-wal").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not a database at all, " * 100, "no lakeshore database"),
        (os.urandom(8192), "no lakeshore database"),
        (b"SQLite format 3\0" + b"\xff" * 4096, "database"),
    ],
    ids=["text", "random", "forged"],
)
def test_bytes_of_no_database_are_refused_untouched(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "p.sqlite"
    path.write_bytes(content)
    with pytest.raises(PlaneUnavailable, match=says) as refused:
        Dispatch(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


def test_a_newer_schema_is_refused_with_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    Dispatch(path).close()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(PlaneUnavailable, match=r"newer lakeshore.*99.*pip install -U"):
        Dispatch(path)


def test_an_empty_file_becomes_a_plane(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    path.touch()
    with Dispatch(path) as plane:
        assert plane.submit("gpu", b"e", id="a") == "a"


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    with Dispatch(path) as plane:
        for i in range(300):
            plane.submit("gpu", b"e" * 200, id=f"j{i}")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xaa" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(PlaneUnavailable, match=r"p\.sqlite.*damaged"), Dispatch(path) as plane:
        for i in range(300):
            plane.get(f"j{i}")
            plane.claim("gpu", "w")


@pytest.mark.parametrize("name", ["missing/p.sqlite", "folder", "file/p.sqlite", "x" * 300])
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(PlaneUnavailable, match=name.partition("/")[0][:20]):
        Dispatch(tmp_path / name)


@pytest.mark.parametrize("path", ["", "a\0b", b"bytes"])
def test_a_malformed_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        Dispatch(path)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("nfs4", "cifs", "fuse.sshfs", "9p"):
        monkeypatch.setattr(sqlite_files, "file_system", lambda path, kind=kind: kind)
        with pytest.raises(PlaneUnavailable, match=rf"{kind}.*LAKESHORE_ALLOW_NETWORK_FS=1"):
            Dispatch(tmp_path / "p.sqlite")
        assert not (tmp_path / "p.sqlite").exists()
    monkeypatch.setenv("LAKESHORE_ALLOW_NETWORK_FS", "1")
    Dispatch(tmp_path / "p.sqlite").close()


@as_root
def test_no_permission_names_the_file(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:3]:
        if folder != Path("/tmp"):  # noqa: S108 - pytest's own folders above this test's
            folder.chmod(0o755)
    path = tmp_path / "p.sqlite"
    Dispatch(path).close()
    code = """
        import sys
        from lakeshore import Dispatch, PlaneUnavailable
        for path in sys.argv[1:]:
            try:
                Dispatch(path).submit("gpu", b"e", id="a")
            except PlaneUnavailable as error:
                assert path in str(error), error
                print("refused")
    """
    fresh = tmp_path / "new.sqlite"
    assert as_nobody(code, path, fresh).split() == ["refused", "refused"]
    path.chmod(0o644)
    assert as_nobody(code, path).split() == ["refused"], "read-only for this user"
    assert not fresh.exists()


# -- what another program wrote into the file ------------------------------------


def alter(path: Path, *statements: str) -> None:
    """Write to a plane's file as another program would, while no plane has it open."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            db.execute(statement)
    finally:
        db.close()


@pytest.fixture
def plane_file(tmp_path: Path) -> Path:
    path = tmp_path / "p.sqlite"
    with Dispatch(path) as plane:
        plane.submit("gpu", b"e", id="a")
        plane.submit("gpu", b"E" * 5000, id="large")
    return path


@pytest.mark.skipif(
    sqlite3.sqlite_version_info < (3, 37), reason="this interpreter's sqlite3 knows no STRICT"
)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", "x'ff00'"),
        ("id", "'../../x' || char(10)"),
        ("id", "''"),
        ("state", "'weird'"),
        ("priority", "'high'"),
        ("attempt", "'abc'"),
        ("fence", "'abc'"),
        ("losses", "1.5"),
        ("not_before", "'soon'"),
        ("lease_until", "x'00'"),
        ("envelope", "'text'"),
        ("result", "5"),
    ],
)
def test_a_column_takes_only_its_own_type(plane_file: Path, column: str, value: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=r"cannot store|CHECK"):
        alter(plane_file, f"UPDATE invocation SET {column} = {value} WHERE id = 'a'")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON invocation BEGIN DELETE FROM invocation; END",
        "ALTER TABLE invocation RENAME TO other",
        "ALTER TABLE invocation ADD COLUMN more TEXT",
        "CREATE VIEW more AS SELECT 1",
        "DROP TABLE frame",
        "DROP INDEX ready",
    ],
)
def test_an_altered_schema_is_refused(plane_file: Path, statement: str) -> None:
    alter(plane_file, statement)
    with pytest.raises(PlaneUnavailable, match=r"p\.sqlite.*altered.*Move it away"):
        Dispatch(plane_file)


def test_statistics_of_a_database_viewer_are_fine(plane_file: Path) -> None:
    alter(plane_file, "ANALYZE")
    with Dispatch(plane_file) as plane:
        assert plane.count("gpu") == 2


def test_a_schema_change_comes_with_a_version() -> None:
    made = "\n".join(sorted(map(str, tables_of_schema())))
    digest = hashlib.sha256(made.encode()).hexdigest()[:16]
    assert (migrations.newest("sqlite"), digest) == (1, "6780442dd528a5fb"), (
        "files of users hold the schema as it was: add a step to sqlite_migrations.sql"
    )


def test_hostile_rows_stop_no_worker(plane_file: Path) -> None:
    alter(plane_file, "DELETE FROM payload", "DELETE FROM invocation WHERE id = 'a'")
    with Dispatch(plane_file) as plane:
        taken = plane.claim("gpu", "w")
        assert taken is not None
        assert (taken.id, taken.envelope) == ("large", b""), "a lost envelope fails its job alone"
        plane.ack("large", "w")
    columns = "(ns, id, queue, state, priority, submitted_at)"
    odd = f"INSERT INTO invocation {columns} VALUES ('default', '../x', 'gpu', 'queued', 0, 0)"
    alter(plane_file, "PRAGMA ignore_check_constraints = ON", odd)
    with Dispatch(plane_file) as plane, pytest.raises(PlaneUnavailable, match=r"row 3 of queue 'gpu'"):
        plane.claim("gpu", "w")
    alter(
        plane_file,
        "DELETE FROM invocation WHERE id = '../x'",
        "UPDATE invocation SET error = cast(x'ff' AS TEXT)",
    )
    with Dispatch(plane_file) as plane, pytest.raises(PlaneUnavailable, match=r"p\.sqlite.*damaged"):
        plane.get("large")


# -- disks ----------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a small disk here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing_and_goes_on_with_space(small_disk: Path) -> None:
    path, ballast = small_disk / "p.sqlite", small_disk / "ballast"
    ballast.write_bytes(b"\0" * 400_000)
    plane = Dispatch(path)
    stored: list[str] = []
    frames = 0
    with pytest.raises(PlaneUnavailable, match=r"p\.sqlite.*(full|disk|space)") as refused:
        for i in range(10_000):
            stored.append(plane.submit("gpu", b"e" * 3000, id=f"j{i}"))
            plane.journal_append("topic", None, b"f" * 100)
            frames += 1
    assert "Nothing acknowledged is lost" in str(refused.value)
    for verb in (
        lambda: plane.submit("gpu", b"e" * 100_000, id="more"),
        lambda: plane.journal_append("topic", None, b"f" * 100_000),
    ):
        with pytest.raises(PlaneUnavailable):
            verb()
    assert plane.count("gpu") == len(stored), "reads go on"
    assert plane.claim("none", "w", wait=0.05) is None, "waits go on, where no bell can be made"
    ballast.unlink()
    assert plane.submit("gpu", b"e", id="after") == "after"
    plane.journal_append("topic", None, b"", final=True)
    assert sum(1 for _ in plane.journal_read("topic", timeout=1)) == frames + 1
    plane.close()
    with Dispatch(path) as again:
        assert again.count("gpu") == len(stored) + 1
        assert [again.envelope(id) for id in stored] == [b"e" * 3000] * len(stored)


def test_a_full_disk_at_the_first_open_is_said(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
        while True:
            file.write(b"\0" * 4096)
    with pytest.raises(PlaneUnavailable, match=r"p\.sqlite"):
        Dispatch(small_disk / "p.sqlite")
    ballast.unlink()
    with Dispatch(small_disk / "p.sqlite") as plane:
        assert plane.submit("gpu", b"e", id="a") == "a"


def test_a_read_only_disk_is_said(small_disk: Path) -> None:
    path = small_disk / "p.sqlite"
    with Dispatch(path) as plane:
        plane.submit("gpu", b"e", id="a")
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    for name in ("p.sqlite", "new.sqlite"):
        with pytest.raises(PlaneUnavailable, match=name):
            Dispatch(small_disk / name).submit("gpu", b"e", id="b")


# -- objects on one file ------------------------------------------------------------


def test_closing_one_of_two_planes_leaves_the_other_its_locks(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    one, two = Dispatch(path), Dispatch(path)
    one.submit("gpu", b"e", id="a")
    raw = one._rows
    assert raw is not None
    raw.execute("BEGIN IMMEDIATE")
    two.close()
    code = """
        import sys
        import apsw
        db = apsw.Connection(sys.argv[1])
        try:
            db.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            print("locked")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], capture_output=True, text=True, check=True
    )
    raw.execute("ROLLBACK")
    assert done.stdout == "locked\n"
    assert one.submit("gpu", b"e", id="b") == "b"


def test_a_closed_plane_refuses_every_verb(tmp_path: Path) -> None:
    for path in (":memory:", tmp_path / "p.sqlite"):
        plane = Dispatch(path)
        plane.submit("gpu", b"e", id="a")
        plane.close()
        plane.close()
        for verb in (lambda: plane.get("a"), lambda: plane.cancel("a"), lambda: plane.claim("gpu", "w")):
            with pytest.raises(DispatchError, match="closed"):
                verb()


def test_a_plane_is_neither_pickled_nor_copied(tmp_path: Path) -> None:
    plane = Dispatch(tmp_path / "p.sqlite")
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(CaptureError, match=r"p\.sqlite.*does not leave its process"):
            leave(plane)


def test_a_memory_plane_does_not_outlive_a_fork() -> None:
    code = """
        import os
        from lakeshore import Dispatch, DispatchError
        plane = Dispatch(":memory:")
        plane.submit("gpu", b"e", id="a")
        child = os.fork()
        if child == 0:
            try:
                plane.count("gpu")
            except DispatchError as error:
                os.write(1, b"refused" if "fork" in str(error) else b"?")
            os._exit(0)
        os.waitpid(child, 0)
        assert plane.count("gpu") == 1
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused", done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_use_the_file(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys
            from lakeshore import Dispatch

            def work(path, name):
                Dispatch(path).submit("gpu", b"e", id=name)

            if __name__ == "__main__":
                path, method = sys.argv[1:]
                plane = Dispatch(path)
                plane.submit("gpu", b"e", id="parent")
                context = multiprocessing.get_context(method)
                children = [context.Process(target=work, args=(path, f"c{i}")) for i in range(3)]
                for child in children: child.start()
                for child in children: child.join(30)
                assert [child.exitcode for child in children] == [0, 0, 0]
                assert plane.count("gpu") == 4
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, tmp_path / "p.sqlite", method],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_interpreter_exits_with_planes_open_and_threads_waiting(tmp_path: Path) -> None:
    code = """
        import sys, threading, time
        from lakeshore import Dispatch
        for path in (":memory:", sys.argv[1]):
            plane = Dispatch(path)
            for target in (
                lambda plane=plane: plane.claim("none", "w", wait=60),
                lambda plane=plane: list(plane.journal_read("topic", timeout=60)),
                lambda plane=plane: [plane.submit("gpu", b"e", id=f"j{i}") for i in range(10**6)],
            ):
                threading.Thread(target=target, daemon=True).start()
        time.sleep(0.2)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "p.sqlite"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_many_threads_share_one_plane(tmp_path: Path) -> None:
    for path in (":memory:", tmp_path / "p.sqlite"):
        plane = Dispatch(path, durable=False)
        done: list[str] = []

        def work(k: int, plane: Dispatch = plane, done: list[str] = done) -> None:
            for i in range(15):
                plane.submit("gpu", b"e", id=f"t{k}-{i}")
                job = plane.claim("gpu", f"w{k}")
                assert job is not None
                plane.journal_append("topic", None, b"f")
                plane.ack(job.id, f"w{k}", fence=job.fence)
                plane.count("gpu")
                done.append(job.id)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(set(done)) == len(done) == 24 * 15
        assert plane.count("gpu", "succeeded") == 24 * 15
        plane.close()


def test_bells_of_killed_processes_are_swept(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    code = """
        import os, sys, threading, time
        from lakeshore import Dispatch
        plane = Dispatch(sys.argv[1])
        def wait(queue):
            plane.claim(queue, "w", wait=60)
        for i in range(5):
            threading.Thread(target=wait, args=(f"q{i}",), daemon=True).start()
        while len(os.listdir(sys.argv[1] + "-bells")) < 5:
            time.sleep(0.01)
        os._exit(0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], timeout=30, check=True)
    bells = tmp_path / "p.sqlite-bells"
    assert len(list(bells.iterdir())) == 5
    with Dispatch(path) as plane:
        plane.claim("other", "w", wait=0.01)
        assert not list(bells.iterdir())
