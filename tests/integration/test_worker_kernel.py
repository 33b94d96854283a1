"""The worker in a real kernel: what bodies print, log and display lands in no cell."""

from __future__ import annotations

import nbclient
import nbformat

JOB = """
import logging, sys, threading, time
logging.basicConfig()
from lakeshore import Dispatch, SyncQueue, run, thunk
q = SyncQueue("gpu", dispatch=Dispatch(":memory:"))
worker = q.worker()

def job():
    import logging, sys, threading, warnings
    print("PRINTED")
    print("ERRED", file=sys.stderr)
    logging.warning("LOGGED")
    warnings.warn("WARNED")
    thread = threading.Thread(target=print, args=("THREADED",))
    thread.start()
    thread.join()
    display({"shown": 1})
    run.display("by run")
    return 5
"""
ASYNC = """
async def body():
    import asyncio
    await asyncio.sleep(0.01)
    yield 1
list(q.stream(q.submit(thunk(body))))
"""
CELLS = [
    JOB,
    "inv = q.submit(thunk(job)); print(q.result(inv))",
    "%%capture captured\ninv2 = q.submit(thunk(job)); q.result(inv2); print('mine')",
    "print(repr(captured.stdout), repr(captured.stderr), captured.outputs)",
    "for each in (inv, inv2):\n    for item in q.logs(each): print(item.get('text') or item['display'])",
    ASYNC,
    "before = type(sys.stdout.original).__name__\nprint(worker.stop(), type(sys.stdout).__name__ == before)",
]


def test_nothing_of_a_body_lands_in_a_cell(home):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    texts = [
        "".join(output.get("text") or output["data"]["text/plain"] for output in cell.outputs)
        for cell in notebook.cells
    ]
    assert texts[0] == ""
    assert texts[1] == "5\n"
    assert texts[2] == ""
    assert texts[3] == "'mine\\n' '' []\n"
    for word in ("PRINTED", "ERRED", "LOGGED", "WARNED", "THREADED", "'shown'", "by run"):
        assert texts[4].count(word) >= 2, word
    assert texts[5] == "[1]"
    assert texts[6] == "True True\n"
