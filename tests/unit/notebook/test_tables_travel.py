"""What a line magic returned may be captured by a job: it travels as plain data."""

from __future__ import annotations

from lakeshore import Dispatch, SyncQueue, run_worker, thunk
from lakeshore.notebook.tables import Record, Table


def test_a_captured_table_travels_as_its_rows():
    table = Table([{"id": "a", "state": "queued"}], {"id": str})
    record = Record(id="a")

    def job():
        return [type(table).__name__, [row["state"] for row in table], record["id"]]

    q = SyncQueue("gpu", dispatch=Dispatch(":memory:"))
    inv = q.submit(thunk(job))
    run_worker(q, once=True)
    assert q.result(inv) == ["list", ["queued"], "a"]
