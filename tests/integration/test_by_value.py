"""By-value functions from a notebook: one kernel submits every case, one worker elsewhere runs them all."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from lakeshore import Dispatch, InvocationFailed, SyncQueue

KERNEL = r"""
import contextlib, io, json, os, sys
spec = json.loads(sys.stdin.read())
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
config = Config(); config.HistoryManager.enabled = False; config.InteractiveShell.colors = "nocolor"
ip = InteractiveShell.instance(config=config)
SUBMIT = '''
from lakeshore import SyncQueue as _SQ, thunk as _thunk
_id = _SQ("gpu").submit(_thunk(job, *globals().get("args", ())))
'''
answers = {}
for name, cells in spec.items():
    ip.user_ns["args"] = ()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for cell in [*cells, SUBMIT]:
            done = ip.run_cell(cell, store_history=True)
            error = done.error_before_exec or done.error_in_exec
            if error is not None:
                answers[name] = {"cell": cell, "error": type(error).__name__, "message": str(error)}
                break
        else:
            answers[name] = {"id": ip.user_ns["_id"]}
print("@@" + json.dumps(answers))
"""
WORKER = r"""
from lakeshore import SyncQueue, run_worker
q = SyncQueue("gpu")
while q.count():
    run_worker(q, once=True, retries=0)
