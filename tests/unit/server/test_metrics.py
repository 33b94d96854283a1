"""/metrics: what a scrape says, how it is spelled, what it costs the store, and that the guide tells it."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import postgres_server
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakeshore import Dispatch, PlaneUnavailable
from lakeshore.planes.measures import MEANINGS
from lakeshore.planes.postgres import PostgresDispatch
from lakeshore.server import Options, aged, create_app, metrics
from lakeshore.server.aged import Aged
from lakeshore.server.run import background

GUIDE = Path(__file__).parents[3] / "docs" / "control-plane.md"
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NO_UNITS = (
    "ms",
    "milliseconds",
    "minutes",
    "hours",
    "days",
    "kb",
    "mb",
    "kib",
    "mib",
    "percent",
    "sec",
    "byte",
)


def scraped(url: str) -> dict[str, object]:
    """Return the families of a scrape by name."""
    answer = httpx.get(f"{url}/metrics", trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return checked(answer.text)


def checked(text: str) -> dict[str, object]:
    """Parse a scrape and hold it to the rules that promtool has for names, units, help and types."""
    assert text.endswith("\n")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    told = re.findall(r"^# (HELP|TYPE) (\S+) (.*)$", text, re.MULTILINE)
    for kind in ("HELP", "TYPE"):
        names = [name for each, name, _ in told if each == kind]
        assert len(names) == len(set(names)), f"{kind} is said twice"
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for family in families.values():
        assert NAME.fullmatch(family.name), family.name
        assert family.name.startswith("lakeshore_")
        assert family.documentation, family.name
        assert family.documentation.endswith("."), family.name
        assert not set(family.name.split("_")) & set(NO_UNITS), family.name
        assert not re.search(r"_(gauge|counter|histogram|summary|info)$", family.name), family.name
        for sample in family.samples:
            total = sample.name.endswith("_total")
            assert total == (family.type == "counter") or sample.name.endswith("_created"), sample.name
            assert all(NAME.fullmatch(label) for label in sample.labels), sample
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in seen, f"{key} twice"
            seen.add(key)
    return families


def value(families: dict[str, object], name: str, **labels: str) -> float | None:
    for sample in families[name].samples:  # type: ignore[attr-defined]
        if sample.labels == labels and not sample.name.endswith("_created"):
            return sample.value
    return None


def told_in_the_guide() -> dict[str, str]:
    """Return the names of the guide's table of metrics with their labels."""
    return dict(re.findall(r"^\| `(lakeshore_\w+)(?:\{([\w, ]+)\})?` \|", section(), re.MULTILINE))


def section() -> str:
    return GUIDE.read_text("utf-8").split("## Watching it", 1)[1].split("\n## ", 1)[0]


@pytest.fixture
def postgres() -> Iterator[str]:
    with (
        PostgresDispatch(postgres_server.shared().fresh()) as plane,
        background(create_app(plane, Options(auth=False))) as url,
    ):
        yield url


def test_a_scrape_of_a_file(served):
    for n in range(3):
        served.submit(f"job-{n}")
    served.poll()
    families = scraped(served.url)
    assert value(families, "lakeshore_jobs", namespace="default", queue="gpu", state="queued") == 2
    assert value(families, "lakeshore_jobs", namespace="default", queue="gpu", state="running") == 1
    assert value(families, "lakeshore_queues") == 1
    assert value(families, "lakeshore_store_up") == 1
    assert value(families, "lakeshore_store_bytes", part="file") == served.plane.path.stat().st_size
    assert value(families, "lakeshore_store_bytes", part="wal") is not None
    assert value(families, "lakeshore_store_free_bytes") > 0
    assert value(families, "lakeshore_store_rows", table="invocation") >= 3
    assert value(families, "lakeshore_store_schema_version") >= 1
    assert value(families, "lakeshore_jobs_age_seconds") < 60


def test_a_scrape_of_a_database(postgres):
    families = scraped(postgres)
    assert value(families, "lakeshore_store_up") == 1
    assert value(families, "lakeshore_store_bytes", part="tables") > 0
    assert value(families, "lakeshore_store_connections", owner="lakeshore") >= 1
    assert value(families, "lakeshore_store_held_transactions", by="slot") == 0
    assert value(families, "lakeshore_store_standby") == 0


