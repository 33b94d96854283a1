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


def make_private(path: Path) -> None:
    """Create `path` as an empty file of mode 0600, whatever the umask, unless it exists."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    os.close(fd)
    path.chmod(0o600)


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
    """Whether `path` and its directory are this user's and nobody else may write to them, as ssh asks.

    A sticky directory (such as /tmp) and one that root owns are fine.
    """
    if not hasattr(os, "geteuid"):
        return True
    try:
        file, folder = path.stat(), path.resolve().parent.stat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    own_file = file.st_uid == os.geteuid() and not file.st_mode & others
    own_folder = folder.st_uid in (0, os.geteuid())
    return own_file and own_folder and (not folder.st_mode & others or bool(folder.st_mode & stat.S_ISVTX))


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
