"""What the SQLite plane asks of the file system: private files, a local disk, whose file it is."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

from lakeshore.errors import PlaneUnavailable

_NETWORK = frozenset(
    {"9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "drvfs", "gfs2", "glusterfs", "gpfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb2", "smb3", "smbfs", "webdav"}
)
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs"})
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ_BY_SQLITE = ("-wal", "-shm", "-journal")
"""What SQLite takes for a part of the database, whoever made it."""


def make_private(path: Path) -> None:
    """Create `path` as an empty file of mode 0600, whatever the umask, unless it exists."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def bells_of(path: Path) -> Path:
    """Return the folder of a file's bells; one, by whatever link the file is named."""
    return Path(f"{path.resolve()}-bells")


def make_home(home: Path) -> None:
    """Create LAKESHORE_HOME with mode 0700, whatever the umask, unless it exists.

    Raises
    ------
    PlaneUnavailable
        When it cannot be made, or is no directory.
    """
    try:
        if not home.is_dir():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            home.chmod(0o700)
    except OSError as error:
        raise PlaneUnavailable(
            f"open: cannot make the directory {str(home)!r}: {error.strerror or error}. "
            "Set LAKESHORE_HOME to a local directory that you may write to."
        ) from error


def refuse_network(path: Path) -> None:
    """Refuse a directory on NFS, SMB, FUSE or a cluster file system, where SQLite's WAL is not safe.

    Raises
    ------
    PlaneUnavailable
        Naming the file system and the ways out.
    """
    kind = file_system(path)
    if kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE):
        raise PlaneUnavailable(
            f"open: {str(path)!r} is on {kind}, where processes cannot share SQLite's WAL safely. Use a "
            "local directory (LAKESHORE_HOME), or a control plane (LAKESHORE_URL). If one machine alone "
            "uses the file, LAKESHORE_ALLOW_NETWORK_FS=1 overrides this."
        )


def file_system(path: Path) -> str:
    """Return the type of the file system that holds `path` (``"ext4"``, ``"nfs4"``), or ``""`` if unknown."""
    if sys.platform == "darwin":
        return _darwin_file_system(path)
    try:
        table = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
    target, best, kind = str(path.resolve()), -1, ""
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left.split(" ")[4])
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, kind = len(mount), right.split(" ", 1)[0]
    return kind


def _darwin_file_system(path: Path) -> str:
    import ctypes

    # struct statfs of <sys/mount.h> (64-bit inodes): f_fstypename is 16 bytes at offset 72.
    buffer = ctypes.create_string_buffer(4096)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), buffer) != 0:
        return ""
    return buffer.raw[72:88].split(b"\0", 1)[0].decode("ascii", "replace")


def is_own(path: Path) -> bool:
    """Whether a database is this user's and nobody else may write to it, as ssh asks.

    That is the file, what SQLite reads beside it, and the directory. A sticky directory (such as /tmp)
    and one that root owns are fine; so is a link of this user's to such a file.
    """
    if not hasattr(os, "geteuid"):
        return True
    try:
        real = path.resolve()
        return (
            path.lstat().st_uid in (0, os.geteuid())
            and _is_private(real.lstat())
            and not any(_fault(Path(f"{real}{suffix}")) for suffix in _READ_BY_SQLITE)
            and _is_own_folder(path.parent)
            and _is_own_folder(real.parent)
        )
    except OSError:
        return False


def _is_private(file: os.stat_result) -> bool:
    return file.st_uid == os.geteuid() and stat.S_ISREG(file.st_mode) and not file.st_mode & _OTHERS_WRITE


def _is_own_folder(folder: Path) -> bool:
    found = folder.stat()
    shared = found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.geteuid()) and not shared


def _fault(path: Path) -> str:
    """Say why a file that SQLite would take for a part of a private database is none; ``""`` if it may."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(found.st_mode):
        return "is not a plain file"
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_nlink > 1:
        return "has a second name"
    if found.st_mode & _OTHERS_WRITE:
        return f"may be written to by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def refuse_foreign(path: Path) -> None:
    """Refuse a private database beside which somebody else has put what SQLite would read into it.

    A file that others may write to anyway is no such case: it is not trusted, see `is_own`.

    Raises
    ------
    PlaneUnavailable
        Naming the file, and the ways out.
    """
    if not hasattr(os, "geteuid"):
        return
    real = path.resolve()
    for suffix in _READ_BY_SQLITE:
        beside = Path(f"{real}{suffix}")
        try:
            fault = _fault(beside) if _is_private(real.lstat()) else ""
        except OSError:  # it is gone or out of reach, and SQLite will say so
            return
        if fault:
            raise PlaneUnavailable(
                f"open: {str(beside)!r} {fault}, so whoever made it could put jobs into this plane. Name a "
                "file in a directory of your own, or, if you trust what it holds, make it yours (chown, "
                "chmod 600); else remove it."
            )


def boot_id() -> str:
    """Name this boot of the machine: two processes of one boot agree, another boot differs."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return _darwin_boot_id() if sys.platform == "darwin" else "one"


def _darwin_boot_id() -> str:
    import ctypes

    size = ctypes.c_size_t(64)
    buffer = ctypes.create_string_buffer(size.value)
    libc = ctypes.CDLL(None)
    if libc.sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0) != 0:
        return "one"
    return buffer.value.decode("ascii", "replace")
