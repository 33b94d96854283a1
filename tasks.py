"""The repository's own commands, for a machine with Python >= 3.11 and git alone; stdlib only.

    python3 tasks.py demo     run the tutorial's training job and watch it stream
    python3 tasks.py test     run every test, the notebooks included
    python3 tasks.py lint     ruff and mypy --strict
    python3 tasks.py docs     build the guide into build/docs
    python3 tasks.py lab      open the notebooks in JupyterLab
    python3 tasks.py notebooks   run the notebooks afresh and save their outputs

Each makes `.venv` when it is missing, installs what the command needs and runs it there.
The syntax stays readable to old interpreters, so that they can say what is wrong.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

MINIMUM = (3, 11)
HERE = "{}.{}".format(*sys.version_info)
ROOT = pathlib.Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = str(VENV / "bin" / "python")
STAMP = VENV / "lakeshore-installed.json"
EXTRAS = {
    "demo": "notebooks",
    "test": "dev",
    "lint": "dev",
    "docs": "docs",
    "lab": "notebooks",
    "notebooks": "notebooks",
}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class TaskError(Exception):
    """A task cannot go on; the text says what to do."""


def say(text):
    """Print one progress line at once, whatever the output is."""
    print(f"[lakeshore] {text}", flush=True)


def run(command, **options):
    """Run a command in the repository and return its exit code."""
    options.setdefault("cwd", str(ROOT))
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.call(command, **options)


def as_root():
    """Tell whether packages of the system may be installed."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(*packages):
    """Install Debian packages without asking; return whether it worked."""
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    wait = ["-q", "-o", "DPkg::Lock::Timeout=120"]
    say("installing " + " ".join(packages) + " with apt-get")
    with tempfile.TemporaryFile() as log:
        for step in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            if run(["apt-get", *wait, *step], env=env, stdout=log, stderr=log) != 0 and step != ["update"]:
                log.seek(0)
                say("apt-get failed: " + log.read().decode(errors="replace").strip()[-600:])
                return False
    return True


# -- the environment ---------------------------------------------------------------------------