def test_the_guide_tells_of_each_metric_and_of_no_other(served, postgres):
    served.submit("a")
    served.get("/healthz")
    held: dict[str, set[str]] = {}
    for url in (served.url, postgres):
        for family in scraped(url).values():
            if not family.name.endswith("_created"):
                labels = held.setdefault(family.name + "_total" * (family.type == "counter"), set())
                labels.update(label for sample in family.samples for label in sample.labels if label != "le")
    told = {name: {*filter(None, labels.split(", "))} for name, labels in told_in_the_guide().items()}
    sometimes = {f"lakeshore_store_{name}": {*labels} for name, (_, labels) in MEANINGS.items()}
    assert told == {**sometimes, **held}


def test_more_queues_than_lines(served, monkeypatch):
    monkeypatch.setattr(metrics, "QUEUES", 3)
    for n in range(7):
        for m in range(n + 1):
            served.plane.submit(f"q{n}", b"e", id=f"j{n}-{m}")
    jobs = scraped(served.url)["lakeshore_jobs"]
    found = {sample.labels["queue"]: sample.value for sample in jobs.samples}
    assert found == {"q6": 7, "q5": 6, "q4": 5, metrics.OTHERS: 1 + 2 + 3 + 4}
    assert value(scraped(served.url), "lakeshore_queues") == 7


def test_an_admin_of_one_namespace_is_told_of_no_other(guarded, monkeypatch):
    monkeypatch.setattr(metrics, "QUEUES", 1)
    for ns, n in (("a", 3), ("b", 1)):
        producer = guarded.token("producer", ns)
        for k in range(n):
            assert guarded.submit(f"{ns}-{k}", ns, token=producer).status_code == 200
    of_b = guarded.tokens.create(ns="b", role="admin")[0]
    answer = guarded.get("/metrics", token=of_b)
    families = checked(answer.text)
    assert {tuple(sample.labels.values()) for sample in families["lakeshore_jobs"].samples} == {
        ("b", "gpu", "queued")
    }
    assert value(families, "lakeshore_queues") == 1
    assert not re.search('"(a|default)"', answer.text)
    everywhere = checked(guarded.get("/metrics", token=guarded.token("admin")).text)
    assert {sample.labels["namespace"] for sample in everywhere["lakeshore_jobs"].samples} == {
        "a",
        metrics.OTHERS,
    }
    assert value(everywhere, "lakeshore_queues") == 2


def test_hostile_names_of_queues_are_escaped(served):
    names = ['a"b', "back\\slash", "{x} 1", "naïve 用户 🌊", metrics.OTHERS]
    for n, name in enumerate(names):
        served.plane.submit(name, b"e", id=f"j{n}")
    jobs = scraped(served.url)["lakeshore_jobs"]
    assert sorted(sample.labels["queue"] for sample in jobs.samples) == sorted(names)


def test_a_counter_begins_at_nothing_and_only_grows(serve):
    def of(families: dict[str, object]) -> float:
        return value(families, "lakeshore_requests", route="/healthz", method="GET", status="200") or 0.0

    first, second = serve(memory=True), serve(memory=True)
    seen = []
    for _ in range(3):
        first.get("/healthz")
        seen.append(of(scraped(first.url)))
    assert seen == [1, 2, 3]
    assert of(scraped(second.url)) == 0  # another server counts for itself


def test_a_store_that_is_away_hides_nothing_of_the_server(served, monkeypatch):
    def away(*_: object) -> None:
        raise PlaneUnavailable("look: it is away. Wait.")

    served.get("/healthz")
    monkeypatch.setattr(aged, "_count", away)
    families = scraped(served.url)
    assert value(families, "lakeshore_store_up") == 0
    assert value(families, "lakeshore_requests", route="/healthz", method="GET", status="200") == 1
    assert "lakeshore_jobs" not in families
    monkeypatch.undo()
    assert value(scraped(served.url), "lakeshore_store_up") == 1


