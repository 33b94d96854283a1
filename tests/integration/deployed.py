"""The examples of deploy/, read as their tools read them, and their commands as processes of this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
PATH = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"


def documents(path: Path) -> list[Any]:
    """Return what a YAML file holds."""
    yaml = pytest.importorskip("yaml", reason="no YAML reader: the extra dev brings one")
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def compose() -> dict[str, Any]:
    """Return compose.yaml with its variables at their defaults."""
    yaml = pytest.importorskip("yaml", reason="no YAML reader: the extra dev brings one")
    return yaml.safe_load(with_defaults((DEPLOY / "compose" / "compose.yaml").read_text("utf-8")))


def with_defaults(text: str) -> str:
    """Return what a compose file says where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def kubernetes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(file, object)`` for each object of the manifests."""
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in documents(path):
            yield path.name, document


def pods() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return each object that makes pods, by its name, with the template of them."""
    found = {}
    for _, thing in kubernetes():
        spec = thing.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template", {})
        if "spec" in template:
            found[thing["metadata"]["name"]] = (thing, template)
    return found


def unit(name: str) -> list[tuple[str, str]]:
    """Return a systemd unit's settings in order, without its sections."""
    lines = (DEPLOY / "systemd" / name).read_text("utf-8").splitlines()
    return [
        (key, value)
        for line in lines
        if "=" in line and line[0] not in "#["
        for key, _, value in [line.partition("=")]
    ]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def until(seen: Callable[[], Any], seconds: float = 30.0, told: Callable[[], str] = str) -> Any:
    """Wait until `seen` returns something, and return that."""
    end = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < end, told()
        time.sleep(0.03)
    return found


def answers(url: str, token: str | None = None) -> tuple[int, bytes]:
    """Ask as a probe does; (0, b"") where nobody answers."""
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, b""
    except OSError:
        return 0, b""


