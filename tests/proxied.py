"""A line that can be cut: a TCP proxy as a process of its own, to be stopped, reset, or told to drop."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

PROXY = """
    import os, select, signal, socket, sys, threading
    mine, to = (sys.argv[1], int(sys.argv[2])), (sys.argv[3], int(sys.argv[4]))
    pairs, lock, deaf = set(), threading.Lock(), threading.Event()

    def pump(here, there):
        try:
            while data := here.recv(65536):
                if not deaf.is_set():
                    there.sendall(data)
        except OSError:
            pass
        for each in (here, there):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def serve():
        with socket.create_server(mine) as door:
            print("ready", flush=True)
            while True:
                here, _ = door.accept()
                try:
                    there = socket.create_connection(to, 5)
                except OSError:
                    here.close()
                    continue
                there.settimeout(None)
                with lock:
                    pairs.add((here, there))
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    for line in sys.stdin:
        verb = line.strip()
        if verb == "reset":
            with lock:
                gone, pairs = list(pairs), set()
            for pair in gone:
                for each in pair:
                    try:
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
                        each.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass
        elif verb == "deaf":
            deaf.set()
        elif verb == "hear":
            deaf.clear()
        print("done", flush=True)
"""


class Line:
    """A proxy from an address to another; `within` are words to start it with."""

    def __init__(self, mine: tuple[str, int], to: tuple[str, int], *within: str) -> None:
        self.host, self.port = mine
        self._process = subprocess.Popen(
            [*within, sys.executable, "-c", textwrap.dedent(PROXY), *map(str, (*mine, *to))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def tell(self, verb: str) -> None:
        """Do ``reset`` (end all connections), ``deaf`` (take what is sent and drop it) or ``hear``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(verb + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def stop(self) -> None:
        """Stop it as it is: what is sent is taken by the kernel, and goes nowhere."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
