"""The extractor: plain files under sound names, or nothing; and what a killed unpacking leaves."""

from __future__ import annotations

import gzip
import io
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakeshore.codebase import cabinet, names
from lakeshore.codebase.archive import Entry, pack
from lakeshore.codebase.unpack import ArchiveRefused, Bounds, unpack, verify


def packed(*entries: Entry) -> bytes:
    out = io.BytesIO()
    pack(entries, out)
    return out.getvalue()


def file(path: str, data: bytes = b"x = 1\n", *, executable: bool = False) -> Entry:
    return Entry(path, len(data), [data], executable)


def opened(data: bytes, into: Path, **bounds: int) -> int:
    into.mkdir(exist_ok=True)
    return unpack(io.BytesIO(data), into, Bounds(**bounds))


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- what goes in comes out


part = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)
path = st.lists(part, min_size=1, max_size=4).map("/".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(path, st.tuples(st.binary(max_size=2000), st.booleans()), max_size=8))
def test_what_is_packed_is_unpacked(tmp_path_factory: pytest.TempPathFactory, files: dict) -> None:
    seen = names.Names()
    sound = {name: each for name, each in sorted(files.items()) if seen.add(name) is None}
    data = packed(*(file(name, content, executable=x) for name, (content, x) in sound.items()))
    into = tmp_path_factory.mktemp("out")
    assert opened(data, into) == len(sound)
    assert tree(into) == {name: content for name, (content, _) in sound.items()}
    for name, (_, executable) in sound.items():
        assert bool((into / name).stat().st_mode & 0o100) == executable


def test_an_archive_is_the_same_bytes_each_time_and_tarfile_reads_it(tmp_path: Path) -> None:
    long = "d" * 200 + "/" + "é" * 100 + ".py"
    entries = (file("a.py"), Entry("empty", folder=True), file(long, b"y"), file("bin/run", executable=True))
    data = packed(*entries)
    assert data == packed(*entries)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        assert [(m.name, m.size, m.mode, m.mtime, m.uid) for m in archive] == [
            ("a.py", 6, 0o644, 0, 0),
            ("empty", 0, 0o755, 0, 0),
            (long, 1, 0o644, 0, 0),
            ("bin/run", 6, 0o755, 0, 0),
        ]
    assert opened(data, tmp_path / "out") == 4
    assert (tmp_path / "out/empty").is_dir()


def test_a_content_that_is_not_as_long_as_said_is_refused() -> None:
    with pytest.raises(ValueError, match="changed while it was read"):
        packed(Entry("a", 3, [b"four"]))


def test_what_git_and_tar_write_unpacks_too(tmp_path: Path) -> None:
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", format=form) as archive:
            archive.pax_headers = {"comment": "f" * 40} if form == tarfile.PAX_FORMAT else {}
            for name in ("pkg/__init__.py", "p" * 120 + "/" + "n" * 60):
                info = tarfile.TarInfo(name)
                info.size = 1
                archive.addfile(info, io.BytesIO(b"1"))
        into = tmp_path / str(form)
        assert opened(out.getvalue(), into) == 2
        assert set(tree(into)) == {"pkg/__init__.py", "p" * 120 + "/" + "n" * 60}


def test_setuid_and_the_like_are_stripped(tmp_path: Path) -> None:
    data = crafted(lambda info: setattr(info, "mode", 0o7777))
    opened(data, tmp_path / "out")
    mode = stat.S_IMODE((tmp_path / "out/a.py").stat().st_mode)
    assert mode & 0o7022 == 0


# ---- hostile archives


