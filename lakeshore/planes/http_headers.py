"""What an answer's headers say: its media type, and how long to wait before the next try.

Headers come from whatever stands before the control plane: one that cannot be read says nothing.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping

from lakeshore.planes.protocol import MSGPACK


def media_of(headers: Mapping[str, str]) -> str:
    """Return an answer's media type without parameters; where two proxies each named one, the first."""
    return headers.get("content-type", MSGPACK).partition(";")[0].partition(",")[0].strip().lower()


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a Retry-After asks for; 0 where there is none that can be read."""
    text = headers.get("retry-after", "").strip()
    if text.isdigit() and len(text) < 10:
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError):
        return 0.0
    return max(0.0, when.timestamp() - _now_there(headers))


def _now_there(headers: Mapping[str, str]) -> float:
    """Return what the clock says that a date in these headers was read from."""
    try:
        return email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (TypeError, ValueError, IndexError):
        return time.time()
