"""Thunks: signatures, options, envelopes, arguments that the codec lacks."""

import functools

import pytest

from lakeshore import CaptureError, PackError, Thunk, scope, thunk, udf, wire
from lakeshore.context import job_context
from lakeshore.functions.thunk import Options
from lakeshore.functions.transport import resolve

OPEN = {"registry": {}, "allow_pickled": True, "runtime_policy": "minor", "trusted": True}


def call(envelope):
    fn, _ = resolve(wire.Envelope.from_bytes(envelope.to_bytes()).fn, **OPEN)
    return fn(*wire.unpack(envelope.args), **wire.unpack(envelope.kwargs))


def area(width, height=1, *, unit="m"):
    return [width * height, unit]


def test_the_envelope_carries_the_call(tmp_path):
    with scope("a/b", root=tmp_path):
        envelope = thunk(area, 3, height=2).__envelope__(id="i", plane=None, key="k", parent="p")
    assert (envelope.id, envelope.prefix, envelope.key, envelope.parent) == ("i", "a/b", "k", "p")
    assert (wire.unpack(envelope.args), wire.unpack(envelope.kwargs)) == ([3], {"height": 2})
    assert envelope.cfg == {}
    assert call(envelope) == [6, "m"]


def test_a_submit_in_a_job_is_its_child():
    with job_context(prefix="", root="/", invocation_id="outer"):
        assert thunk(area, 1).__envelope__(id="i").parent == "outer"
    assert thunk(area, 1).__envelope__(id="i").parent is None


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'width'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"heigth": 2}, r"unexpected keyword argument 'heigth'.*Did you mean 'height'"),
        ((1,), {"width": 2}, "multiple values for argument 'width'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_when_it_is_made(args, kwargs, words):
    for fn in (area, udf(area), functools.partial(area)):
        with pytest.raises(TypeError, match=rf"area\(\): .*{words}"):
            thunk(fn, *args, **kwargs)


def test_what_has_no_signature_is_taken():
    assert call(thunk(dict, a=1).__envelope__(id="i")) == {"a": 1}
    assert call(thunk(max, 1, 2).__envelope__(id="i")) == 2


@pytest.mark.parametrize("bad", [3, None, "f"])
def test_what_is_not_callable_is_refused(bad):
    with pytest.raises(TypeError, match="not callable"):
        thunk(bad)


def test_options_fill_cfg_and_leave_the_call_alone():
    base = thunk(area, 1)
    given = base.with_options(retries=2, backoff=0.5, timeout=3.0, name="n", log=True).with_options(retries=0)
    assert given.__envelope__(id="i").cfg == {
        "retries": 0,
        "backoff": 0.5,
        "timeout": 3.0,
        "name": "n",
        "log": True,
    }
    assert base.__envelope__(id="i").cfg == {}
    assert isinstance(given, Thunk)


@pytest.mark.parametrize(
    "bad",
    [
        *({"retries": n} for n in (-1, 101, 1.5, True)),
        *({"backoff": s} for s in (-1, 86401, float("nan"))),
        *({"timeout": s} for s in (0, "3", float("inf"))),
        *({"name": n} for n in ("", 3)),
        {"log": 1},
        {"transport": "magic"},
        {"capture_limit": 0},
    ],
    ids=str,
)
def test_an_impossible_option_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        thunk(area, 1).with_options(**bad)


def test_a_udfs_options_go_with_a_thunk_of_it():
    assert thunk(udf(retries=3, name="n")(area), 1).__envelope__(id="i").cfg == {"retries": 3, "name": "n"}


class Opaque:
    def __init__(self, v):
        self.v = v


def test_an_argument_without_a_form_travels_in_the_pickle_with_the_function():
    class Here(Opaque):
        pass

    def job(one, two, *, three):
        return [type(one) is Here, one.v, two, three.v]

    envelope = thunk(job, Here(1), [2], three=Here(3)).__envelope__(id="i")
    assert wire.unpack(envelope.args) == []
    assert envelope.fn["bound"] is True
    assert call(envelope) == [True, 1, [2], 3]


def test_with_a_reference_it_is_refused_with_the_way_out():
    with pytest.raises(PackError, match=r"args\[0\].*Opaque.*transport='pickle'"):
        thunk(len, Opaque(1)).__envelope__(id="i")
    with pytest.raises(PackError, match=r'kwargs\["key"\]'):
        thunk(sorted, [1], key=Opaque(1)).__envelope__(id="i")


def test_by_value_on_demand():
    assert thunk(len, [1]).with_options(transport="pickle").__envelope__(id="i").fn["kind"] == "pickle"


def test_the_capture_limit_holds_for_arguments_too():
    class Blob:
        data = None

    blob = Blob()
    blob.data = b"x" * 5000
    with pytest.raises(CaptureError, match=r"over the limit of 4.0 KiB.*'args\[0\]'"):
        thunk(lambda b: b, blob).with_options(capture_limit=4096).__envelope__(id="i")


def test_calls_that_share_describe_their_function_once():
    shared = []
    first, second = (thunk(lambda x: x, n).sharing(shared).__envelope__(id="i") for n in (1, 2))
    assert first.fn is second.fn
    assert [wire.unpack(e.args) for e in (first, second)] == [[1], [2]]


def test_options_lie_over_others():
    assert Options(retries=1).over(Options(retries=2, name="n")) == Options(retries=1, name="n")


def test_a_batch_describes_each_function_once():
    double, shared = (lambda x: x * 2), {}
    calls = [thunk(double, n) for n in range(3)] + [thunk(lambda x: x + 1, 3)]
    described = [call.__envelope__(id="i", shared=shared).fn for call in calls]
    assert described[0] is described[1] is described[2]
    assert described[3] is not described[0]
    assert len(shared) == 2
    again = calls[0].__envelope__(id="i").fn
    assert again is not described[0], "a submit of its own takes the function as it is then"


@pytest.mark.parametrize(
    ("fn", "args", "fits"),
    [
        (lambda a, b=1: None, (1,), True),
        (lambda a, b=1: None, (1, 2), True),
        (lambda a, b=1: None, (), False),
        (lambda a, b=1: None, (1, 2, 3), False),
        (lambda *a: None, (1,) * 50, True),
        (lambda a, *b: None, (), False),
        (lambda a, *, k: None, (1,), False),
        (lambda *, k: None, (), False),
        (lambda a, *, k=1: None, (1,), True),
        (lambda a, /, **kw: None, (1,), True),
        (lambda **kw: None, (), True),
        (lambda: None, (1,), False),
    ],
)
def test_arguments_by_position_are_counted_as_python_does(fn, args, fits):
    if fits:
        thunk(fn, *args)
        return
    with pytest.raises(TypeError, match="It takes"):
        thunk(fn, *args)