def crafted(change: Callable[[tarfile.TarInfo], object], name: str = "a.py", **headers: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.size = 1
        info.pax_headers = headers
        change(info)
        archive.addfile(info, io.BytesIO(b"1" * 512))
    return out.getvalue()


def kind(type_: bytes, link: str = "") -> bytes:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = type_, link, 0

    return crafted(change)


NAMES = [
    "/etc/passwd", "//host/x", "../up.py", "a/../../up.py", "a/./b", "./a", "a//b", "a\\b.py", "..\\up.py",
    "C:/x.py", "c:x.py", "a:stream", "nul", "a/CON.py", "aux.tar.gz", "com1", "LPT9.txt", "COM¹", "a.py.",
    "a.py ", "dir./a.py", "dir /a.py", "a\nb.py", "a\x7fb", ".git/config", "x/.GIT/hooks/post-checkout",
    ".g\u200cit/x", "x/.GIT\ufeff/x", ".\u200d./a", "\u2060/a", "a.\u00ad", "nu\u034fl.py", "a\x85b.py",
    "n" * 256, "/".join(["d"] * 600), "",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_unsound_name_refuses_the_archive_whole(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused):
        opened(packed(file("good.py"), file(name), file("z.py")), tmp_path / "out")
    assert [p for p in tmp_path.rglob("*") if p.name not in ("out", "good.py")] == []


def test_a_name_that_no_other_is_like_may_hold_what_is_not_seen(tmp_path: Path) -> None:
    names = ["\u2764\ufe0f.txt", "\U0001f468\u200d\U0001f469.py", "\u0646\u200c\u0627.py"]
    opened(packed(*map(file, names)), tmp_path / "out")
    assert sorted(tree(tmp_path / "out")) == sorted(names)


@pytest.mark.parametrize(
    "pair",
    [
        ("a.py", "A.py"),
        ("pkg/x.py", "PKG/y.py"),
        ("stra\u00dfe", "STRASSE"),
        ("caf\u00e9", "cafe\u0301"),
        ("\ufb01le", "file"),
        ("a\u200cb.py", "ab.py"),
        ("\u2764\ufe0f.txt", "\u2764.txt"),
        ("a.py", "a.py"),
        ("a", "a/b"),
        ("a/b", "a"),
    ],
)
def test_two_names_that_are_one_refuse_the_archive(pair: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match=r"same name|twice|file and a folder"):
        opened(packed(*map(file, pair)), tmp_path / "out")


HOSTILE = {
    "a symbolic link": lambda: kind(tarfile.SYMTYPE, "/etc"),
    "a hard link": lambda: kind(tarfile.LNKTYPE, "/etc/passwd"),
    "a character device": lambda: kind(tarfile.CHRTYPE),
    "a block device": lambda: kind(tarfile.BLKTYPE),
    "a pipe": lambda: kind(tarfile.FIFOTYPE),
    "a contiguous file": lambda: kind(tarfile.CONTTYPE),
    "a sparse file": lambda: kind(tarfile.GNUTYPE_SPARSE),
    "a vendor's type": lambda: kind(b"V"),
    "a volume": lambda: kind(b"M"),
    "pax: another size": lambda: crafted(lambda i: None, size="0"),
    "pax: a link's path": lambda: crafted(lambda i: None, linkpath="/etc/passwd"),
    "pax: another charset": lambda: crafted(lambda i: None, hdrcharset="BINARY"),
    "pax: sparse 0.1": lambda: crafted(lambda i: None, **{"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"}),
    "pax: sparse 1.0": lambda: crafted(lambda i: None, **{"GNU.sparse.major": "1", "GNU.sparse.name": "x"}),
    "pax: climbs": lambda: crafted(lambda i: None, path="../../up.py"),
    "pax: an endless header": lambda: crafted(lambda i: None, path="p" * 100_000),
    "a folder with content": lambda: crafted(lambda i: setattr(i, "type", tarfile.DIRTYPE)),
    "no gzip": lambda: b"PK\x03\x04" + bytes(100),
    "nothing": lambda: b"",
    "an empty gzip": lambda: gzip.compress(b""),
    "no tar": lambda: gzip.compress(os.urandom(4096)),
    "no end": lambda: gzip.compress(gzip.decompress(packed(file("a.py")))[:-1024]),
    "data behind the end": lambda: gzip.compress(gzip.decompress(packed(file("a.py"))) + b"x" * 512),
    "data behind the gzip": lambda: packed(file("a.py")) + b"trailing",
    "a second gzip": lambda: packed(file("a.py")) * 2,
    "an old tar": lambda: gzip.compress(no_magic()),
    "a wrong checksum": lambda: gzip.compress(broken_header()),
    "a hidden second name": lambda: gzip.compress(rewritten(4, b"\0evil")),
    "a size in base 256": lambda: gzip.compress(rewritten(124, b"\x80" + bytes(10) + b"\x01")),
    "a negative size": lambda: gzip.compress(rewritten(124, b"-0000000001\0")),
    "data in the padding": lambda: gzip.compress(padded()),
}


def plain() -> bytearray:
    return bytearray(gzip.decompress(packed(file("a.py"))))


def no_magic() -> bytes:
    return rewritten(257, bytes(8))


def broken_header() -> bytes:
    data = plain()
    data[0] ^= 1
    return bytes(data)


def padded() -> bytes:
    data = plain()
    data[512 + 100] = 1
    return bytes(data)


def rewritten(at: int, field: bytes) -> bytes:
    data = plain()
    data[at : at + len(field)] = field
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_with_a_word(what: str, tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match="refused"):
        opened(HOSTILE[what](), tmp_path / "out")
    assert not [p for p in tmp_path.rglob("*") if p.is_symlink() or p.name in ("passwd", "up.py", "evil")]


def test_a_bomb_is_refused_by_its_size_and_its_ratio(tmp_path: Path) -> None:
    zeros = packed(Entry("zeros", 32 << 20, (bytes(1 << 20) for _ in range(32))))
    assert len(zeros) < 100_000
    with pytest.raises(ArchiveRefused, match="200 times"):
        opened(zeros, tmp_path / "ratio")
    with pytest.raises(ArchiveRefused, match=r"more than 1,000,000 bytes"):
        opened(zeros, tmp_path / "size", bytes=1_000_000)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*")) < 40 << 20


def test_a_million_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match="more than 50 files"):
        opened(packed(*(file(f"f{n}", b"") for n in range(51))), tmp_path / "files", files=50)
    with pytest.raises(ArchiveRefused, match="more than 50 files"):
        opened(packed(file("/".join("d" * 60))), tmp_path / "folders", files=50)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(1, 255), st.booleans())
