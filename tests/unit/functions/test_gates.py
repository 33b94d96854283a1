"""What an untrusted plane may name: in a process of its own, where every import would be seen."""

import json
import subprocess
import sys

import pytest

# The hook stands before the asking begins: an import of anything at all, or a lookup of one, is told.
ASK = """
import builtins, importlib.machinery, json, sys
from lakeshore.errors import LakeshoreError
from lakeshore.functions.transport import resolve

asked = json.loads(sys.stdin.read())
options = dict(allow_pickled=False, runtime_policy="minor", trusted=False, registry={"known:f": len})
told, seen = {}, []

class Hook:
    def find_spec(self, name, path=None, target=None):
        seen.append(name)
        return None

def refuse(module, qualname, **more):
    fn = {"kind": "ref", "module": module, "qualname": qualname, "src_hash": None}
    try:
        return repr(resolve(fn, **{**options, **more})[0])
    except LakeshoreError as error:
        return type(error).__name__

refuse("msgpack", "packb")  # what a first look at the installed packages loads is ours
sys.meta_path.insert(0, Hook())
real, sys_modules = builtins.__import__, set(sys.modules)
def importing(name, *more, **options):
    if name not in sys.modules:
        seen.append(name)
    return real(name, *more, **options)

builtins.__import__ = importing
for module, qualname in asked:
    seen.clear()
    answer = refuse(module, qualname)
    told[f"{module}:{qualname}"] = [answer, list(seen), sorted(set(sys.modules) - sys_modules)]
told["registry"] = refuse("known", "f")
print(json.dumps(told))
"""

NAMES = [
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "__import__"),
    ("builtins", "getattr"),
    ("os", "system"),
    ("os", "_exit"),
    ("os.path", "join"),
    ("posix", "system"),
    ("nt", "system"),
    ("subprocess", "Popen"),
    ("importlib", "import_module"),
    ("importlib", "reload"),
    ("runpy", "run_path"),
    ("pickle", "loads"),
    ("marshal", "loads"),
    ("ctypes", "CDLL"),
    ("code", "interact"),
    ("pdb", "set_trace"),
    ("sys", "exit"),
    ("_thread", "interrupt_main"),
    ("antigravity", "x"),
    ("this", "x"),
    ("idlelib.idle", "x"),
    ("msgpack", "os.system"),
    ("msgpack", "fallback.sys.exit"),
    ("cloudpickle", "cloudpickle.pickle.loads"),
    ("cloudpickle", "loads"),
    ("cloudpickle.cloudpickle", "subimport"),
    ("msgpack", "packb"),
    ("lakeshore.functions.thunk", "inspect.os.system"),
    ("lakeshore.functions.unpickler", "loads"),
    ("lakeshore.cli", "os.system"),
    ("lakeshore.daemon", "main"),
    ("lakeshore", "udf"),
    ("lakeshore", "run_worker"),
    ("msgpack", "__builtins__"),
    ("msgpack", "__loader__"),
    ("msgpack", "__class__"),
    ("msgpack", "_x"),
    ("_pytest", "x"),
    ("_distutils_hack", "x"),
    ("pip._internal", "main"),
    ("pip.__main__", "x"),
    ("pip", "main"),
    ("__main__", "f"),
    ("__mp_main__", "f"),
    ("__init__", "f"),
    ("rich.__main__", "x"),
    ("msgpack.__init__", "x"),
    ("no_such_module", "f"),
    ("no.such.module", "f"),
    ("", "f"),
    ("os", ""),
    (".", "f"),
    ("..os", "system"),
    ("os:system", "x"),
    ("os system", "x"),
    ("o\u017f", "system"),
    ("\uff4fs", "system"),
    ("os\x00", "system"),
    ("msgpack", "packb\x00"),
    ("msgpack/../os", "system"),
    (5, "f"),
    ("os", 5),
    (None, None),
    ({}, []),
]


@pytest.fixture(scope="module")
def told():
    done = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(NAMES), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(("module", "qualname"), NAMES, ids=repr)
def test_it_is_refused_and_nothing_is_imported_or_looked_for(told, module, qualname):
    assert told[f"{module}:{qualname}"] == ["NotImportable", [], []]


def test_the_registry_is_asked_before_all_that(told):
    assert told["registry"] == "<built-in function len>"