"""

WORKS = {}
REFUSED = {}


def works(name, expected, *cells):
    WORKS[name] = (expected, [textwrap.dedent(cell).strip("\n") for cell in cells])


def refused(name, patterns, *cells):
    REFUSED[name] = (patterns, [textwrap.dedent(cell).strip("\n") for cell in cells])


# ---- classes

works(
    "isinstance across cells",
    [True, True, 3],
    "class Box:\n    def __init__(self, n): self.n = n",
    "b = Box(3)",
    "def is_box(v): return isinstance(v, Box) and type(v) is Box",
    "def job(): return [is_box(b), is_box(Box(1)), b.n]",
)
works(
    "isinstance of an argument",
    [True, 7],
    "class Arg:\n    def __init__(self, n): self.n = n",
    "def job(a): return [type(a) is Arg, a.n]\nargs = (Arg(7),)",
)
works(
    "isinstance of arguments nested and by keyword default",
    [True, True],
    "class Deep: pass",
    "d = Deep()",
    """
    def job(box, other=d): return [type(box['x'][0]) is Deep, type(other) is Deep]
    args = ({'x': [Deep()]},)
    """,
)
works(
    "super",
    [5, 10, ["B", "A", "M"]],
    """
    class A:
        def __init__(self, x): self.x = x
        @classmethod
        def of(cls, x): return cls(x)
    class M:
        @property
        def twice(self): return self.x * 2
    class B(A, M):
        def __init__(self, x):
            super().__init__(x + 1)
    """,
    "def job():\n    b = B.of(4)\n    return [b.x, b.twice, [c.__name__ for c in B.__mro__][:3]]",
)
works(
    "init_subclass with a required keyword",
    ["leaf", "twig", True],
    """
    class Reg:
        def __init_subclass__(cls, /, tag, **kw):
            super().__init_subclass__(**kw)
            cls.tag = tag
    """,
    "class Leaf(Reg, tag='leaf'): pass\nclass Twig(Leaf, tag='twig'): pass",
    "def job(): return [Leaf.tag, Twig.tag, issubclass(Twig, Leaf) and isinstance(Twig(), Reg)]",
)
works(
    "init_subclass that looks at the class",
    ["a", ["Plug"]],
    """
    class Base:
        known = []
        def __init_subclass__(cls):
            cls.known.append(cls.label and cls.__name__)
    class Plug(Base):
        label = 'a'
    """,
    "def job(): return [Plug.label, Base.known]",
)
works(
    "set_name, slots, properties, class variables",
    [3, "field x", 4, True],
    """
    class Field:
        def __set_name__(self, owner, name): self.name = 'field ' + name
        def __get__(self, obj, owner): return self.name
    class Slim:
        __slots__ = ('a',)
        x = Field()
        four = 4
        def __init__(self): self.a = 3
    """,
    "def job():\n    s = Slim()\n    return [s.a, s.x, Slim.four, not hasattr(s, '__dict__')]",
)
works(
    "metaclass",
    ["Made", 1],
    """
    class Meta(type):
        def __new__(m, name, bases, ns, **kw):
            ns['made'] = ns.get('made', 0) + 1
            return super().__new__(m, name, bases, ns)
    class Made(metaclass=Meta): pass
    """,
    "def job(): return [Made.__name__, Made.made]",
)
works(
    "abc",
    ["TypeError", 2],
    """
    import abc
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...
    class Sq(Shape):
        def area(self): return 2
    """,
    "def job():\n    try: Shape()\n    except TypeError as e: return [type(e).__name__, Sq().area()]",
)
works(
    "cached_property",
    [9, 1],
    """
    import functools
    class Lazy:
        calls = 0
        @functools.cached_property
        def value(self):
            type(self).calls += 1
            return 9
    lazy = Lazy()
    """,
    "def job(): return [lazy.value + 0 * lazy.value, Lazy.calls]",
)
works(
    "generic, protocol, typeddict, namedtuple",
    [1, {"a": 1}, [1, 2], True],
    """
    from typing import Generic, NamedTuple, Protocol, TypedDict, TypeVar, runtime_checkable
    T = TypeVar('T')
    class G(Generic[T]):
        def __init__(self, v: T): self.v = v
    class GI(G[int]): pass
    class TD(TypedDict):
        a: int
    class NT(NamedTuple):
        x: int
        y: int = 2
    @runtime_checkable
    class HasV(Protocol):
        v: int
    """,
    "def job(): return [GI(1).v, TD(a=1), list(NT(1)), isinstance(G(1), HasV)]",
)
works(
    "nested class and class made in the body",
    [1, 5, 12],
    """
    class Outer:
        class Inner:
            v = 1
    LIMIT = 5
    def scale(x): return x * 2
    """,
    """
    def job():
        class Local:
            limit = LIMIT
            scaled = scale(6)
        return [Outer.Inner.v, Local.limit, Local.scaled]
    """,
)
works(
    "exception class with its own signature",
    ["code 7", 7],
    """
    class Bad(Exception):
        def __init__(self, code):
            super().__init__(f'code {code}')
            self.code = code
    """,
    "def job():\n    try: raise Bad(7)\n    except Bad as e: return [str(e), e.code]",
)
works(
    "operators, context manager, descriptor",
    [3, "in,out"],
    """
    log = []
    class V:
        def __init__(self, n): self.n = n
        def __add__(self, o): return V(self.n + o.n)
        def __enter__(self): log.append('in'); return self
        def __exit__(self, *a): log.append('out')
    """,
    "def job():\n    with V(1) + V(2) as v: pass\n    return [v.n, ','.join(log)]",
)

# ---- enums and dataclasses

works(
    "enum",
    ["RED", True, ["RED", "BLUE"]],
    "import enum\nclass Colour(enum.Enum):\n    RED = 1\n    BLUE = 2\nfav = Colour.RED",
    "def job(): return [fav.name, fav is Colour(1) and Colour['RED'] is fav, [c.name for c in Colour]]",
)
works(
    "enum with attributes",
    [["EARTH", 2.0], True],
    """
    import enum
    class Planet(enum.Enum):
        EARTH = (1.0, 2.0)
        MARS = (3.0, 4.0)
        def __init__(self, mass, radius):
            self.mass, self.radius = mass, radius
        @property
        def label(self): return self.name
    """,
    "def job(): return [[Planet.EARTH.label, Planet.EARTH.radius], Planet((3.0, 4.0)) is Planet.MARS]",
)
works(
    "int enum, flag, str enum, auto",
    [3, True, "hi"],
    """
    import enum
    class N(enum.IntEnum):
        ONE = 1
        TWO = 2
    class F(enum.Flag):
        A = enum.auto()
        B = enum.auto()
    class S(enum.StrEnum):
        HI = 'hi'
    """,
    "def job(): return [N.ONE + N.TWO, bool((F.A | F.B) & F.A), str(S.HI)]",
)
works(
    "dataclasses",
    [[1, []], True, "FrozenInstanceError", [1, 2], 3],
    """
    import dataclasses
    @dataclasses.dataclass
    class P:
        x: int
        tags: list = dataclasses.field(default_factory=list)
        K: dataclasses.InitVar[int] = 0
    @dataclasses.dataclass(frozen=True, order=True)
    class Q:
        a: int
        b: int = 2
    @dataclasses.dataclass(slots=True, kw_only=True)
    class R:
        z: int = 3
    p0 = P(1)
    """,
    """
    def job():
        try: Q(1).a = 2
        except Exception as e: err = type(e).__name__
        return [[p0.x, p0.tags], p0 == P(1) and Q(1) < Q(2), err, list(dataclasses.astuple(Q(1))), R().z]
    """,
)

# ---- pydantic

works(
    "pydantic instance in closure",
    [0.5, True, {"lr": 0.5, "tags": []}],
    """
    from pydantic import BaseModel, Field
    class Cfg(BaseModel):
        lr: float = Field(gt=0)
        tags: list[str] = []
    """,
    "cfg = Cfg(lr=0.5)",
    "def job(): return [cfg.lr, isinstance(cfg, Cfg), cfg.model_dump()]",
)
works(
    "pydantic validates remotely",
    ["a", 3, 1, "frozen"],
    """
    from pydantic import BaseModel, ConfigDict, ValidationError
    class Row(BaseModel):
        model_config = ConfigDict(frozen=True)
        name: str
        n: int
    """,
    """
    def job(raw):
        r = Row.model_validate(raw)
        bad = []
        try: Row(name='a', n='x')
        except ValidationError as e: bad.append(e.error_count())
        try: r.n = 4
        except ValidationError: bad.append('frozen')
        return [r.name, r.n, *bad]
    args = ({'name': 'a', 'n': '3'},)
    """,
)
works(
    "pydantic nested, inherited, validators, argument",
    ["A", 2, "ValidationError", True],
    """
    from pydantic import BaseModel, field_validator
    class Leafy(BaseModel):
        tag: str
        @field_validator('tag')
        @classmethod
        def upper(cls, v): return v.upper()
    class Tree(BaseModel):
        leaf: Leafy
        n: int = 1
    class Big(Tree):
        n: int = 2
    """,
    """
    def job(b):
        try: Leafy(tag=3)
        except Exception as e: err = type(e).__name__
        return [b.leaf.tag, Big(leaf={'tag': 'x'}).n, err, type(b) is Big]
    args = (Big(leaf={'tag': 'a'}),)
    """,
)

# ---- functions

works(
    "mutual recursion",
    [True, True, False],
    "def even(n): return True if n == 0 else odd(n - 1)",
    "def odd(n): return False if n == 0 else even(n - 1)",
    "def job(): return [even(10), odd(7), even(3)]",
)
works(
    "self-referential closure",
    5,
    """
    def make():
        def g(n): return 0 if n == 0 else 1 + g(n - 1)
        return g
    job = make()
    args = (5,)
    """,
)
works(
    "closure cells shared and rebound",
    [1, 2, 2],
    """
    def counter():
        n = 0
        def up():
            nonlocal n
            n += 1
            return n
        def get(): return n
        return up, get
    up, get = counter()
    """,
    "def job(): return [up(), up(), get()]",
)
works(
    "empty closure cell",
    "late",
    """
    def make():
        def g(): return h()
        def use(): return g
        def h(): return 'late'
        return g
    job = make()
    """,
)
works(
    "lru_cache",
    [55, 12, True],
    """
    import functools
    @functools.lru_cache
    def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
    @functools.cache
    def twice(n): return 2 * n
    class Has:
        @functools.lru_cache(maxsize=3)
        def m(self): return 12
    """,
    """
    def job():
        value = fib(10)
        kept = fib.cache_info().currsize == 11 and Has.m.cache_parameters()['maxsize'] == 3
        return [value, Has().m(), kept]
    """,
)
works("lru_cache as the job", 55, "job = fib\nargs = (10,)")
works(
    "decorated with wraps, partial, bound method, lambda",
    [4, 7, 9, 16],
    """
    import functools
    def twice(f):
        @functools.wraps(f)
        def inner(*a): return 2 * f(*a)
        return inner
    @twice
    def two(): return 2
    add = functools.partial(lambda a, b: a + b, 3)
    class O:
        def __init__(self): self.k = 9
        def m(self): return self.k
    o = O()
    sq = lambda x: x * x
    """,
    "def job(): return [two(), add(4), o.m(), sq(4)]",
)
works("bound method as the job", 9, "job = o.m")
works("partial as the job", 7, "job = add\nargs = (4,)")
works(
    "no source",
    6,
    "ns = {}\nexec('def made(x): return x + 1', ns)\nmade = ns['made']",
    """
    class Caller:
        def __init__(self, k): self.k = k
        def __call__(self, x): return made(x) * self.k
    job = Caller(3)
    args = (1,)
    """,
)
works(
    "sentinel identity",
    ["missing", 3],
    "_MISSING = object()",
    "def pick(v=_MISSING): return 'missing' if v is _MISSING else v",
    "def job(): return [pick(), pick(3)]",
)
works(
    "mutable state shared by two functions",
    [1, 2, 2],
    "state = {'n': 0}",
    "def bump():\n    state['n'] += 1\n    return state['n']",
    "def job(): return [bump(), bump(), state['n']]",
)
works(
    "global statement",
    [1, 2],
    "total = 0",
    "def inc():\n    global total\n    total += 1\n    return total",
    "def job(): return [inc(), inc()]",
)
works(
    "annotations that are objects",
    "A2",
    "class A2: pass\ndef typed2(a: A2): ...",
    "def job(): return typed2.__annotations__['a'].__name__",
)
works(
    "annotation-only names",
    [["A1", "T1"], True],
    """
    from __future__ import annotations
    class A1: pass
    class T1: pass
    def typed(a: A1, b: list[T1] | None = None) -> None: ...
    """,
    """
    import typing
    def job():
        hints = typing.get_type_hints(typed)
        element = typing.get_args(typing.get_args(hints['b'])[0])[0]
        return [[hints['a'].__name__, element.__name__], True]
    """,
)
works(
    "submodule by attribute",
    "a%20b",
    "import urllib.parse, urllib",
    "def job(): return urllib.parse.quote('a b')",
)
works(
    "comprehensions, walrus, match, star args",
    [[0, 2], 3, "two", [1, [2], {"k": 3}]],
    """
    K = 2
    def star(a, *rest, **kw): return [a, list(rest), kw]
    """,
    """
    def job():
        ys = [x * K for x in range(2)]
        z = (w := 3)
        match K:
            case 2: m = 'two'
        return [ys, w, m, star(1, 2, k=3)]
    """,
)
works("generator as the job", ["k0", "k1"], "def job():\n    for i in range(2): yield f'k{i}'")
works(
    "coroutine with a loop of its own",
    [1, 2],
    "import asyncio\nasync def part(n):\n    await asyncio.sleep(0)\n    return n",
    "async def job(): return list(await asyncio.gather(part(1), part(2)))",
)
works("async generator as the job", None, "async def job():\n    for i in range(2):\n        yield i")
works(
    "logger, regex, partial, numpy in globals",
    ["x", True, 3.0],
    """
    import logging, re, numpy as np
    logger = logging.getLogger('x')
    rx = re.compile('a+')
    arr = np.arange(4.0)
    """,
    "def job(): return [logger.name, bool(rx.match('aa')), float(arr[3])]",
)
works(
    "a secret that is not used stays here",
    False,
    "secret_token = 'hunter2-value'",
    "def job(): return 'secret_token' in globals()",
)
works(
    "run and scope by reference",
    ["a/b", "k"],
    "from lakeshore import run, scope",
    """
    def job():
        with scope('a/b'): p = run.prefix
        run.write('k').write_text('x')
        return [p, 'k']
    """,
)
works(
    "argument that the codec lacks",
    ["lock", 3],
    """
    class Opaque:
        def __init__(self, v): self.v = v
    """,
    "def job(o, n): return [o.v, n]\nargs = (Opaque('lock'), 3)",
)

# ---- more of the kind

works(
    "namedtuple factory, namespace, counter, itemgetter, random",
    [[1, 2], 3, 2, 5, True],
    """
    import collections, itertools, operator, random, types
    Pair = collections.namedtuple('Pair', 'x y')
    pair = Pair(1, 2)
    ns = types.SimpleNamespace(v=3)
    counts = collections.Counter('aab')
    get = operator.itemgetter('k')
    rng = random.Random(0)
    """,
    """
    def job():
        same = isinstance(pair, Pair) and rng.random() < 1
        return [list(pair), ns.v, counts['a'], get({'k': 5}), same]
    """,
)
works(
    "context manager, total_ordering, property setter, class_getitem",
    ["in", True, 4, "Boxed[int]"],
    """
    import contextlib, functools
    @contextlib.contextmanager
    def inside():
        yield 'in'
    @functools.total_ordering
    class Ord:
        def __init__(self, n): self.n = n
        def __eq__(self, o): return self.n == o.n
        def __lt__(self, o): return self.n < o.n
    class Set:
        _v = 0
        @property
        def v(self): return self._v
        @v.setter
        def v(self, x): self._v = 2 * x
    class Boxed:
        def __class_getitem__(cls, item): return f'{cls.__name__}[{item.__name__}]'
    """,
    """
    def job():
        s = Set()
        s.v = 2
        with inside() as i: return [i, Ord(2) >= Ord(1), s.v, Boxed[int]]
    """,
)
works(
    "NewType, ParamSpec, Literal, Annotated, union",
    [3, "P", True],
    """
    import typing
    UserId = typing.NewType('UserId', int)
    P = typing.ParamSpec('P')
    Mode = typing.Literal['a', 'b']
    Pos = typing.Annotated[int, 'positive']
    Either = int | None
    """,
    "def job(): return [UserId(3), P.__name__, typing.get_args(Mode) == ('a', 'b') and Either is not None]",
)
works(
    "private slots and inherited slots",
    [1, 2, False],
    """
    class Base0:
        __slots__ = ('__hidden', 'open')
        def __init__(self): self.__hidden, self.open = 1, 2
        def hidden(self): return self.__hidden
    class Sub0(Base0):
        __slots__ = ()
    """,
    "def job():\n    s = Sub0()\n    return [s.hidden(), s.open, hasattr(s, '__dict__')]",
)
works(
    "instances with slots, getstate, reduce",
    [1, 2, 3],
    """
    class S1:
        __slots__ = ('a',)
    s1 = S1(); s1.a = 1
    class S2:
        def __init__(self): self.big, self.small = object(), 2
        def __getstate__(self): return {'small': self.small}
        def __setstate__(self, st): self.__dict__.update(st)
    s2 = S2()
    class S3:
        def __init__(self, v): self.v = v
        def __reduce__(self): return (S3, (self.v,))
    s3 = S3(3)
    """,
    "def job(): return [s1.a, s2.small, s3.v]",
)
works(
    "two classes that name each other",
    ["B2", "A2c"],
    """
    class A2c:
        def other(self): return B2()
    class B2:
        def other(self): return A2c()
    """,
    "def job(): return [type(A2c().other()).__name__, type(B2().other()).__name__]",
)
works(
    "a class rerun in a newer cell",
    "new",
    "class Again:\n    v = 'old'",
    "class Again:\n    v = 'new'\nagain = Again()",
    "def job(): return again.v if isinstance(again, Again) else 'apart'",
)
works(
    "singledispatch",
    ["int 1", "other"],
    """
    import functools
    @functools.singledispatch
    def show(x): return 'other'
    @show.register
    def _(x: int): return f'int {x}'
    """,
    "def job(): return [show(1), show('s')]",
)

# ---- udf

works(
    "udf inside a job",
    4.0,
    "from lakeshore import udf\n@udf\ndef half(x): return x / 2",
    "def job(): return half(8)",
)
works(
    "bound udf inside a job runs there",
    4.0,
    "@udf(queue='nobody-works-here')\ndef far(x): return x / 2",
    "def job(): return far(8)",
)
works(
    "udf bound to a queue object",
    4.0,
    "from lakeshore import SyncQueue\n@udf(queue=SyncQueue('nobody'))\ndef farther(x): return x / 2",
    "def job(): return farther(8)",
)
works(
    "recursive udf as the job",
    24,
    "@udf(queue='nobody')\ndef fact(n): return 1 if n < 2 else n * fact(n - 1)\njob = fact\nargs = (4,)",
)
works(
    "udf method",
    8,
    "class Model:\n    k = 4\n    @udf\n    def predict(self, x): return self.k * x\nm = Model()",
    "job = m.predict\nargs = (2,)",
)

works(
    "an error in a helper",
    None,
    "def compute_ratio(d):\n    return 10 / d",
    "# a comment\ndef job(zero=0):\n    return compute_ratio(zero)",
)

# ---- refusals: the name, the type and the line

refused(
    "shell",
    ["shell_handle", "InteractiveShell", r"line 2: `return shell_handle\.execution_count`"],
    "shell_handle = get_ipython()",
    "def job():\n    return shell_handle.execution_count",
)
refused("get_ipython itself", ["get_ipython"], "def job(): return get_ipython().execution_count")
refused(
    "lock in an object",
    [r"my_cache\.guard", "RLock", "line 2"],
    """
    import threading
    class Cache:
        def __init__(self): self.guard = threading.RLock()
    my_cache = Cache()
    """,
    "def job():\n    return my_cache is not None",
)
refused(
    "lock in a container in a closure",
    [r"deep\['a'\]\[0\]", "lock", "closure variable"],
    """
    def make():
        deep = {'a': [threading.Lock()]}
        def job(): return deep
        return job
    job = make()
    """,
)
refused(
    "open file",
    ["handle", "open file", "path"],
    "handle = open('/etc/hostname')",
    "def job(): return handle.read()",
)
refused(
    "file open for writing",
    ["log_file", "open file"],
    "import tempfile\nlog_file = tempfile.TemporaryFile()",
    "def job(): log_file.write(b'x')",
)
refused(
    "socket",
    ["sock", "connection"],
    "import socket\nsock = socket.socket()",
    "def job(): return sock.fileno()",
)
refused(
    "generator",
    ["half_run", "generator"],
    "half_run = (i for i in range(3))",
    "def job(): return list(half_run)",
)
refused(
    "thread",
    ["worker_thread", "Thread"],
    "worker_thread = threading.Thread(target=print)",
    "def job(): return worker_thread.name",
)
refused(
    "queue",
    ["the_queue", r"SyncQueue\('name'\)"],
    "from lakeshore import SyncQueue\nthe_queue = SyncQueue('x')",
    "def job(): return the_queue.count()",
)
refused(
    "plane",
    ["the_plane"],
    "from lakeshore import Dispatch\nthe_plane = Dispatch(':memory:')",
    "def job(): return the_plane.count('x')",
)
refused(
    "through a helper",
    ["conn", r"in helper\(\)"],
    "import sqlite3\nconn = sqlite3.connect(':memory:')\ndef helper(): return conn",
    "def job(): return helper()",
)
refused("in an argument", [r"args\[0\]", "lock"], "def job(x): return x\nargs = ({'l': threading.Lock()},)")
refused("default", ["'lk'", "default"], "def job(lk=threading.Lock()): return lk")
refused(
    "widget",
    ["slider", "widget"],
    "import ipywidgets\nslider = ipywidgets.IntSlider()",
    "def job(): return slider.value",
)
refused(
    "class that does not load",
    ["Odd", "broken"],
    """
    class Odd:
        def __init__(self, x): self.x = x
        def __reduce__(self): return (Odd, ())
    broken = Odd(1)
    """,
    "def job(): return broken.x",
)
refused(
    "class attribute",
    ["Holder", "lock"],
    "class Holder:\n    lock = threading.Lock()",
    "def job(): return Holder.lock",
)
refused(
    "executor",
    ["pool"],
    "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)",
    "def job(): return pool.submit(int).result()",
)
refused(
    "weak reference and context variable",
    ["var"],
    "import contextvars\nvar = contextvars.ContextVar('v')",
    "def job(): return var.get()",
)
refused("the whole notebook", ["__main__"], "import __main__ as nb", "def job(): return nb.x")

refused(
    "getattr that recurses when it is loaded",
    ["proxy"],
    """
    class Proxy:
        def __init__(self, target): self._target = target
        def __getattr__(self, name): return getattr(self._target, name)
    proxy = Proxy([1])
    """,
    "def job(): return len(proxy._target)",
)
refused("thread-local", ["local_data"], "local_data = threading.local()", "def job(): return local_data")
refused(
    "exception that cannot be made again",
    ["caught"],
    """
    class Picky(Exception):
        def __init__(self, a, b): super().__init__(f'{a} {b}')
    caught = Picky(1, 2)
    """,
    "def job(): return str(caught)",
)


# ---- more of each kind

works(
    "async generator, its helpers and an async context manager",
    ["a", "b", "closed"],
    """
    import contextlib
    @contextlib.asynccontextmanager
    async def opened():
        yield 'ab'
    async def each(text):
        for letter in text:
            yield letter
    """,
    """
    async def job():
        async with opened() as text:
            async for letter in each(text):
                yield letter
        yield 'closed'
    """,
)
works(
    "flags and enums with their own new, missing, methods, aliases and mixins",
    [3, ["R", "W"], "UNKNOWN", "one!", True, 2.5, "b"],
    """
    import dataclasses, enum
    class Perm(enum.IntFlag, boundary=enum.KEEP):
        R = 1
        W = 2
        RW = 3
    class Missing(enum.Enum):
        UNKNOWN = 0
        @classmethod
        def _missing_(cls, value): return cls.UNKNOWN
    class Named(str, enum.Enum):
        def _generate_next_value_(name, start, count, last): return name.lower()
        ONE = enum.auto()
        EIN = 'one'
        def loud(self): return self.value + '!'
    class Own(enum.Enum):
        def __new__(cls, value, weight):
            made = object.__new__(cls)
            made._value_, made.weight = value, weight
            return made
        A = 'a', 2.5
    class Holder0:
        class Inner(enum.Enum):
            B = 'b'
    """,
    """
    def job():
        return [int(Perm.R | Perm.W), [p.name for p in Perm.RW], Missing(9).name, Named.ONE.loud(),
                Named.EIN is Named.ONE, Own('a').weight, Holder0.Inner.B.value]
    """,
)
works(
    "dataclasses with slots, inheritance, super and post-init",
    [[1, 2, 3], True, "made 4", [5]],
    """
    import dataclasses
    @dataclasses.dataclass(slots=True)
    class Ground:
        a: int
        b: int = 2
    @dataclasses.dataclass(slots=True, frozen=True, order=True)
    class Point:
        x: int
    @dataclasses.dataclass(slots=True)
    class Over(Ground):
        c: int = 3
    class Told(Ground):
        def __init__(self, a):
            super().__init__(a)
            self.text = f'made {self.a}'
    @dataclasses.dataclass
    class Late:
        raw: dataclasses.InitVar[int]
        parts: list = dataclasses.field(init=False)
        def __post_init__(self, raw): self.parts = [raw]
    """,
    "def job():\n"
    "    return [list(dataclasses.astuple(Over(1))), Point(1) < Point(2), Told(4).text, Late(5).parts]",
)
works(
    "metaclass with call, prepare and keywords",
    ["Thing", ["first", "second"], True, 3],
    """
    class Ordered(type):
        @classmethod
        def __prepare__(meta, name, bases, **kw): return {}
        def __new__(meta, name, bases, space, **kw):
            made = super().__new__(meta, name, bases, dict(space))
            made.order = [key for key in space if not key.startswith('__')]
            return made
        def __init__(cls, name, bases, space, size=0): cls.size = size
        def __call__(cls, *a):
            made = super().__call__(*a)
            made.stamped = True
            return made
    class Thing(metaclass=Ordered, size=3):
        def first(self): ...
        def second(self): ...
    """,
    "def job(): return [Thing.__name__, Thing.order, Thing().stamped, Thing.size]",
)
works(
    "modules under aliases, and submodules by attribute",
    ["b", "a.b", "r", 6, 3.0, "x"],
    """
    import os.path as osp, xml.etree.ElementTree as ET, numpy as np, concurrent.futures
    import email.message, importlib.util
    from urllib import parse as up
    """,
    """
    def job():
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            six = pool.submit(int, '6').result()
        m = email.message.Message()
        m['k'] = 'x'
        found = importlib.util.find_spec('json') is not None
        return [osp.basename('a/b'), up.quote('a.b'), ET.Element('r').tag, six, float(np.sqrt(9)),
                m['k']][:6 * found]
    """,
)
works(
    "data that holds itself, and objects with parents",
    [True, True, ["root", "leaf"], 2],
    """
    ring = [1]
    ring.append(ring)
    class Node:
        def __init__(self, name, parent=None):
            self.name, self.parent, self.children = name, parent, []
            if parent: parent.children.append(self)
    root = Node('root')
    leaf = Node('leaf', root)
    class Keyed:
        def __init__(self, n): self.n = n
        def __hash__(self): return hash(self.n)
        def __eq__(self, o): return self.n == o.n
    keyed = {Keyed(1): 'a', Keyed(2): 'b'}
    """,
    "def job():\n"
    "    return [ring[1] is ring, leaf.parent is root and root.children[0] is leaf,\n"
    "            [root.name, leaf.name], len([k for k in keyed if keyed[Keyed(k.n)]])]",
)
works(
    "decorators: stacked wraps, a class, arguments; partials of classes and methods",
    ["<<hi>>", 2, 9, [1, 2], 7, 12, "static"],
    """
    import functools
    def around(mark):
        def deco(fn):
            @functools.wraps(fn)
            def inner(*a, **k): return mark + fn(*a, **k) + mark[::-1].translate({60: 62})
            return inner
        return deco
    @around('<')
    @around('<')
    def greet(): return 'hi'
    class Counted:
        def __init__(self, fn):
            functools.update_wrapper(self, fn)
            self.fn, self.calls = fn, 0
        def __call__(self, *a):
            self.calls += 1
            return self.fn(*a)
    @Counted
    def nine(): return 9
    class Box3:
        def __init__(self, a, b): self.a, self.b = a, b
        def add(self, n): return self.a + n
        add5 = functools.partialmethod(add, 5)
        @staticmethod
        def plain(): return 'static'
    made = functools.partial(Box3, 2)
    times = functools.partial(lambda a, b, *, c: a * b * c, 2, c=3)
    """,
    """
    def job():
        nine()
        both = made(2)
        return [greet(), nine.calls + 1, nine(), [1, both.b], both.add5(), times(2), Box3.plain()]
    """,
)
works(
    "future annotations, type hints, aliases, overloads and Self",
    ["int", True, "Later", 1],
    """
    from __future__ import annotations
    import typing
    Alias: typing.TypeAlias = 'dict[str, Later]'
    class Later:
        def me(self) -> typing.Self: return self
    @typing.overload
    def one(x: int) -> int: ...
    @typing.overload
    def one(x: str) -> str: ...
    def one(x): return x
    def hinted(a: int, b: Later) -> Later: ...
    """,
    """
    def job():
        hints = typing.get_type_hints(hinted)
        return [hints['a'].__name__, isinstance(Later().me(), Later), hints['return'].__name__, one(1)]
    """,
)
works(
    "functions in tables, shadowed builtins, defaults and loop closures",
    [[3, 2], "mine", [1, 1, 2], [0, 1, 2], "__main__"],
    """
    def plus(x): return x + 1
    table = {'plus': plus, 'many': [lambda x: x, lambda x: x * 2]}
    sum = lambda values: 'mine'
    def keep(x, seen=[]):
        seen.append(x)
        return len(seen)
    def makers(): return [lambda i=i: i for i in range(3)]
    made_by = makers()
    """,
    """
    def job():
        return [[table['plus'](2), table['many'][1](1)], sum([1]), [keep(0), 1, keep(0)],
                [f() for f in made_by], __name__]
    """,
)
works(
    "pandas, a compiled pattern, a logger and an exception group",
    [6, "b", "mine", ["ValueError", "KeyError"]],
    """
    import logging, re
    import pandas as pd
    frame = pd.DataFrame({'n': [1, 2, 3]})
    pattern = re.compile(r'a(.)')
    mine_logger = logging.getLogger('mine')
    group = ExceptionGroup('both', [ValueError(1), KeyError(2)])
    """,
    """
    def job():
        kinds = [type(e).__name__ for e in group.exceptions]
        return [int(frame.n.sum()), pattern.match('ab')[1], mine_logger.name, kinds]
    """,
)
works(
    "init_subclass with keywords over an ABC and a generic",
    ["csv", ["csv", "tsv"], 4],
    """
    import abc
    from typing import Generic, TypeVar
    V = TypeVar('V')
    class Reader(abc.ABC, Generic[V]):
        kinds = []
        def __init_subclass__(cls, /, kind, **kw):
            super().__init_subclass__(**kw)
            cls.kind = kind
            Reader.kinds.append(kind)
        @abc.abstractmethod
        def read(self) -> V: ...
    class Csv(Reader[int], kind='csv'):
        def read(self): return 4
    class Tsv(Csv, kind='tsv'): ...
    """,
    "def job(): return [Csv.kind, Reader.kinds, Tsv().read()]",
)
if sys.version_info >= (3, 12):
    works(
        "type parameters and type statements",
        [3, "int", "Pair"],
        """
        type Pair[T] = tuple[T, T]
        class Stack[T]:
            def __init__(self, top: T): self.top = top
            def peek(self) -> T: return self.top
        def first[T](pair: Pair[T]) -> T: return pair[0]
        """,
        "def job(): return [first((Stack(3).peek(), 0)), int.__name__, Pair.__name__]",
    )


refused(
    "thread local",
    ["local_state", "line 1", "threads"],
    "import threading\nlocal_state = threading.local()",
    "def job(): return local_state.x",
)
_GUARDED = """
import dataclasses, threading
@dataclasses.dataclass
class Guarded:
    lock: object = dataclasses.field(default_factory=threading.Lock)
