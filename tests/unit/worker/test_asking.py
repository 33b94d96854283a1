"""A body that asks is refused with a word on what to do; everyone else asks as before."""

from __future__ import annotations

import builtins
import getpass
import threading

import pytest

from lakeshore import InvocationFailed, thunk


def ask():
    return input("name? ")


def ask_secretly():
    return getpass.getpass()


def ask_in_a_thread():
    told = []

    def asks():
        try:
            input()
        except Exception as error:
            told.append(type(error).__name__)

    thread = threading.Thread(target=asks)
    thread.start()
    thread.join()
    return told


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_body_may_not_ask(q, drain, isolation):
    asked, secret, within = (q.submit(thunk(f)) for f in (ask, ask_secretly, ask_in_a_thread))
    drain(retries=0, isolation=isolation)
    with pytest.raises(InvocationFailed, match=r"input\('name\? '\): a job cannot ask.* argument") as caught:
        q.result(asked)
    assert caught.value.type == "InputRefused"
    assert "worker/asking.py" not in str(caught.value)
    with pytest.raises(InvocationFailed, match=r"getpass\(\): a job cannot ask"):
        q.result(secret)
    assert q.result(within) == ["InputRefused"]


def test_others_ask_while_a_worker_lives_and_all_is_put_back_after(q, monkeypatch):
    monkeypatch.setattr(builtins, "input", lambda prompt="": f"{prompt}yes")
    before = builtins.input, getpass.getpass
    with q.worker():
        assert q.call(thunk(int)) == 0
        assert input("well? ") == "well? yes"
        assert builtins.input is not before[0]
    assert (builtins.input, getpass.getpass) == before
