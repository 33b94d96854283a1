"""Transport: what goes by reference, what by value, and the gates on the way in."""

import hashlib
import importlib
import operator
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings
from collections import OrderedDict

import pytest

import lakeshore
from lakeshore import (
    CaptureError,
    Dispatch,
    NotImportable,
    PickleRefused,
    RuntimeMismatch,
    StaleSource,
    SyncQueue,
    TransportError,
    thunk,
    udf,
    wire,
)
from lakeshore.functions.capture import LargeCaptureWarning
from lakeshore.functions.reference import by_reference
from lakeshore.functions.source import source_hash
from lakeshore.functions.transport import by_value, capture_report, describe, resolve

OPEN = {"registry": {}, "allow_pickled": True, "runtime_policy": "minor", "trusted": True}


def back(fn, **options):
    return resolve(describe(fn, **options), **OPEN)[0]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Make a module on a path of this process; gone afterwards."""
    made = []

    def make(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield make
    for name in made:
        sys.modules.pop(name, None)


# ---- which way


@pytest.mark.parametrize("fn", [len, pow, operator.add, textwrap.dedent, OrderedDict, by_value,
                                wire.Envelope.from_bytes])  # fmt: skip
def test_what_is_installed_goes_by_reference(fn):
    described = describe(fn)
    assert described["kind"] == "ref"
    assert resolve(described, **OPEN)[0] == fn


def make_local():
    def local():
        return "local"

    return local


local = make_local()


@pytest.mark.parametrize(
    "fn", [local, lambda: 1, [].append, "x".join], ids=["local", "lambda", "method", "str"]
)
def test_what_no_module_has_goes_by_value(fn):
    assert describe(fn)["kind"] == "pickle"
    if fn is local:
        assert back(fn)() == "local"


def test_a_module_that_only_this_process_finds_goes_by_value(module):
    m = module("ls_neighbour", "def f(): return 'f'\n")
    assert describe(m.f)["kind"] == "pickle"
    assert back(m.f)() == "f"
    assert describe(m.f, transport="ref")["module"] == "ls_neighbour"


def test_by_reference_on_demand():
    assert describe(textwrap.dedent, transport="ref")["qualname"] == "dedent"
    with pytest.raises(TransportError, match="by reference"):
        describe(lambda: 1, transport="ref")


def test_a_name_that_is_another_function_by_now_is_no_reference(module):
    m = module("ls_renamed", "def f(): return 1\nkept = f\ndef f(): return 2\n")
    assert by_reference(m.kept, force=True) is None
    assert by_reference(m.f, force=True) is not None


def test_the_fields_are_the_wires():
    ref, value = describe(textwrap.dedent), describe(local)
    assert set(ref) == {"kind", "module", "qualname", "src_hash"}
    assert value.keys() >= {"kind", "blob", "hash", "source", "qualname", "where", "runtime"}
    assert value["hash"] == f"sha256:{hashlib.sha256(value['blob']).hexdigest()}"
    assert value["source"] == '    def local():\n        return "local"\n'
    assert value["where"].startswith("make_local.<locals>.local (functions/test_transport.py:")
    assert set(value["runtime"]) == {"python", "impl", "cloudpickle", "pickle_protocol", "platform"}
    assert pickle.loads(value["blob"])() == "local"


def test_a_module_that_is_not_installed_travels_with_what_it_holds(module, tmp_path):
    m = module("ls_helpers", """
        import math
        FACTOR = 3
        class Thing:
            def __init__(self, v): self.v = v
        def scale(x): return Thing(x * FACTOR)
        """)  # fmt: skip
    scale = m.scale

    def job(x):
        return [scale(x).v, m.scale(x).v, isinstance(m.Thing(1), m.Thing), m.math.floor(1.5)]

    described = describe(job)
    (tmp_path / "blob").write_bytes(wire.pack(described))
    code = """if True:
        import sys
        from lakeshore import wire
        from lakeshore.functions.transport import resolve
        fn = wire.unpack(open(sys.argv[1], "rb").read())
        f, _ = resolve(fn, registry={}, allow_pickled=True, runtime_policy="strict", trusted=True)
        assert "ls_helpers" not in sys.modules
        print(f(2))
    """
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "blob")], capture_output=True, text=True)
    assert out.stdout == "[6, 6, True, 1]\n", out.stderr


def test_what_such_a_module_holds_is_named_when_it_cannot_go(module):
    m = module("ls_locked", "import threading\nclass Box: pass\nbox = Box()\nbox.lock = threading.Lock()\n")
    with pytest.raises(CaptureError, match=r"closure variable 'm'.*'m\.box\.lock' is a _thread\.lock"):
        describe(lambda: m.box)


# ---- source hash


def test_the_hash_is_of_the_dedented_source_and_computed_once(module):
    m = module("ls_hash", "class A:\n    def f(self):\n        return 1\n")
    text = "def f(self):\n    return 1\n"
    assert source_hash(m.A.f).hash == f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    assert source_hash(m.A.f) is source_hash(m.A.f)
    assert source_hash(len).hash is None


def edit(m, text):
    with open(m.__file__, "w") as file:
        file.write(text)


def test_an_edit_after_the_import_is_found(module):
    text = "def f():\n    return 1\n\ndef g():\n    return 2\n"
    m = module("ls_edit", text)
    edit(m, "# a line above\n\n" + text.replace("1", "3"))
    assert source_hash(m.f).edited
    assert not source_hash(m.g).edited
    expected = hashlib.sha256(b"def g():\n    return 2\n").hexdigest()[:16]
    assert source_hash(m.g).hash == f"sha256:{expected}"
    assert by_reference(m.f) is None


def test_stale_source_is_refused_unless_off(module):
    m = module("ls_stale", "def f():\n    return 1\n")
    fn = {"kind": "ref", "module": "ls_stale", "qualname": "f", "src_hash": "sha256:0123456789abcdef"}
    for policy in ("strict", "minor"):
        with pytest.raises(StaleSource, match="ls_stale:f.*runtime_policy='off'"):
            resolve(fn, **{**OPEN, "runtime_policy": policy})
    assert resolve(fn, **{**OPEN, "runtime_policy": "off"})[0]() == 1
    assert resolve({**fn, "src_hash": None}, **OPEN)[0]() == 1
    good = describe(m.f, transport="ref")
    assert resolve(good, **OPEN)[0] is m.f
    other = module("ls_stale_too", "def f():\n    return 1\n")
    edit(other, "def f():\n    return 2\n")
    with pytest.raises(StaleSource, match="edited after this worker imported it"):
        resolve({**good, "module": "ls_stale_too"}, **OPEN)


# ---- gates


class Bomb:
    """Unpickling it would be seen."""

    went_off = False

    def __reduce__(self):
        return setattr, (Bomb, "went_off", True)


def bomb():
    blob = pickle.dumps(Bomb())
    stamp = describe(lambda: 1)["runtime"]
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    return {"kind": "pickle", "blob": blob, "hash": digest, "qualname": "bomb", "runtime": dict(stamp)}


def test_pickles_are_refused_before_they_are_opened():
    with pytest.raises(PickleRefused, match=r"allow_pickled=True.*--allow-pickled"):
        resolve(bomb(), **{**OPEN, "allow_pickled": False})
    assert not Bomb.went_off


def mismatch(**stamp):
    fn = bomb()
    fn["runtime"].update(stamp)
    return fn


MINE = ".".join(map(str, sys.version_info[:3]))
SAME_MINOR = ".".join(map(str, sys.version_info[:2])) + ".99"
NEXT_MINOR = f"3.{sys.version_info[1] + 1}.0"


@pytest.mark.parametrize(
    ("stamp", "policy"),
    [
        ({"python": "3.7.1"}, "minor"),
        ({"python": NEXT_MINOR}, "minor"),
        ({"python": SAME_MINOR}, "strict"),
        ({"python": None}, "minor"),
        ({"impl": "pypy"}, "minor"),
        ({"cloudpickle": "1.6.0"}, "minor"),
        ({"cloudpickle": "3.0.99"}, "strict"),
        ({"pickle_protocol": 6}, "minor"),
    ],
    ids=str,
)
def test_a_runtime_mismatch_is_refused_before_it_is_opened(stamp, policy):
    with pytest.raises(RuntimeMismatch) as caught:
        resolve(mismatch(**stamp), **{**OPEN, "runtime_policy": policy})
    (key, theirs), text = next(iter(stamp.items())), str(caught.value)
    assert str(theirs) in text
    if key == "python":
        assert MINE in text
    assert not Bomb.went_off


@pytest.mark.parametrize(
    ("stamp", "policy"),
    [
        ({"python": SAME_MINOR}, "minor"),
        ({"cloudpickle": "3.0.99"}, "minor"),
        ({"python": "2.7"}, "off"),
        ({}, "strict"),
        ({"impl": "CPython"}, "strict"),
    ],
    ids=str,
)
def test_a_runtime_that_matches_passes(stamp, policy):
    fn = describe(lambda: 5)
    fn["runtime"].update(stamp)
    assert resolve(fn, **{**OPEN, "runtime_policy": policy})[0]() == 5


def test_a_missing_stamp_or_wrong_hash_is_refused():
    with pytest.raises(RuntimeMismatch):
        resolve({**bomb(), "runtime": None}, **OPEN)
    with pytest.raises(TransportError, match="hash"):
        resolve({**bomb(), "hash": "sha256:0"}, **OPEN)
    with pytest.raises(TransportError, match="hash"):
        resolve({**bomb(), "blob": "text"}, **OPEN)
    assert not Bomb.went_off


def test_the_registry_comes_first_for_references_and_pickles():
    def mine():
        return "mine"

    shut = {"allow_pickled": False, "runtime_policy": "strict", "trusted": False}
    for registry in ({"nowhere:f": mine}, {"f": mine}, {"f": udf(queue="q")(mine)}):
        fn = {"kind": "ref", "module": "nowhere", "qualname": "f", "src_hash": "sha256:0"}
        assert resolve(fn, registry=registry, **shut)[0] is mine
    assert resolve({**bomb(), "qualname": "f"}, registry={"f": mine}, **shut)[0] is mine
    with pytest.raises(
        PickleRefused
    ):  # its arguments are in the pickle, which the registry's function would miss
        resolve({**bomb(), "qualname": "f", "bound": True}, registry={"f": mine}, **shut)
    assert not Bomb.went_off


SHUT = {"registry": {}, "allow_pickled": False, "runtime_policy": "minor", "trusted": False}


def ref(module, qualname):
    return {"kind": "ref", "module": module, "qualname": qualname, "src_hash": None}


@pytest.mark.parametrize(
    ("module_name", "qualname"),
    [
        ("os", "system"),
        ("antigravity", "fly"),
        ("subprocess", "run"),
        ("xml.dom.minidom", "parse"),
        ("__main__", "f"),
        ("builtins", "eval"),
        ("ls_trap", "f"),
        ("ls_trap.sub", "f"),
        ("ls_trap", "os.system"),
        ("msgpack", "os.system"),
        ("no_such_module", "f"),
        ("IPython.__main__", "x"),
        ("lakeshore.cli.__main__", "main"),
        ("jupyterlab.labapp", "main"),
        ("pip.__pip-runner__", "x"),
        ("_pytest.pathlib", "x"),
        ("wheel._commands", "x"),
        (".os", "getpid"),
        ("msgpack..", "packb"),
        ("msgpack.fallback.deeper", "x"),
        ("a." * 5000, "x"),
        ("a\0b", "x"),
        ("lakeshore.conformance.run", "check"),
    ],
)
def test_an_untrusted_plane_is_refused_without_importing(module_name, qualname, tmp_path, monkeypatch):
    (tmp_path / "ls_trap").mkdir()
    (tmp_path / "ls_trap/__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    with pytest.raises(NotImportable, match="--allow-module"):
        resolve(ref(module_name, qualname), **SHUT)
    assert set(sys.modules) == before


def test_an_untrusted_plane_may_call_a_udf_of_that_very_module(module, monkeypatch):
    monkeypatch.setattr("lakeshore.functions.reference._under_installed", lambda path: True)
    module("ls_other", "from lakeshore import udf\n@udf\ndef elsewhere(): pass\n")
    module("ls_inst", """
        import os
        from lakeshore import udf
        from ls_other import elsewhere
        @udf
        def good(): return "good"
        def bare(): return "bare"
        """)  # fmt: skip
    assert resolve(ref("ls_inst", "good"), **SHUT)[0]() == "good"
    for name in ("bare", "elsewhere", "os", "udf", "missing"):
        with pytest.raises(NotImportable):
            resolve(ref("ls_inst", name), **SHUT)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make an installed package of modules that say when they are imported; returns that list."""
    monkeypatch.setattr("lakeshore.functions.reference._under_installed", lambda path: True)
    monkeypatch.syspath_prepend(str(tmp_path))
    imported = sys.ls_imported = []

    def make(**modules):
        (tmp_path / "ls_pkg").mkdir()
        for name, text in {"__init__": "", **modules}.items():
            text = f"import sys\nsys.ls_imported.append(__name__)\n{textwrap.dedent(text)}"
            (tmp_path / f"ls_pkg/{name}.py").write_text(text)
        importlib.invalidate_caches()
        return imported

    yield make
    del sys.ls_imported
    for name in [name for name in sys.modules if name.partition(".")[0] == "ls_pkg"]:
        del sys.modules[name]


