"""Starts the process of a child: what that takes and no more, so that it comes up while the worker does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Final

from lakeshore import settings

_SOCKET_BYTES: Final = 4 * 1024 * 1024
_START: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[3]); "
    "from lakeshore.worker.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


class Spawned:
    """A child's process and our end of the line to it.

    Raises
    ------
    OSError
        When no process can be started.
    """

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair()
        # Ours alone: a large job need not wait for its reader, but frames must not queue up on their way.
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        with theirs:
            try:
                self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [
                        sys.executable,
                        "-c",
                        _START,
                        str(theirs.fileno()),
                        str(os.getpid()),
                        json.dumps(sys.path),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                    env=settings.without_token(),
                )
            except BaseException:
                self.line.close()
                raise

    def close(self) -> None:
        """End it before it was of use."""
        self.line.close()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