def newer_python():
    """Find an interpreter of at least the minimum version on the PATH."""
    for minor in range(MINIMUM[1] + 4, MINIMUM[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and run([found, "-c", "pass"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return found
    return None


def check_python():
    """Hand over to a newer interpreter where this one is too old."""
    if sys.version_info >= MINIMUM:
        return
    found = newer_python()
    if found is None:
        raise TaskError(
            f"this is Python {HERE} ({sys.executable}) and lakeshore needs "
            f"{MINIMUM[0]}.{MINIMUM[1]} or newer; none is on the PATH. Install one and run tasks.py with it."
        )
    say(f"this is Python {HERE}; going on with {found}")
    os.execv(found, [found, *sys.argv])


def venv_works():
    """Tell whether `.venv` has an interpreter that starts and is new enough."""
    test = f"import sys; sys.exit(sys.version_info < {MINIMUM})"
    return pathlib.Path(PYTHON).exists() and run([PYTHON, "-c", test], stderr=subprocess.DEVNULL) == 0


def make_venv():
    """Make `.venv` by the first way that works here: venv, uv, virtualenv, Debian's python3-venv."""
    shutil.rmtree(VENV, ignore_errors=True)
    ways = [[sys.executable, "-m", "venv", str(VENV)]]
    uv = shutil.which("uv")
    if uv:
        ways.append([uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(VENV)])
    ways.append([sys.executable, "-m", "virtualenv", "--quiet", str(VENV)])
    for way in ways:
        shutil.rmtree(VENV, ignore_errors=True)
        with tempfile.TemporaryFile() as log:
            if run(way, stdout=log, stderr=log) == 0 and venv_works():
                return
    package = f"python{HERE}-venv"
    if as_root() and apt_install(package):
        shutil.rmtree(VENV, ignore_errors=True)
        if run([sys.executable, "-m", "venv", str(VENV)]) == 0 and venv_works():
            return
    shutil.rmtree(VENV, ignore_errors=True)
    raise TaskError(
        f"could not make a virtual environment with {sys.executable}: its venv module does not work here. "
        f"Debian and Ubuntu: apt-get install {package}; elsewhere: install uv or virtualenv. "
        "Then run this again."
    )


def wanted():
    """Describe what an installation depends on, to tell when it is out of date."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return {"pyproject": digest, "root": str(ROOT)}


def read_stamp():
    """Return what the last installation noted, {} where there was none."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(STAMP.read_text()))
    return {}


def installed(extra):
    """Tell whether the last installation still stands and has `extra`."""
    stamp = read_stamp()
    same = all(stamp.get(key) == value for key, value in wanted().items())
    return same and extra in stamp.get("extras", []) and venv_works()


def install(extra):
    """Install the project, editable and with `extra`, unless that is done already."""
    if installed(extra):
        return
    started = time.time()
    if not venv_works():
        say(f"making .venv with Python {HERE}")
        make_venv()
    extras = sorted({extra, *read_stamp().get("extras", []), *(["notebooks"] if extra == "dev" else [])})
    target = f".[{','.join(extras)}]"
    say(f"installing lakeshore{target[1:]} into .venv")
    if not any(run(command) == 0 for command in installers(target)):
        raise TaskError(
            "the installation failed; the lines above say why. Without a network, point pip at a mirror "
            "or a folder of wheels (PIP_INDEX_URL, PIP_FIND_LINKS) and run this again."
        )
    STAMP.write_text(json.dumps(dict(wanted(), extras=extras)))
    say(f"installed in {time.time() - started:.1f} s")


def installers(target):
    """Yield the commands that may install `target`, the fastest first; each is tried when asked for."""
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv:
        yield [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", PYTHON, "-e", target]
    elif run([*pip, "install", "--quiet", "uv"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
        yield [
            PYTHON,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            "--python",
            PYTHON,
            "-e",
            target,
        ]
    say("going on with pip, which is slower than uv")
    yield [*pip, "install", "--quiet", "-e", target]


@contextlib.contextmanager
def isolated():
    """Give an environment in which neither lakeshore nor Jupyter touches the user's own files."""
    home = tempfile.mkdtemp(prefix="lakeshore-")
    env = dict(os.environ, JUPYTER_PLATFORM_DIRS="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
    for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "LAKESHORE_URL", "LAKESHORE_NAMESPACE"):
        env.pop(name, None)
    for name, folder in (
        ("LAKESHORE_HOME", "lakeshore"),
        ("JUPYTER_CONFIG_DIR", "config"),
        ("JUPYTER_DATA_DIR", "data"),
        ("JUPYTER_RUNTIME_DIR", "runtime"),
        ("JUPYTERLAB_SETTINGS_DIR", "settings"),
        ("JUPYTERLAB_WORKSPACES_DIR", "workspaces"),
        ("IPYTHONDIR", "ipython"),
        ("MPLCONFIGDIR", "matplotlib"),
    ):
        env[name] = str(pathlib.Path(home, folder))
        pathlib.Path(env[name]).mkdir(mode=0o700)
    try:
        yield env
    finally:
        shutil.rmtree(home, ignore_errors=True)


# -- the tasks ---------------------------------------------------------------------------------


def demo(arguments):
    """Run the training notebook in a real kernel and print what it streams."""
    with isolated() as env:
        del env["LAKESHORE_HOME"]
        return run([PYTHON, "notebooks/demo.py", "--started", repr(STARTED), *arguments], env=env)


def find_chromium():
    """Return the browser for the browser tests; install Debian's where that is possible."""
    named = os.environ.get("CHROMIUM")
    found = named or next((path for path in map(shutil.which, CHROMIUM) if path), None)
    if found is None and as_root() and apt_install("chromium", "fonts-dejavu-core"):
        found = next((path for path in map(shutil.which, CHROMIUM) if path), None)
    return found


def test(arguments):
    """Run pytest over tests/, then the notebooks twice, strictly; arguments go to the first run alone."""
    chromium = find_chromium()
    if chromium is None:
        say("no Chromium here and no way to install it: the browser tests will be skipped, by name")
    with isolated() as env:
        if chromium is not None:
            env["CHROMIUM"] = chromium
        code = run([PYTHON, "-m", "pytest", *arguments], env=env)
        if arguments:
            return code
        if code == 1:
            say("some tests failed: each once more; report one that passes now, it hangs on timing")
            code = run([PYTHON, "-m", "pytest", "--last-failed"], env=env)
        nbval = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", "notebooks/sanitize.cfg"]
        for count in ("first", "second"):
            say(f"the notebooks, strictly, for the {count} time")
            code = run([PYTHON, "-m", "pytest", "-q", *nbval, "notebooks"], env=env) or code
        return code


def lint(_):
    """Check style, format and types."""
    steps = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["mypy", "tests/typing"])
    return max([run([PYTHON, "-m", *step]) for step in steps])


def docs(arguments):
    """Build the guide; a warning is an error."""
    target = "build/docs"
    with isolated() as env:
        code = run([PYTHON, "-m", "sphinx", "-q", "-W", "--keep-going", *arguments, "docs", target], env=env)
    if code == 0:
        say(f"built {target}/index.html")
    return code


def lab(arguments):
    """Open the notebooks in JupyterLab."""
    root = ["--allow-root"] if as_root() else []
    return run([PYTHON, "-m", "jupyter", "lab", *root, "--notebook-dir", "notebooks", *arguments], stdin=None)


def notebooks(arguments):
    """Run the notebooks afresh and save them with their outputs."""
    with isolated() as env:
        return run([PYTHON, "notebooks/execute.py", *arguments], env=env)


TASKS = {"demo": demo, "test": test, "lint": lint, "docs": docs, "lab": lab, "notebooks": notebooks}
STARTED = time.time()


def main(arguments):
    """Run one task and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments else 2
    name = arguments[0]
    if name not in TASKS:
        print(f"tasks.py: no task {name!r}; there are {', '.join(TASKS)}", file=sys.stderr)
        return 2
    try:
        check_python()
        install(EXTRAS[name])
        return TASKS[name](arguments[1:])
    except TaskError as error:
        print(f"tasks.py {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
