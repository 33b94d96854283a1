"""Numbers as words: bounded digits, any real type, sizes in bytes; pure."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """Tell whether a value is a real number (numpy's too); a bool or a time span is none."""
    # numpy registers its time spans as integers, but they have a unit and no plain value.
    return isinstance(value, Real) and not isinstance(value, bool) and type(value).__name__ != "timedelta64"


def as_float(value: Any) -> float:
    """Return a real number as a float; one too large for it as an infinity of its sign."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def number(value: Any) -> str:
    """Return a number with four significant digits or so; integers in full up to 20 digits."""
    if isinstance(value, Integral):
        digits = int(value)
        return str(digits) if abs(digits) < 10**20 else _big(digits)
    x = as_float(value)
    if not math.isfinite(x):
        return "nan" if math.isnan(x) else ("inf" if x > 0 else "\u2212inf")
    if x == 0:
        return "0"
    if not 1e-4 <= abs(x) < 1e7:
        return f"{x:.3e}"
    decimals = max(1, 3 - math.floor(math.log10(abs(x))))
    return f"{x:.{decimals}f}".rstrip("0").rstrip(".")


def size(n: float) -> str:
    """Return a number of bytes for people: ``'3.2 MiB'``."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def _big(digits: int) -> str:
    x = as_float(digits)
    return f"{x:.4e}" if math.isfinite(x) else f"an int of {digits.bit_length():,} bits"
