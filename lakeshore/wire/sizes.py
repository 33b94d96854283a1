"""How large a value is on the wire: what is over the limit, and what would be if it were packed.

One container may be held many times over: 60 lists of two can stand for 2**60 items.
"""

from __future__ import annotations

from typing import Any

_LOOKED_AT = 16
"""Levels of first items that make a value worth a closer look: with fewer it is seldom one of these."""


def outgrows(value: Any, limit: int, *, depth: int) -> bool:
    """Whether `value` takes more than `limit` bytes for sure, looking `depth` levels deep."""
    one = value
    for _ in range(_LOOKED_AT):
        kind = type(one)
        if (kind is not list and kind is not dict and kind is not tuple) or not one:
            return False
        one = next(iter(one.values() if kind is dict else one))
    level, total, seen = {id(value): (value, 1)}, 0, set[int]()
    for steps in range(depth):
        seen.update(level)
        if steps >= len(seen):
            return False  # it holds itself, which the packer says
        below: dict[int, tuple[Any, int]] = {}
        for container, times in level.values():
            total += times * len(container)  # an item takes a byte at least
            for item in container.values() if type(container) is dict else container:
                if type(item) in (list, tuple, dict):
                    below[id(item)] = (item, times + below.get(id(item), (None, 0))[1])
        if total > limit:
            return True
        if not below:
            return False
        level = below
    return False  # too deep, which the packer says


def oversize(what: str, size: int | None, limit: int) -> str:
    """Return the message about a `size` over the `limit`; None for one that was not counted to its end."""
    told = (
        "it holds the same items many times over, and would be"
        if size is None
        else f"its size is {_size(size)},"
    )
    return (
        f"cannot pack {what}: {told} over the limit of {_size(limit)} "
        "(LAKESHORE_MAX_PAYLOAD). "
        "Write it to a file and send the key: path = run.write(key), then return key"
    )


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB ({count} bytes)" if count >= 2**20 else f"{count} bytes"