def test_a_flipped_bit_is_refused_or_changes_nothing_outside(
    tmp_path_factory: pytest.TempPathFactory, at: int, flip: int, inside: bool
) -> None:
    data = bytearray(packed(file("a/b.py", b"z" * 700), file("c.py")))
    if inside:
        raw = bytearray(zlib.decompress(bytes(data), 31))
        raw[at % len(raw)] ^= flip
        data = bytearray(gzip.compress(raw))
    else:
        data[at % len(data)] ^= flip
    base = tmp_path_factory.mktemp("flip")
    try:
        opened(bytes(data), base / "out")
    except ArchiveRefused:
        pass
    assert [p.name for p in base.iterdir()] == ["out"]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 4000))
def test_a_cut_archive_is_refused(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    data = packed(file("a/b.py", os.urandom(700)), file("c.py"))
    with pytest.raises(ArchiveRefused):
        opened(data[: at % len(data)], tmp_path_factory.mktemp("cut"))


# ---- the cabinet


def test_the_digest_is_checked_before_anything_is_unpacked(tmp_path: Path) -> None:
    data = packed(file("a.py"))
    with pytest.raises(ArchiveRefused, match="not the one that was submitted"):
        cabinet.folder_of(tmp_path, "sha256:" + "0" * 64, lambda out: out.write(data))
    assert list((tmp_path / "code").iterdir()) == []


@pytest.mark.parametrize(
    "digest", [None, "", "0" * 64, "sha256:../../x", "sha256:" + "A" * 64, "md5:" + "0" * 32]
)
def test_a_digest_that_is_none_names_no_folder(digest: object, tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match="64 hexadecimal digits"):
        cabinet.folder_of(tmp_path, digest, lambda out: None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def digest_of(data: bytes) -> str:
    out = io.BytesIO(data)
    import hashlib

    found = "sha256:" + hashlib.sha256(out.getvalue()).hexdigest()
    verify(out, found)
    return found


def test_a_folder_is_made_once_and_named_by_its_digest(tmp_path: Path) -> None:
    data = packed(file("pkg/a.py"))
    asked: list[int] = []

    def fetch(out: object) -> None:
        asked.append(1)
        out.write(data)  # type: ignore[attr-defined]

    first = cabinet.folder_of(tmp_path, digest_of(data), fetch)
    assert cabinet.folder_of(tmp_path, digest_of(data), fetch) == first
    assert first.name == digest_of(data).removeprefix("sha256:")
    assert len(asked) == 1
    assert stat.S_IMODE((tmp_path / "code").stat().st_mode) == 0o700
    assert [p.name for p in (tmp_path / "code").iterdir()] == [first.name]


def test_a_refused_archive_leaves_nothing(tmp_path: Path) -> None:
    data = packed(file("good.py"), file("../up.py"))
    with pytest.raises(ArchiveRefused):
        cabinet.folder_of(tmp_path, digest_of(data), lambda out: out.write(data))
    assert list((tmp_path / "code").iterdir()) == []


def test_many_unpack_one_digest_at_a_time_and_all_get_it(tmp_path: Path) -> None:
    data = packed(*(file(f"f{n}.py") for n in range(50)))
    digest, found, start = digest_of(data), [], threading.Barrier(6)

    def work() -> None:
        start.wait()
        found.append(cabinet.folder_of(tmp_path, digest, lambda out: out.write(data)))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    assert [p.name for p in (tmp_path / "code").iterdir()] == [found[0].name]
    assert len(tree(found[0])) == 50


_KILLED = """
import io, os, signal, sys
from lakeshore.codebase import cabinet, unpack
from pathlib import Path
data = Path(sys.argv[2]).read_bytes()
whole = unpack._write
def write(stream, target, member):
    whole(stream, target, member)
    if member.path == "f20.py":
        os.kill(os.getpid(), signal.SIGKILL)
unpack._write = write
cabinet.folder_of(Path(sys.argv[1]), sys.argv[3], lambda out: out.write(data))
"""


def test_what_a_killed_unpacking_leaves_is_never_taken_for_code_and_goes_in_time(tmp_path: Path) -> None:
    data = packed(*(file(f"f{n}.py") for n in range(50)))
    (tmp_path / "archive").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path / "home"), str(tmp_path / "archive"), digest_of(data)]
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "home/code").iterdir()
    assert left.name.startswith("unpacking-")
    folder = cabinet.folder_of(tmp_path / "home", digest_of(data), lambda out: out.write(data))
    assert len(tree(folder)) == 50
    os.utime(left, (1, 1))
    os.utime(folder, (1, 1))
    other = packed(file("other.py"))
    kept = cabinet.folder_of(tmp_path / "home", digest_of(other), lambda out: out.write(other))
    assert [p.name for p in (tmp_path / "home/code").iterdir()] == [kept.name]