UDFS = {
    "plain": "from lakeshore import udf\n@udf\ndef f(): return 1\n",
    "called": "from lakeshore import udf as job\n@job(queue='gpu')\nasync def f(): return 1\n",
    "attribute": "import lakeshore as ls\n@ls.udf\ndef f(): return 1\n",
    "star": "from lakeshore import *\n@udf\ndef f(): return 1\n",
    "deep": "from lakeshore.functions.udf import udf\n@udf\ndef f(): return 1\n",
    "within_if": "from lakeshore import udf\nif True:\n    @udf\n    def f(): return 1\n",
    "within_try": "try:\n    import lakeshore\nfinally:\n    pass\n@lakeshore.udf\ndef f(): return 1\n",
    "assigned": "from lakeshore import udf\ndef g(): return 1\nf = udf(g)\n",
    "named": "from lakeshore import udf\ngpu = udf(queue='gpu')\n@gpu\ndef f(): return 1\n",
    "wrapped": "from lakeshore import udf\ndef mine(fn):\n    return udf(fn)\n@mine\ndef f(): return 1\n",
}


@pytest.mark.parametrize("name", UDFS)
def test_a_udf_is_found_in_the_source_before_the_import(name, installed):
    imported = installed(**UDFS)
    body = resolve(ref(f"ls_pkg.{name}", "f"), **SHUT)[0]
    assert body.__name__ in ("f", "g")
    assert imported == ["ls_pkg", f"ls_pkg.{name}"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(): pass\n",
        "from lakeshore import udf\ndef f(): pass\n@udf\ndef g(): pass\n",
        "from lakeshore import udf\nclass A:\n    @udf\n    def f(self): pass\n",
        "from lakeshore import udf\ndef g():\n    @udf\n    def f(): pass\n",
        "def udf(fn): return fn\n@udf\ndef f(): pass  # lakeshore\n",
        "from other.lakeshore import udf\n@udf\ndef f(): pass\n",
        "from lakeshore import udf\nthis is no Python\n@udf\ndef f(): pass\n",
        "from lakeshore import udf\n@udf\ndef f(): pass\n\0",
    ],
)
def test_a_module_without_that_udf_is_not_imported(text, installed):
    imported = installed(jobs=text, __main__=UDFS["plain"], _private=UDFS["plain"])
    for module in ("ls_pkg.jobs", "ls_pkg.__main__", "ls_pkg._private", "ls_pkg.missing", "ls_pkg"):
        with pytest.raises(NotImportable, match="--allow-module"):
            resolve(ref(module, "f"), **SHUT)
    assert imported == []
    with pytest.raises(NotImportable, match="program"):
        resolve(ref("ls_pkg.__main__", "f"), **SHUT, allow_modules=["ls_pkg"])
    assert imported == []


