"""Files and code over HTTP: signed URLs, uploads that go on where they were cut, and `push_code`.

What travels is held against its SHA-256 on both sides. A URL of another server is asked without the token.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlencode, urlsplit

from lakeshore.codebase.git import Repository
from lakeshore.codebase.shipping import Shipment, shipped
from lakeshore.errors import DispatchError, NotSupported, PlaneUnavailable
from lakeshore.planes.http_asking import Asking
from lakeshore.planes.http_tries import Answer, Body, Broken, Setback, Tries
from lakeshore.planes.protocol import HEADER, Route
from lakeshore.planes.protocol_files import (
    FILE,
    LOOKUP,
    OBJECT_BYTES,
    PART_BYTES,
    PRESIGN,
    REGISTER,
    arrived,
    digest_header,
    read_digest,
)

JSON: Final = "application/json"
_OURS: Final = "/v1/files/"
_URL_SECONDS: Final = 3600
_LEAST_PART: Final = 256 * 1024
_READ: Final = 1024 * 1024
_STALLS: Final = 5
_FINISH_SECONDS: Final = 600.0
"""How long a control plane may take to put a large file together."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Code that is stored: its work tree, its stamp, and the files in it."""

    top: Path
    stamp: dict[str, Any]
    paths: frozenset[str]


