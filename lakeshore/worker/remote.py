"""What a worker of a control plane does for its jobs: brings the code they came with, carries their files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lakeshore import settings
from lakeshore.codebase.cabinet import folder_of
from lakeshore.codebase.mount import Mount, Turns, at, read_stamp
from lakeshore.codebase.shipping import STORAGE
from lakeshore.codebase.unpack import BOUNDS, ArchiveRefused
from lakeshore.planes import files
from lakeshore.worker.outage import ridden_out


class Remote:
    """Code and files of the jobs of one control plane.

    Parameters
    ----------
    plane : HttpDispatch, optional
        The control plane's client.
    connection : dict, optional
        In its place, what makes one at the first need (see `told`): most bodies of a child need none.
    code_mounts : bool
        Whether jobs may bring code.
    keep : bool
        Leave a mount in force until a job with another comes.
    """

    def __init__(
        self,
        plane: files.Channel | None,
        connection: Mapping[str, Any] | None = None,
        *,
        code_mounts: bool = True,
        keep: bool = False,
    ) -> None:
        self._plane, self._connection = plane, connection
        self.code_mounts = code_mounts
        self._turns = Turns(keep=keep)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, plane: object, *, code_mounts: bool) -> Remote | None:
        """Return what serves the jobs of a plane; None for one on this machine."""
        channel = files.channel_of(plane)
        return None if channel is None else cls(channel, code_mounts=code_mounts)

    def told(self) -> dict[str, Any]:
        """Return what a child makes its own from; holds the token, and goes over their line only."""
        return {"connection": files.connection_of(self._plane), "code_mounts": self.code_mounts}

    @classmethod
    def told_by(cls, told: Mapping[str, Any] | None) -> Remote | None:
        """Make a child's own."""
        if told is None:
            return None
        return cls(None, told["connection"], code_mounts=told["code_mounts"], keep=True)

    def _channel(self) -> files.Channel:
        with self._lock:
            if self._plane is None:
                # most bodies need neither the client nor what it loads
                from lakeshore.planes.http import HttpDispatch

                assert self._connection is not None
                self._plane = HttpDispatch(**self._connection)
            return self._plane

    # -- code

    def code_of(self, cfg: Mapping[str, Any]) -> str:
        """Return the digest of the code that a job brings, "" for none that is mounted here."""
        code = cfg.get("code")
        return str(code.get("digest") or "") if self.code_mounts and isinstance(code, dict) else ""

    @contextmanager
    def mounted(self, cfg: Mapping[str, Any]) -> Iterator[Mount | None]:
        """Have the code that a job brings, and no other job's, first on the path.

        Raises
        ------
        ArchiveRefused
            When it is not what its digest names, or may not be unpacked.
        """
        mount: Mount | None = None
        stamp = read_stamp(cfg.get("code")) if self.code_mounts else None
        if stamp is not None:
            digest, roots = stamp
            code = cfg["code"]
            storage, key = code.get("storageName"), code.get("archiveKey")

            if not (isinstance(storage, str) and isinstance(key, str)):
                storage, key = STORAGE, f"{digest.removeprefix('sha256:')}.tar.gz"

            def fetch(into: BinaryIO) -> None:
                found = ridden_out(
                    lambda: self._channel().get_file(storage, key, into, most=BOUNDS.bytes),
                    "the job's code",
                    _patient,
                )
                if found is None:
                    raise ArchiveRefused(
                        f"the job's code ({digest}) is not stored at the control plane. Submit the job again."
                    )

            mount = at(folder_of(settings.read().home, digest, fetch), roots)
        with self._turns.taken(mount):
            yield mount

    # -- files

    def publish(
        self, inv_id: str, fence: int, root: Path, keys: Iterable[str], stopping: Callable[[], bool]
    ) -> None:
        """Store what a job wrote under a claim, where the control plane keeps files; waits while it is away.

        Raises
        ------
        ClaimLost
            When the claim is lost, or the control plane is away and the body is `stopping`.
        """
        wanted = list(keys)

        def store() -> None:
            if self._channel().keeps_files:
                files.publish(self._channel(), inv_id, fence, root, wanted)

        if wanted:
            told = "the body was told to stop"
            ridden_out(store, f"storing the files of {inv_id}", lambda: told if stopping() else None)

    def fetch(self, full: str, path: Path) -> bool:
        """Bring a key that another worker wrote to its place here; False where there is none."""
        channel = self._channel()
        return ridden_out(
            lambda: channel.keeps_files and files.bring(channel, full, path),
            f"reading the key {full!r}",
            _patient,
        )


def _patient() -> None:
    """Wait on: a body that is to stop is stopped in its wait."""