def test_an_untrusted_name_imports_nothing_through_a_lazy_module(installed):
    imported = installed(
        __init__="import importlib\ndef __getattr__(n): return importlib.import_module(f'ls_pkg.{n}')\n",
        heavy="",
    )
    importlib.import_module("ls_pkg")
    with pytest.raises(NotImportable):
        resolve(ref("ls_pkg", "heavy"), **SHUT)
    assert imported == ["ls_pkg"]


def test_allowed_modules_and_their_own_functions_only(module):
    module("ls_allowed", """
        import os
        from os import system
        def own(): return "own"
        class Tools:
            @staticmethod
            def tool(): return "tool"
        value = 3
        """)  # fmt: skip
    options = {**SHUT, "allow_modules": ["ls_allowed"]}
    assert resolve(ref("ls_allowed", "own"), **options)[0]() == "own"
    assert resolve(ref("ls_allowed", "Tools.tool"), **options)[0]() == "tool"
    for name in ("os.system", "system", "os", "value", "Tools.__init__.__globals__"):
        with pytest.raises(NotImportable):
            resolve(ref("ls_allowed", name), **options)
    with pytest.raises(NotImportable):
        resolve(ref("ls_allowed_not", "own"), **options)


def test_a_trusted_plane_calls_any_function_and_says_what_is_missing(module):
    assert resolve(ref("os.path", "join"), **OPEN)[0]("a", "b") == "a/b"
    module("ls_breaks_not", "x = 1")
    for fn, words in (
        (ref("no_such_module", "f"), "cannot import 'no_such_module'"),
        (ref("os", "nothing"), "has no 'nothing'"),
        (ref("ls_breaks_not", "x"), "is a int, not a function"),
        (ref("__main__", "f"), "by value"),
        (ref("", "f"), "names no function"),
        (ref(None, 3), "names no function"),
    ):
        with pytest.raises(NotImportable, match=words):
            resolve(fn, **OPEN)