class Machine:
    """Where commands of an example run: names of theirs are places, ports and hosts of a test's own.

    Parameters
    ----------
    folder : Path
        For state and logs.
    places : dict
        What stands for what, the longest first.
    """

    def __init__(self, folder: Path, places: Mapping[str, str]) -> None:
        self.folder, self._places = folder, dict(sorted(places.items(), key=lambda pair: -len(pair[0])))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("LAKESHORE_", "PG"))
        } | {"PATH": PATH, "PYTHONUNBUFFERED": "1", "HOME": str(folder)}

    def here(self, word: str) -> str:
        """Return a word of a command with this machine's names in it."""
        pattern = "|".join(re.escape(name) for name in self._places)
        return re.sub(pattern, lambda found: self._places[found[0]], word) if pattern else word

    def run(self, words: Sequence[str], **env: str) -> str:
        """Run a command to its end, which must be a good one; returns what it printed."""
        done = subprocess.run(
            [self.here(word) for word in words],
            env=self.env | {name: self.here(value) for name, value in env.items()},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def start(self, name: str, words: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a command; what it prints is kept for `said`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [self.here(word) for word in words],
                env=self.env | {key: self.here(value) for key, value in env.items()},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def said(self, name: str) -> str:
        """Return what a started command has printed."""
        return (self.folder / f"{name}.log").read_text("utf-8", errors="replace")

    def close(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass
class Example:
    """The commands of one way to deploy, in this machine's names."""

    name: str
    machine: Machine
    port: int
    setup: list[list[str]]
    server: list[str]
    worker: list[str]
    tokens: dict[str, Path]
    queue: str = "default"
    probe: list[str] = field(default_factory=list)
    server_env: dict[str, str] = field(default_factory=dict)
    worker_env: dict[str, str] = field(default_factory=dict)
    prune: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, role: str) -> str:
        return self.tokens[role].read_text().strip()


def with_secrets(folder: Path, dsn: str | None) -> dict[str, Path]:
    """Make the secrets as the examples say, with the address of a database that there is."""
    subprocess.run([DEPLOY / "compose" / "secrets.sh", folder], check=True, stdout=subprocess.DEVNULL)
    made = {path.name: path for path in folder.iterdir()}
    if dsn is not None:
        made["store"].write_text(dsn)
    return made


def of_compose(folder: Path, dsn: str) -> Example:
    secrets, port, state = with_secrets(folder / "secrets", dsn), free_port(), folder / "state"
    state.mkdir()
    places = {
        "/run/secrets": str(folder / "secrets"),
        "/var/lib/lakeshore": str(state),
        "0.0.0.0": "127.0.0.1",
        "8080": str(port),
        "http://server": "http://127.0.0.1",
    }
    services = compose()["services"]
    env = {"LAKESHORE_HOME": "/var/lib/lakeshore"}
    nightly = re.search(
        r"docker compose run --rm setup (.*)", (DEPLOY / "compose" / "compose.yaml").read_text()
    )
    assert nightly is not None
    return Example(
        "compose",
        Machine(folder, places),
        port,
        [[word.replace("$$", "$") for word in services["setup"]["command"]]],
        services["server"]["command"],
        services["worker"]["command"],
        {role: secrets[f"{role}_token"] for role in ("admin", "worker", "producer")},
        probe=services["server"]["healthcheck"]["test"][1:],
        server_env=env,
        worker_env=env,
        prune=nightly[1].split(),
    )


def of_kubernetes(folder: Path, dsn: str) -> Example:
    secrets, port, state = with_secrets(folder / "made", dsn), free_port(), folder / "state"
    state.mkdir()
    made = {name: template["spec"] for name, (thing, template) in pods().items() if "postgres" not in name}
    told = (DEPLOY / "kubernetes" / "kustomization.yaml").read_text()
    kept = dict(re.findall(r"--from-file=(\w+)=secrets/(\w+)", told))
    for name, pod in made.items():
        for volume in pod["volumes"]:
            secret = volume.get("secret")
            if secret is None:
                continue
            for key in [item["key"] for item in secret.get("items", ())] or ["store"]:
                at = folder / "pods" / name / volume["name"] / key
                at.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(secrets[kept[key]], at)

    def words(name: str) -> list[str]:
        (container,) = made[name]["containers"]
        found = container.get("command") or container["args"]
        return [word.replace("/run/secrets", str(folder / "pods" / name)) for word in found]

    places = {
        "/var/lib/lakeshore": str(state),
        "0.0.0.0": "127.0.0.1",
        "8080": str(port),
        "http://lakeshore:": "http://127.0.0.1:",
    }
    env = {"LAKESHORE_HOME": "/var/lib/lakeshore"}
    return Example(
        "kubernetes",
        Machine(folder, places),
        port,
        [words("lakeshore-setup")],
        words("lakeshore-server"),
        words("lakeshore-worker"),
        {role: secrets[f"{role}_token"] for role in ("admin", "worker", "producer")},
        server_env=env,
        worker_env=env,
        prune=words("lakeshore-prune"),
    )


def of_systemd(folder: Path, dsn: str) -> Example:
    del dsn  # the file that its comments name
    secrets, port = with_secrets(folder / "made", None), free_port()
    server, worker = unit("lakeshore-server.service"), unit("lakeshore-worker@.service")
    text = (DEPLOY / "systemd" / "lakeshore-server.service").read_text()
    stated = re.search(r"<<<'(sqlite:\S+)'", text)
    assert stated is not None
    state = folder / "state"
    (state / "lakeshore").mkdir(parents=True)
    (state / "lakeshore-worker-gpu").mkdir()
    secrets["store"].write_text(stated[1].replace("/var/lib", str(state)))
    credentials = folder / "credentials"
    credentials.mkdir()
    for key, value in [*server, *worker]:
        if key == "LoadCredential":
            name, _, source = value.partition(":")
            shutil.copy(secrets[Path(source).name.replace("-", "_")], credentials / name)
    places = {
        "/opt/lakeshore/bin": str(BIN),
        "%d": str(credentials),
        "%S": str(state),
        "%I": "gpu",
        "%i": "gpu",
        "${WORKERS}": "1",
        "8080": str(port),
    }

    def started(settings: list[tuple[str, str]], which: str) -> list[list[str]]:
        found = [shlex.split(value) for key, value in settings if key == which]
        return [
            [part for word in words for part in (("--allow-pickled",) if word == "$ARGUMENTS" else (word,))]
            for words in found
        ]

    def env(settings: list[tuple[str, str]]) -> dict[str, str]:
        pairs = [
            pair.partition("=") for key, value in settings if key == "Environment" for pair in value.split()
        ]
        return {name: value for name, _, value in pairs if name.startswith("LAKESHORE_")}

    return Example(
        "systemd",
        Machine(folder, places),
        port,
        started(server, "ExecStartPre"),
        started(server, "ExecStart")[0],
        started(worker, "ExecStart")[0],
        {role: secrets[f"{role}_token"] for role in ("admin", "worker", "producer")},
        queue="gpu",
        server_env=env(server),
        prune=started(unit("lakeshore-prune.service"), "ExecStart")[0],
        worker_env={**env(worker), "LAKESHORE_URL": f"http://127.0.0.1:{port}"},
    )
