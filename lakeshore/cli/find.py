"""From what a person types to an id: whole, or its unique beginning."""

from __future__ import annotations

from lakeshore.errors import NotSupported, UnknownInvocation
from lakeshore.planes.contract import Plane, check_id

_LOOK_AT = 5000
_PAGE = 500


def find(plane: Plane, ref: str) -> str:
    """Return the id that `ref` is, or is the beginning of.

    Raises
    ------
    UnknownInvocation
        When no job among the newest 5,000 has such an id, or several have.
    """
    if plane.get(check_id(ref)) is not None:
        return ref
    found: list[str] = []
    before: str | None = None
    for _ in range(_LOOK_AT // _PAGE):
        try:
            rows = plane.invocations(limit=_PAGE, before=before)
        except NotSupported:
            raise UnknownInvocation(
                f"no job has the id {ref!r}, and this control plane cannot list those that begin so. "
                "Give the whole id."
            ) from None
        found += [row["id"] for row in rows if row["id"].startswith(ref)]
        if len(rows) < _PAGE:
            break
        before = rows[-1]["id"]
    if not found:
        raise UnknownInvocation(f"no job has the id {ref!r}, or one that begins so. See: lakeshore ls")
    if len(found) > 1:
        shown = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise UnknownInvocation(f"{ref!r} is the beginning of {len(found)} ids ({shown}). Give more of it.")
    return found[0]