g0 = Guarded()
"""
for _name, _made, _shown in (
    ("coroutine", "async def _c(): ...\nhalf_coro = _c()\n", "half_coro"),
    ("async generator", "async def _a(): yield 1\nhalf_agen = _a()\n", "half_agen"),
    ("async lock", "import asyncio\nalock = asyncio.Lock()\n", "alock"),
    ("process", "import subprocess\nproc = subprocess.Popen(['true'])\nproc.wait()\n", "proc"),
    ("cursor", "import sqlite3\ncursor = sqlite3.connect(':memory:').cursor()\n", "cursor"),
    ("temporary file", "import tempfile\nntf = tempfile.NamedTemporaryFile()\n", "ntf"),
    ("run context", "from lakeshore.context import current\nctx0 = current()\n", "ctx0"),
    ("csv reader over a file", "import csv\nrows0 = csv.reader(open('/etc/hostname'))\n", "rows0"),
    ("map over a generator", "lazy0 = map(str, (i for i in range(3)))\n", "lazy0"),
    ("traceback", "try: 1 / 0\nexcept ZeroDivisionError as e: trace0 = e.__traceback__\n", "trace0"),
    ("main module", "import __main__ as main0\n", "main0"),
    ("zip file", "import io, zipfile\nzip0 = zipfile.ZipFile(io.BytesIO(), 'w')\n", "zip0"),
    ("lock in a dataclass", _GUARDED, "g0"),
    ("worker thread", "from lakeshore import *\nwt0 = WorkerThread(SyncQueue('x'))\n", "wt0"),
):  # fmt: skip
    refused(
        _name,
        [f"'{_shown}'", rf"used in cell \d+, line 2: `return {_shown}`"],
        _made,
        f"def job():\n    return {_shown}",
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    base = tmp_path_factory.mktemp("by_value")
    home, here, elsewhere = base / "home", base / "here", base / "elsewhere"
    for folder in (home, here, elsewhere):
        folder.mkdir(mode=0o700)
    env = {**os.environ, "LAKESHORE_HOME": str(home), "IPYTHONDIR": str(base / "ipython")}

    def python(code, cwd, text=""):
        argv = [sys.executable, "-c", code]
        options = {"capture_output": True, "text": True, "env": env, "cwd": cwd, "timeout": 120}
        done = subprocess.run(argv, input=text, **options)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    spec = {name: cells for table in (WORKS, REFUSED) for name, (_, cells) in table.items()}
    out = python(KERNEL, here, json.dumps(spec))
    told = json.loads(next(line for line in out.splitlines() if line.startswith("@@"))[2:])
    python(WORKER, elsewhere)
    plane = Dispatch(str(home / "dispatch.sqlite"))
    yield told, SyncQueue("gpu", dispatch=plane)
    plane.close()


@pytest.mark.parametrize("name", [name for name in WORKS if name != "an error in a helper"])
def test_works(answers, name):
    told, q = answers
    expected, _ = WORKS[name]
    assert "id" in told[name], told[name]
    assert q.result(told[name]["id"], timeout=1) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_submit(answers, name):
    told, _ = answers
    patterns, _ = REFUSED[name]
    assert told[name].get("error") == "CaptureError", told[name]
    for pattern in patterns:
        assert re.search(pattern, told[name]["message"]), told[name]["message"]


def test_the_error_shows_the_users_own_lines_of_every_cell(answers):
    told, q = answers
    with pytest.raises(InvocationFailed) as caught:
        q.result(told["an error in a helper"]["id"], timeout=1)
    text = caught.value.traceback
    assert re.search(r'File "<lakeshore job cell \d+>", line 2, in compute_ratio\n +return 10 / d', text)
    assert re.search(r'File "<lakeshore job cell \d+>", line 3, in job\n +return compute_ratio\(zero\)', text)
    assert "site-packages" not in text
    assert "lakeshore/" not in text