def test_a_store_that_does_not_answer_holds_no_scrape_up(served, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(metrics, "PATIENCE", 0.01)
    monkeypatch.setattr(aged, "_count", lambda this: go_on.wait(10) and {})
    try:
        assert value(scraped(served.url), "lakeshore_store_up") == 0
    finally:
        go_on.set()


# -- looks that may cost much ---------------------------------------------------


class Looked:
    """A look that a test lets through."""

    def __init__(self) -> None:
        self.looks, self.waits = 0, threading.Semaphore(0)

    def __call__(self) -> int:
        self.looks += 1
        mine = self.looks
        assert self.waits.acquire(timeout=10)
        return mine


def test_a_cheap_look_is_made_for_everyone_who_asks():
    look = Looked()
    of = Aged(look, lambda value, cost: 0.0)
    look.waits.release(3)
    assert [of.get().value for _ in range(3)] == [1, 2, 3]


def test_a_costly_look_is_kept():
    look = Looked()
    of = Aged(look, lambda value, cost: 60.0)
    look.waits.release(1)
    assert [of.get().value for _ in range(3)] == [1, 1, 1]
    assert of.get().age < 60


def test_what_is_too_old_is_shown_while_one_looks_again():
    look = Looked()
    of = Aged(look, lambda value, cost: 1e-9)
    look.waits.release(1)
    assert of.get().value == 1
    assert [of.get().value for _ in range(2)] == [1, 1]  # the second look is under way, and shared
    assert look.looks == 2
    seen = of._under_way
    look.waits.release(1)
    assert seen.seen.result(10).value == 2


def test_what_is_much_too_old_is_waited_for(monkeypatch):
    look = Looked()
    of = Aged(look, lambda value, cost: 1e-9)
    look.waits.release(2)
    assert of.get().value == 1
    monkeypatch.setattr(aged, "_OLD_SECONDS", 0.0)
    assert of.get().value == 2


def test_a_look_that_fails_is_raised_and_nothing_older_is_shown():
    def look() -> int:
        if fails:
            raise PlaneUnavailable("no")
        return 1

    fails: list[int] = []
    of = Aged(look, lambda value, cost: 1e-9)
    assert of.get().value == 1
    fails.append(1)
    with pytest.raises(PlaneUnavailable, match="no"):
        while True:
            of.get()  # shown until it has failed
    with pytest.raises(PlaneUnavailable, match="no"):
        of.get()


def test_no_one_waits_longer_than_they_please():
    look = Looked()
    of = Aged(look, lambda value, cost: 0.0)
    with pytest.raises(PlaneUnavailable, match="has not answered within 0.01 s"):
        of.get(0.01)
    look.waits.release(1)


def test_a_server_that_says_it_is_ready_has_begun_to_look(served, monkeypatch):
    looked = threading.Event()
    monkeypatch.setattr(aged, "_count", lambda this: looked.set() or {})
    assert served.get("/readyz").status_code == 200
    assert looked.wait(10)
    assert value(scraped(served.url), "lakeshore_store_up") == 1


def test_many_rows_are_not_counted_for_each_who_asks(served, monkeypatch):
    monkeypatch.setattr(aged, "FEW", 2)
    monkeypatch.setattr(aged, "SHARE", 1e9)
    for n in range(3):
        served.submit(f"job-{n}")
    assert value(scraped(served.url), "lakeshore_jobs", namespace="default", queue="gpu", state="queued") == 3
    served.submit("one-more")
    families = scraped(served.url)
    assert value(families, "lakeshore_jobs", namespace="default", queue="gpu", state="queued") == 3
    assert value(families, "lakeshore_jobs_age_seconds") > 0
    assert ">3<" in httpx.get(served.url, trust_env=False).text  # the page counts with it


def test_counts_of_a_plane_that_is_gone_hold_it_not():
    with Dispatch(":memory:") as store:
        app = create_app(store, Options(auth=False))
        plane = app.serving.plane("default")
        assert aged.counts(plane).value == {}
        before = len(aged._counts)
        app.serving._planes.clear()
        del plane
        assert sys.getrefcount(store) > 0
        assert len(aged._counts) == before - 1
