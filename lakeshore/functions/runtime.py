"""Whether a pickle made by one interpreter may be opened by another."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from lakeshore.errors import RuntimeMismatch


def check_runtime(name: object, stamp: object, ours: Mapping[str, Any], policy: str) -> None:
    """Hold the interpreter that pickled a function against this one.

    Parameters
    ----------
    name : str
        The function, for the message.
    stamp, ours : mapping
        ``python``, ``impl``, ``cloudpickle``, ``pickle_protocol``: there, and here.
    policy : {"strict", "minor", "off"}
        "strict" wants the same versions, "minor" the same Python to its minor version and the same
        major cloudpickle, "off" looks at nothing.

    Raises
    ------
    RuntimeMismatch
        When they differ by more than `policy` allows; names both versions.
    """
    if policy == "off":
        return
    there: Mapping[str, Any] = stamp if isinstance(stamp, Mapping) else {}
    exact = policy == "strict"
    # a pickle holds for one minor version of Python (its bytecode) and one major of cloudpickle (its names)
    rules = (("python", "Python", 2), ("impl", "interpreter", 3), ("cloudpickle", "cloudpickle", 1))
    for key, what, parts in rules:
        theirs, mine = str(there.get(key)).lower().split("."), str(ours[key]).lower().split(".")
        if not (theirs == mine if exact else theirs[:parts] == mine[:parts]):
            raise RuntimeMismatch(
                f"{name!r} was pickled under {what} {there.get(key)}, this worker runs {what} {ours[key]} "
                f"(runtime_policy={policy!r}). Run a worker with the submitter's version, or submit it by "
                "reference from an installed module."
            )
    protocol = there.get("pickle_protocol")
    if isinstance(protocol, int) and protocol > pickle.HIGHEST_PROTOCOL:
        raise RuntimeMismatch(
            f"{name!r} was pickled with protocol {protocol}, this worker reads {pickle.HIGHEST_PROTOCOL} "
            "at most. Run a worker with the submitter's Python."
        )
