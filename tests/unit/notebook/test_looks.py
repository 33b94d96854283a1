"""A control plane that is away: looks say so in one line, soon; the file's plane is asked as it is."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from lakeshore import Dispatch, HttpDispatch
from lakeshore.errors import PlaneUnavailable
from lakeshore.notebook import looks
from lakeshore.notebook.looks import answers, impatient
from lakeshore.planes.default import set_default_plane
from tests.unit.notebook.conftest import Notebook
from tests.unit.notebook.test_magics import complete


@pytest.fixture(params=["refuses", "is silent"])
def away(request: pytest.FixtureRequest) -> Iterator[HttpDispatch]:
    """The default plane: nobody listens at its port, or somebody does and never answers."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        if request.param == "is silent":
            door.listen(50)
        plane = HttpDispatch(f"http://127.0.0.1:{door.getsockname()[1]}")
        yield plane
        plane.close()


def test_a_look_gives_up_soon(away: HttpDispatch) -> None:
    began = time.monotonic()
    with pytest.raises(PlaneUnavailable):
        impatient(away, 0.3).queues()
    assert str(answers(impatient(away, 0.3))).startswith("no: ")
    assert time.monotonic() - began < 5
    assert away.timeout == 30
    with pytest.raises(ValueError, match="timeout"):
        away.with_timeout(-1)


def test_the_magics_say_so_in_one_line(
    nb: Notebook, away: HttpDispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks.impatient, "__defaults__", (0.3,))
    set_default_plane(away)
    began = time.monotonic()
    for line in ("status", "ls gpu"):
        cell = nb.run(f"%lakeshore {line}")
        assert isinstance(cell.error, PlaneUnavailable)
        assert "does not answer" in cell.out
        assert len(cell.out.strip().splitlines()) == 1
    assert nb("%lakeshore plane")["answers"].startswith("no: ")
    plane = next(row for row in nb("%lakeshore doctor") if row["check"] == "plane")
    assert plane["state"] == "fault"
    assert [text for text in complete(nb, "%lakeshore ls g") if not text.startswith("%")] == []
    assert time.monotonic() - began < 10
    set_default_plane(nb.plane)


def test_a_plane_on_this_machine_is_asked_as_it_is() -> None:
    plane = Dispatch(":memory:")
    assert impatient(plane) is plane
    assert answers(plane) is None
    plane.close()
