"""Refuses what a body asks of people: `input` and `getpass`, since nobody sits before a job to answer.

A kernel sets both anew for each of its cells, from what its own object holds; so that is led, too.
"""

from __future__ import annotations

import builtins
import functools
import getpass
import pkgutil
from collections.abc import Callable
from typing import Any, Final

from lakeshore.errors import InputRefused

_WHERE: Final = ((builtins, "input", "builtins:input"), (getpass, "getpass", "getpass:getpass"))
_OF_A_KERNEL: Final = (
    ("raw_input", "builtins:input"),
    ("_sys_raw_input", "builtins:input"),
    ("getpass", "getpass:getpass"),
    ("_save_getpass", "getpass:getpass"),
)
_state: dict[str, Any] = {}


class _Refusing:
    """Stands before a function that asks: refuses in a body, and is the original for everyone else."""

    __wrapped__: Callable[..., Any]

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, original)
        self._asks = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        current = _state.get("current")
        if current is None or current() is None:
            return self.__wrapped__(*args, **kwargs)
        prompt = repr(str(args[0])[:60]) if args else ""
        raise InputRefused(
            f"{self._asks.partition(':')[2]}({prompt}): a job cannot ask, nobody sits before it to answer. "
            "Ask before the submit and pass the answer as an argument, or read it from the worker's "
            "environment."
        )

    def __reduce__(self) -> Any:
        return pkgutil.resolve_name, (self._asks,)


def install(current: Callable[[], Any], kernel: Any) -> None:
    """Refuse questions where `current` returns a body's sink; `kernel` is this process's, or None."""
    _state["current"], _state["kernel"] = current, kernel
    renew()


def renew() -> None:
    """Stand before what asks, again where someone has set another meanwhile."""
    if "current" not in _state:
        return
    for owner, name, asks in _WHERE:
        found = getattr(owner, name)
        if type(found) is not _Refusing:
            setattr(owner, name, _Refusing(found, asks))
    kernel = _state["kernel"]
    if kernel is None or type(getattr(kernel, "raw_input", None)) is _Refusing:
        return
    for name, asks in _OF_A_KERNEL:
        if (found := getattr(kernel, name, None)) is not None and type(found) is not _Refusing:
            setattr(kernel, name, _Refusing(found, asks))


def remove() -> None:
    """Undo `install`."""
    if _state.pop("current", None) is None:
        return
    kernel = _state.pop("kernel")
    of_a_kernel = [] if kernel is None else [(kernel, name) for name, _ in _OF_A_KERNEL]
    for owner, name in [(owner, name) for owner, name, _ in _WHERE] + of_a_kernel:
        found = getattr(owner, name, None)
        if type(found) is not _Refusing:
            continue
        original = found.__wrapped__
        while type(original) is _Refusing:  # a kernel led its own stand-in on to `input`
            original = original.__wrapped__
        if owner is kernel and getattr(original, "__self__", None) is kernel:
            delattr(owner, name)  # its class's own shows again
        else:
            setattr(owner, name, original)