class _Known:
    """What this process has pushed, by work tree."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.trees: dict[Path, tuple[Any, Pushed]] = {}


class Filing(Asking):
    """Put files, get files, push code."""

    def __init__(self, tries: Tries, ns: str) -> None:
        super().__init__(tries, ns)
        self._known = _Known()

    # -- code -------------------------------------------------------------------

    def push_code(self, folder: Path | str | None = None) -> dict[str, Any] | None:
        """Store the git work tree as it is now, and return the stamp by which workers mount it.

        The same tree is stored once. What differs from HEAD, and new files that ``.gitignore`` does not name,
        go along: the stamp then says ``dirty``. ``.lakeshoreignore`` leaves out more. The index, the files
        and ``.git`` stay untouched, and no hook runs.

        Parameters
        ----------
        folder : path, optional
            Any folder of the work tree; default the working directory.

        Returns
        -------
        dict or None
            ``remote commit branch dirty tree digest archiveKey storageName sizeBytes submodules``; None
            outside git, and where git is not installed.

        Raises
        ------
        TransportError
            When the tree is over the size limit (names the largest files), or git cannot be used.
        DispatchError
            When the control plane takes no files, or cannot be reached.
        """
        pushed = self.push_tree(Path.cwd() if folder is None else Path(folder))
        return None if pushed is None else dict(pushed.stamp)

    def push_tree(self, folder: Path) -> Pushed | None:
        """Store the work tree of `folder`; see `push_code`."""
        repository = Repository.find(folder)
        if repository is None:
            return None
        if self._known.pid != os.getpid():  # a lock may have been held as the process forked
            self._known = _Known()
        known = self._known
        with known.lock:
            state = repository.state()
            before = known.trees.get(repository.top)
            if before is not None and before[0] == state:
                return before[1]
            with shipped(repository) as shipment:
                stored = before is not None and before[1].stamp["digest"] == shipment.stamp["digest"]
                if not stored:
                    self._store(shipment)
                pushed = Pushed(repository.top, shipment.stamp, shipment.paths)
            known.trees[repository.top] = (state, pushed)
        if shipment.notes and before is None:
            warnings.warn(
                f"push_code: left out of {str(repository.top)!r}: {'; '.join(shipment.notes)}", stacklevel=2
            )
        return pushed

    def _store(self, shipment: Shipment) -> None:
        stamp = shipment.stamp
        digest = stamp["digest"].removeprefix("sha256:")
        self.put_file(stamp["storageName"], stamp["archiveKey"], shipment.archive, stamp["sizeBytes"], digest)
        names = ("remote", "commit", "branch", "backend", "archiveKey", "storageName", "sizeBytes")
        row = {name: stamp[name] for name in (*names, "submodules", "dirty")}
        query = urlencode({"remote": row["remote"], "commit": row["commit"]})
        found = self._exchange("push_code", "GET", f"{self._path(LOOKUP)}?{query}", miss=True)
        if found is None or _json(found).get("archiveKey") != row["archiveKey"]:
            body = json.dumps(row).encode()
            self._exchange("push_code", "POST", self._path(REGISTER), body, {"Content-Type": JSON})

    # -- files ------------------------------------------------------------------

    @property
    def keeps_files(self) -> bool:
        """Whether the control plane is one of ours, which all keep files; asks it while nothing is known."""
        return self._is_ours("put_file")

    def _connection(self) -> dict[str, Any]:
        """Return what makes the same client again in a child of this worker; holds the token."""
        tries = self._tries
        return {
            "base_url": tries.address.url,
            "token": tries.secret._token,
            "namespace": self._ns,
            "timeout": tries.timeout,
            "insecure": True,
        }

    def put_file(
        self,
        storage: str,
        key: str,
        file: IO[bytes],
        size: int,
        digest: str,
        media: str = FILE,
        *,
        claim: tuple[str, int] | None = None,
    ) -> None:
        """Store a file under a key; it is there for others once this returns, and not before.

        Parameters
        ----------
        storage, key : str
            Where.
        file : binary file
            Seekable; must not change meanwhile.
        size, digest : int, str
            Its bytes, and its SHA-256 in hexadecimal. A content that is stored already is not sent again, and
            what came of it before a cut is not sent twice.
        media : str
            What `get_file` is told.
        claim : tuple, optional
            Invocation and fence of the claim under which it was written; nothing is stored once that is lost.

        Raises
        ------
        ClaimLost
            When the claim is no longer current.
        DispatchError
            When it is too large, or changed while it was sent.
        PlaneUnavailable
            When the control plane does not answer.
        """
        asked: dict[str, object] = {"sizeBytes": size}
        if claim is not None:
            asked["invocation_id"], asked["fence"] = claim
        url = self._url("put", storage, key, **asked)
        headers = {"Repr-Digest": digest_header(digest), "Content-Type": media}
        if not url.startswith(_OURS):
            file.seek(0)
            self._exchange("put_file", "PUT", url, file.read(), {"Content-Type": media})
            return
        part, stalls, have = PART_BYTES, 0, -1
        range_, data = f"bytes */{size}", b""
        while True:
            told = {**headers, "Content-Range": range_}
            answer = self._once_more("put_file", "PUT", url, data, told)
            if answer.status == 403:
                url = self._url("put", storage, key, **asked)
                stalls += 1
            elif answer.status == 413 and len(data) > _LEAST_PART:
                part = max(_LEAST_PART, len(data) // 4)  # a proxy in between takes less
            elif answer.status == 202:
                now = arrived(answer.headers.get("range"))
                stalls, have = (0 if now > have else stalls + 1), now
            elif answer.status < 300:
                return
            else:
                raise self._refusal("put_file", PRESIGN, answer, size)
            if stalls > _STALLS:
                raise PlaneUnavailable(
                    f"put_file: {self._tries.address.url} does not get on with {key!r}: {max(have, 0):,} of "
                    f"{size:,} bytes after {stalls} tries. Its log says why."
                )
            first = max(have, 0)
            file.seek(first)
            data = file.read(min(part, size - first))
            if not data:
                raise DispatchError(f"put_file: {key!r} is shorter than its {size:,} bytes. Send it again.")
            range_ = f"bytes {first}-{first + len(data) - 1}/{size}"

    def get_file(self, storage: str, key: str, into: IO[bytes], *, most: int = OBJECT_BYTES) -> str | None:
        """Write a stored file to `into`; returns its media type, None where there is no such key.

        Parameters
        ----------
        most : int
            The most bytes to take, default 64 GiB, which no stored file exceeds.

        Raises
        ------
        DispatchError
            When what came is not what was stored, or is over `most`.
        PlaneUnavailable
            When the control plane does not answer.
        """
        url = self._url("get", storage, key)
        tag, hashed, have, stalls = "", hashlib.sha256(), 0, 0
        until = time.monotonic() + self._tries.timeout
        while True:
            wanted = {"Range": f"bytes={have}-", "If-Match": f'"{tag}"'} if have else {}
            opened = self._tries.line.open(
                "GET", url, content=None, accept="*/*", read_timeout=self._tries.timeout, headers=wanted
            )
            setback = self._tries.setback(opened)
            if setback is not None:
                self._wait("get_file", setback, stalls, until)
                stalls += 1
                continue
            assert not isinstance(opened, Broken | Answer)
            try:
                if opened.status == 404 and (HEADER.lower() in opened.headers or not self._tries.ours):
                    return None
                if opened.status == 403 and stalls <= _STALLS:
                    stalls += 1
                    url = self._url("get", storage, key)
                    continue
                if opened.status in (412, 416) and have and stalls <= _STALLS:
                    opened.close()
                    tag, hashed, have, stalls = "", hashlib.sha256(), 0, stalls + 1
                    continue
                if opened.status not in (200, 206):
                    parts = opened.read()
                    body = parts if isinstance(parts, bytes) else b""
                    raise self._refusal("get_file", PRESIGN, Answer(opened.status, opened.headers, body))
                if opened.status == 200:
                    have, hashed = 0, hashlib.sha256()
                    into.seek(0)
                    into.truncate()
                before = have
                have, why = _take(opened, into, hashed, have, most)
                if why is None:
                    return self._checked(opened, hashed, key)
                if have > before:
                    until, stalls = time.monotonic() + self._tries.timeout, 0
                tag = opened.headers.get("etag", "").strip('"')
                have = have if tag else 0
                self._wait("get_file", Setback(why.why, landed=True), stalls, until)
                stalls += 1
            finally:
                opened.close()

    @staticmethod
    def _checked(opened: Body, hashed: Any, key: str) -> str:
        try:
            wanted = read_digest(opened.headers.get("repr-digest"))
        except ValueError:
            wanted = None
        if wanted is not None and wanted != hashed.hexdigest():
            raise DispatchError(
                f"get_file: {key!r} is not what was stored: its digest differs. Get it again."
            )
        return opened.media

    def _url(self, operation: str, storage: str, key: str, **more: object) -> str:
        """Return the signed URL for an operation: a path of ours, or another server's whole URL."""
        body = {"key": key, "operation": operation, "expiresIn": _URL_SECONDS, **more}
        answer = self._exchange(
            "presign",
            "POST",
            self._path(PRESIGN, name=storage),
            json.dumps(body).encode(),
            {"Content-Type": JSON},
        )
        assert answer is not None
        url = _json(answer).get("url")
        if not isinstance(url, str):
            raise self._tries.malformed("presign", "no url")
        parts = urlsplit(url)
        if _OURS in parts.path and self._tries.ours:
            # whatever name the control plane has for itself, it is reached as it was until now
            return parts.path[parts.path.index(_OURS) :]
        loopback = parts.hostname in ("127.0.0.1", "localhost", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
            raise DispatchError(
                f"presign: {self._tries.address.url} signed a URL that is not https ({parts.scheme}://...); "
                "files would cross the network in clear."
            )
        return url

    # -- asking -----------------------------------------------------------------

    def _exchange(
        self,
        verb: str,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        miss: bool = False,
    ) -> Answer | None:
        """Ask until there is an answer; a 404 is None where `miss` says so."""
        answer = self._once_more(verb, method, path, content, headers or {})
        if answer.status < 300:
            return answer
        if miss and answer.status == 404 and not self._tries.is_strange(answer):
            return None
        raise self._refusal(verb, PRESIGN, answer, len(content or b""))

    def _once_more(
        self, verb: str, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        tries, until = 0, time.monotonic() + self._tries.timeout
        patience = max(self._tries.timeout, 1.0)
        if method == "PUT":
            patience += _FINISH_SECONDS
        while True:
            outcome = self._tries.line.send(
                method, path, content=content, accept=JSON, read_timeout=patience, headers=headers
            )
            setback = self._tries.setback(outcome)
            if setback is None:
                assert isinstance(outcome, Answer)
                return outcome
            self._wait(verb, setback, tries, until)
            tries += 1

    def _wait(self, verb: str, setback: Setback, tries: int, until: float) -> None:
        pause = self._tries.pause(tries, setback)
        if setback.hopeless or time.monotonic() + pause > until:
            raise self._tries.unavailable(verb, setback)
        time.sleep(pause)

    def _refusal(self, verb: str, route: Route, answer: Answer, size: int = 0) -> DispatchError:
        if self._tries.is_strange(answer):
            return self._tries.no_answer(verb, answer)
        if answer.status in (404, 405, 501) and not self._tries.ours:
            return NotSupported(
                f"{verb}: the control plane at {self._tries.address.url} keeps no files ({answer.status})."
            )
        return self._tries.refusal(verb, route, answer, size=size)


def _take(opened: Body, into: IO[bytes], hashed: Any, have: int, most: int) -> tuple[int, Broken | None]:
    """Write what comes; returns how much there is by now, and what broke it off.

    Raises
    ------
    DispatchError
        When it is more than `most`.
    """
    wanted = opened.headers.get("content-length", "")
    end = have + int(wanted) if wanted.isdigit() else None
    while True:
        part = opened.read()
        if isinstance(part, Broken):
            return have, part
        if part is None:
            if end is not None and have < end:
                return have, Broken("the answer ended early", landed=True)
            return have, None
        if have + len(part) > (most if end is None else min(most, end)):
            limit = most if end is None else min(most, end)
            raise DispatchError(f"get_file: more than the {limit:,} bytes came that it may have, or said to.")
        hashed.update(part)
        have += into.write(part)


def _json(answer: Answer) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