def test_a_module_that_breaks_or_exits_on_import_is_an_error_of_ours(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in (("ls_raises", "1/0"), ("ls_exits", "raise SystemExit(3)")):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        with pytest.raises(NotImportable, match=name):
            resolve(ref(name, "f"), **OPEN)


def test_unknown_kinds_and_what_is_no_function():
    with pytest.raises(TransportError, match="'wasm'"):
        resolve({"kind": "wasm"}, **OPEN)
    blob = pickle.dumps(3)
    fn = {**bomb(), "blob": blob, "hash": f"sha256:{hashlib.sha256(blob).hexdigest()}"}
    with pytest.raises(TransportError, match="holds a int"):
        resolve(fn, **OPEN)
    blob = b"cno_such_module\nf\n."
    fn = {**fn, "blob": blob, "hash": f"sha256:{hashlib.sha256(blob).hexdigest()}"}
    with pytest.raises(NotImportable, match="no_such_module"):
        resolve(fn, **OPEN)


# ---- apart from what lives here


def make_live():
    class Live:
        seen = 0

        def bump(self):
            type(self).seen += 1
            return type(self)

    return Live


def test_loading_here_touches_no_live_class():
    Live = make_live()
    thing = Live()

    def job():
        assert isinstance(thing, Live)
        return thing.bump()

    described = describe(job)
    Live.seen = 40
    for _ in range(2):
        loaded = resolve(described, **OPEN)[0]()
        assert loaded is not Live
        assert loaded.seen == 1
    assert Live.seen == 40


def test_a_plain_cloudpickle_blob_from_elsewhere_is_taken_apart_too():
    cloudpickle = pytest.importorskip("cloudpickle")
    Live = make_live()
    blob = cloudpickle.dumps(lambda: Live)
    fn = {**bomb(), "blob": blob, "hash": f"sha256:{hashlib.sha256(blob).hexdigest()}"}
    assert resolve(fn, **OPEN)[0]() is not Live


def test_a_trial_load_leaves_no_mark_on_an_installed_base(module, monkeypatch):
    m = module(
        "ls_plugins", "class Base:\n    known = []\n    def __init_subclass__(cls): Base.known.append(cls)\n"
    )
    monkeypatch.setitem(lakeshore.functions.reference._installed, ("ls_plugins", m.__file__), True)

    class Plug(m.Base):
        pass

    described = describe(lambda: Plug())
    assert m.Base.known == [Plug]
    resolve(described, **OPEN)
    assert [cls.__name__ for cls in m.Base.known] == ["Plug", "Plug"]


def test_editing_changes_the_next_submit_and_none_before():
    box = {}
    exec("def f(): return 1", box)
    first = thunk(box["f"]).__envelope__(id="a")
    exec("def f(): return 2", box)
    second = thunk(box["f"]).__envelope__(id="b")
    assert [resolve(e.fn, **OPEN)[0]() for e in (first, second)] == [1, 2]


def test_dumps_and_loads_in_many_threads():
    Live = make_live()
    wrong = []

    def work():
        for _ in range(20):
            if back(lambda: (Live, Live().bump()))()[0] is Live:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- size and captures


def test_a_large_capture_warns_and_names_the_largest():
    numpy = pytest.importorskip("numpy")
    lookup_table, small = numpy.zeros(400_000), list(range(100))

    def helper():
        return lookup_table, small

    with pytest.warns(
        LargeCaptureWarning, match=r"job\(\) takes 3\.1 MiB .*'lookup_table' \(numpy\.ndarray, 3\.1 MiB\)"
    ):
        describe(job_over(helper))
    with Dispatch(":memory:") as plane, pytest.warns(LargeCaptureWarning) as caught:
        SyncQueue("gpu", dispatch=plane).submit_many([thunk(job_over(helper))])
    assert caught[0].filename == __file__
    with pytest.raises(CaptureError, match=r"over the limit of 2\.0 MiB.*'lookup_table'"):
        describe(job_over(helper), capture_limit=2 << 20)
    report = capture_report(job_over(helper))
    assert [row[0] for row in report] == ["lookup_table", "small"]
    assert report[0][1:] == ("numpy.ndarray", report[0][2])
    assert report[0][2] > 3_200_000 > 1000 > report[1][2] > 100


def job_over(helper):
    def job():
        return helper()

    return job


def test_small_captures_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        describe(lambda: "x")


# ---- tracebacks


def test_a_traceback_shows_the_users_own_lines():
    def job():
        x = 0
        return 1 / x  # the line that fails

    loaded = back(job)
    try:
        loaded()
    except ZeroDivisionError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
    assert frame.line == "return 1 / x  # the line that fails"
    assert frame.filename == "<lakeshore job functions/test_transport.py>"
    assert frame.lineno == job.__code__.co_firstlineno + 2


def test_hostile_sources_are_left_out():
    fn = describe(lambda: 1)
    fn["sources"] = [
        ["/etc/passwd", 1, "x"],
        ["<lakeshore x y>", 10**12, "x"],
        [1, 2],
        "no",
        ["<lakeshore x>", 0, "x"],
    ]
    assert resolve(fn, **OPEN)[0]() == 1
