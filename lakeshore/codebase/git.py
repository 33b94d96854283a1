"""A git work tree as it is now -> the list of files to ship; the user's index, files and .git stay untouched.

Changed and new files are staged in an index of our own, whose objects go to a folder of our own. No hook,
no file monitor and no pager is run, no lock is taken in the repository.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit, urlunsplit

from lakeshore.errors import TransportError

TREE_BYTES: Final = 256 * 1024 * 1024
"""What the files of a tree may have in all."""
TREE_FILES: Final = 50_000
IGNORE_FILE: Final = ".lakeshoreignore"
_SECONDS: Final = 120.0
_NAMED: Final = 5
_READ: Final = 1024 * 1024
_KEPT: Final = ("GIT_CONFIG", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
_QUIET: Final = (
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.safecrlf=false"),
    *("-c", "core.splitIndex=false"),
    *("-c", "gc.auto=0"),
)
_SCP: Final = re.compile(r"(?:([^@/\s]*)@)?([^:/@\s]+):(?!//)(.*)", re.DOTALL)


class CodeUnavailable(TransportError):
    """Git, or what it says, cannot be used for the code here; a function can still go by value."""

    code = "code_unavailable"


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a tree: its path, git's name for its content, its bytes, and whether it may be run."""

    path: str
    name: str
    size: int
    executable: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A work tree as it was at one moment.

    Attributes
    ----------
    tree : str
        Git's hash of all that ships; the same files have the same hash.
    commit : str or None
        What HEAD was; None before the first commit.
    branch : str or None
        None for a detached HEAD.
    remote : str
        The remote's URL without credentials; ``"local"`` for a repository that has none.
    dirty : bool
        The tree is not HEAD's.
    blobs : list of Blob
        The plain files.
    submodules : list of dict
        ``path`` and ``commit`` of each; their files do not ship.
    notes : list of str
        What was left out, and why.
    """

    tree: str
    commit: str | None
    branch: str | None
    remote: str
    dirty: bool
    blobs: list[Blob]
    submodules: list[dict[str, str]]
    notes: list[str] = field(default_factory=list)


class Repository:
    """One work tree."""

    def __init__(self, top: Path) -> None:
        self.top = top

    @classmethod
    def find(cls, folder: Path) -> Repository | None:
        """Return the work tree that `folder` lies in; None outside git, or where git is not installed.

        Raises
        ------
        CodeUnavailable
            When git refuses to look (the repository is another user's).
        """
        if not folder.is_dir():
            return None
        try:
            done = _run(folder, ["rev-parse", "--show-toplevel"], {}, check=False)
        except FileNotFoundError:
            return None
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            if "dubious ownership" in said:
                raise CodeUnavailable(
                    f"git does not look into {str(folder)!r}, which belongs to another user. "
                    f"If you trust it: git config --global --add safe.directory {folder}"
                )
            return None
        return cls(Path(os.fsdecode(done.stdout.rstrip(b"\n"))))

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[Look]:
        """Stage the work tree aside; what comes can be read until the ``with`` ends.

        Raises
        ------
        CodeUnavailable
            When git cannot.
        TransportError
            When it is too large; names the largest files.
        """
        scratch = Path(tempfile.mkdtemp(prefix="lakeshore-git-"))
        try:
            yield Look(self.top, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def state(self) -> tuple[Any, ...]:
        """Return what differs whenever the tree may: HEAD, and each changed or new file with its stamp."""
        head = _run(self.top, ["rev-parse", "-q", "--verify", "HEAD"], {}, check=False).stdout
        listed = _run(self.top, ["ls-files", "-z", "-v", "-c", "-o", "-m", "--exclude-standard"], {}).stdout
        changed = {row[2:] for row in _names(listed) if not row.startswith(b"H ")}
        stamps = [(each, _stamp(self.top, each)) for each in sorted(changed)]
        staged = _run(self.top, ["diff-index", "--cached", "-z", "HEAD"], {}, check=False).stdout
        return head, staged, tuple(stamps)


def _stamp(top: Path, name: bytes) -> tuple[int, ...] | None:
    try:
        found = (top / os.fsdecode(name)).lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode


def _copied_index(index: Path, copy: Path) -> None:
    """Copy an index with its time: git holds what was edited in the second of its `git add` against it."""
    with index.open("rb") as source, copy.open("xb") as target:
        shutil.copyfileobj(source, target)
        target.flush()
        when = os.fstat(source.fileno())  # of the file that was read: another may have its name by now
        os.utime(copy, ns=(when.st_atime_ns, when.st_mtime_ns))


class Look:
    """A work tree, staged in an index and an object folder of ours."""

    def __init__(self, top: Path, scratch: Path) -> None:
        self._top = top
        where = self._git("rev-parse", "--git-path", "index", "--git-path", "objects").stdout.splitlines()
        index, objects = (top / os.fsdecode(each) for each in where)
        (scratch / "objects").mkdir()
        self._env = {
            "GIT_INDEX_FILE": str(scratch / "index"),
            "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(objects),
        }
        with contextlib.suppress(FileNotFoundError):
            _copied_index(index, scratch / "index")
        self.snapshot = self._take()

    def _git(self, *args: str, input: bytes | None = None, check: bool = True) -> Any:
        return _run(self._top, list(args), getattr(self, "_env", {}), input=input, check=check)

    def _take(self) -> Snapshot:
        notes: list[str] = []
        ignore = ["-X", str(self._top / IGNORE_FILE)] if (self._top / IGNORE_FILE).is_file() else []
        self._stage(ignore, notes)
        if ignore:
            left_out = self._git("ls-files", "-z", "-c", "-i", *ignore).stdout
            if left_out:
                self._git("update-index", "-z", "--force-remove", "--stdin", input=left_out)
        tree = self._line("write-tree")
        commit = self._line("rev-parse", "-q", "--verify", "HEAD^{commit}") or None
        branch = self._line("symbolic-ref", "-q", "--short", "HEAD") or None
        whole = self._line("rev-parse", "-q", "--verify", "HEAD^{tree}")
        if ignore and commit is not None:
            whole = self._tree_of_head(ignore)
        blobs, submodules = self._list(tree, notes)
        _refuse_large([(blob.path, blob.size) for blob in blobs])
        return Snapshot(tree, commit, branch, self._remote(branch), tree != whole, blobs, submodules, notes)

    def _tree_of_head(self, ignore: list[str]) -> str:
        """Return the tree that HEAD would ship, with the ignored files out of it."""
        own = {**self._env, "GIT_INDEX_FILE": self._env["GIT_INDEX_FILE"] + "-head"}
        _run(self._top, ["read-tree", "HEAD"], own)
        left_out = _run(self._top, ["ls-files", "-z", "-c", "-i", *ignore], own).stdout
        _run(self._top, ["update-index", "-z", "--force-remove", "--stdin"], own, input=left_out)
        return str(_run(self._top, ["write-tree"], own).stdout.decode().strip())

    def _stage(self, ignore: list[str], notes: list[str]) -> None:
        """Bring the changed and the new files into our index."""
        self._look_at_all()
        new = _names(self._git("ls-files", "-z", "-o", "--exclude-standard", *ignore).stdout)
        nested = [name for name in new if name.endswith(b"/")]
        if nested:
            notes.append(f"{_some(nested)}: a repository within this one, not a submodule of it")
        new = [name for name in new if not name.endswith(b"/")]
        changed = _names(self._git("ls-files", "-z", "-m").stdout)
        sizes = [(os.fsdecode(name), _size(self._top, name)) for name in (*new, *changed)]
        _refuse_large(sizes)
        if new or changed:
            self._git(
                "update-index",
                "-z",
                "--add",
                "--remove",
                "--replace",
                "--stdin",
                input=b"".join(name + b"\0" for name in dict.fromkeys((*new, *changed))),
            )

    def _look_at_all(self) -> None:
        """Have git look at the files too that the user's index tells it to take for unchanged."""
        listed = _names(self._git("ls-files", "-z", "-v", "-c").stdout)
        unseen = [row[2:] for row in listed if row[:1].islower() or row[:1] == b"S"]
        there = b"".join(name + b"\0" for name in unseen if _stamp(self._top, name) is not None)
        if there:  # what a sparse checkout left out stays as HEAD has it
            for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
                self._git("update-index", flag, "-z", "--stdin", input=there)

    def _line(self, *args: str) -> str:
        return str(self._git(*args, check=args[0] == "write-tree").stdout.decode("utf-8", "replace").strip())

    def _remote(self, branch: str | None) -> str:
        name = "origin"
        if branch is not None:
            name = self._line("config", "--get", f"branch.{branch}.remote") or name
        url = self._line("config", "--get", f"remote.{name}.url")
        if not url:
            others = self._line("config", "--get-regexp", r"^remote\..*\.url$").splitlines()
            url = others[0].partition(" ")[2] if others else ""
        return clean_url(url) or "local"

    def _list(self, tree: str, notes: list[str]) -> tuple[list[Blob], list[dict[str, str]]]:
        blobs: list[Blob] = []
        submodules: list[dict[str, str]] = []
        links, odd = [], []
        for row in _names(self._git("ls-tree", "-r", "-z", "-l", "--full-tree", tree).stdout):
            facts, _, name = row.partition(b"\t")
            mode, kind, hash_, size = facts.split()
            try:
                path = name.decode()
            except UnicodeDecodeError:
                odd.append(name)
                continue
            if kind == b"commit":
                submodules.append({"path": path, "commit": hash_.decode()})
            elif mode == b"120000":
                links.append(name)
            else:
                blobs.append(Blob(path, hash_.decode(), int(size), mode == b"100755"))
        if submodules:
            notes.append(f"{_some([s['path'].encode() for s in submodules])}: a submodule, whose files stay")
        if links:
            notes.append(f"{_some(links)}: a symbolic link")
        if odd:
            notes.append(f"{_some(odd)}: a name that is no UTF-8")
        return blobs, submodules

    @contextlib.contextmanager
    def contents(self) -> Iterator[Contents]:
        """Read files of the snapshot."""
        process = subprocess.Popen(  # noqa: S603 - git, with arguments of ours
            ["git", *_QUIET, "-C", str(self._top), "cat-file", "--batch"],  # noqa: S607 - the user's own git
            env=_environment(self._env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Contents(process.stdin, process.stdout)
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()


class Contents:
    """The contents of a tree's files, asked one after the other."""

    def __init__(self, ask: IO[bytes], answers: IO[bytes]) -> None:
        self._ask, self._answers = ask, answers

    def parts(self, blob: Blob) -> Iterator[bytes]:
        """Yield the content of one file; to be read to its end before the next is asked for."""
        try:
            self._ask.write(blob.name.encode() + b"\n")
            self._ask.flush()
        except OSError:
            raise CodeUnavailable(f"git ended while it read {blob.path!r}; try `git fsck`") from None
        head = self._answers.readline().split()
        if len(head) != 3 or head[1] != b"blob" or int(head[2]) != blob.size:
            raise CodeUnavailable(f"git has no content for {blob.path!r} here; try `git fsck`")
        left = blob.size
        while left:
            part = self._answers.read(min(left, _READ))
            if not part:
                raise CodeUnavailable(f"git ended while it read {blob.path!r}; try `git fsck`")
            left -= len(part)
            yield part
        self._answers.read(1)


def clean_url(url: str) -> str:
    """Return a remote's URL without user, password, query and fragment: any of them may be a secret.

    The user of an ssh URL is kept, since the host is asked by it and it opens nothing.
    """
    url = url.strip()
    if "://" not in url:
        found = _SCP.fullmatch(url)
        if found is None:
            return url
        user = f"{found[1].partition(':')[0]}@" if found[1] else ""
        return f"{user}{found[2]}:{found[3]}"
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    user, _, host = parts.netloc.rpartition("@")
    kept = f"{user.partition(':')[0]}@" if user and parts.scheme in ("ssh", "git+ssh") else ""
    return urlunsplit((parts.scheme, kept + host, parts.path, "", ""))


def too_large(what: str, sizes: list[tuple[str, int]]) -> TransportError:
    """Return the error for a tree over its limit, naming its largest files."""
    largest = sorted(sizes, key=lambda each: -each[1])[:_NAMED]
    named = ", ".join(f"{path!r} ({size:,} bytes)" for path, size in largest)
    return TransportError(
        f"push_code: {what}; the largest files are {named}. Name what the job does not need in {IGNORE_FILE} "
        "(as in .gitignore), or submit with transport='pickle'."
    )


def _refuse_large(sizes: list[tuple[str, int]]) -> None:
    total = sum(size for _, size in sizes)
    if total > TREE_BYTES:
        raise too_large(f"the tree has {total:,} bytes and the limit is {TREE_BYTES:,}", sizes)
    if len(sizes) > TREE_FILES:
        raise too_large(f"the tree has {len(sizes):,} files and the limit is {TREE_FILES:,}", sizes)


def _size(top: Path, name: bytes) -> int:
    stamp = _stamp(top, name)
    return 0 if stamp is None else stamp[2]


def _names(listing: bytes) -> list[bytes]:
    return [name for name in listing.split(b"\0") if name]


def _some(names: list[bytes]) -> str:
    shown = ", ".join(repr(name.decode("utf-8", "backslashreplace")) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"


def _quoted(folder: Path) -> str:
    """Return a path for a list that git splits at colons."""
    text = str(folder)
    if ":" not in text and not text.startswith('"'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _environment(own: dict[str, str]) -> dict[str, str]:
    """Return the environment for git, without what would lead it to another repository or a terminal."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith("GIT_") or n.startswith(_KEPT)}
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    return {**kept, **quiet, **own}


def _run(
    folder: Path, args: list[str], own: dict[str, str], *, input: bytes | None = None, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(  # noqa: S603 - git, with arguments of ours
            ["git", *_QUIET, "-C", str(folder), *args],  # noqa: S607 - the user's own git
            env=_environment(own),
            input=b"" if input is None else input,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CodeUnavailable(f"git {args[0]} in {str(folder)!r} did not end within {_SECONDS:g} s") from None
    if check and done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        if "promisor" in said or "lazy fetching" in said:
            raise CodeUnavailable(
                f"{str(folder)!r} is a partial clone, and some of its content is not here. "
                "Get it: git fetch --refetch --no-filter"
            )
        raise CodeUnavailable(f"git {args[0]} in {str(folder)!r} failed: {said}")
    return done
