"""Displays of a body: an object as a MIME bundle, and `IPython.display` led into the job's log.

IPython is never imported here; it is met only when something else has loaded it.
"""

from __future__ import annotations

import base64
import builtins
import functools
import io
import os
import pkgutil
import re
import reprlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from lakeshore import wire
from lakeshore.errors import WireError
from lakeshore.worker import asking, bars, figures
from lakeshore.worker.imports import WhenLoaded

DISPLAY_LIMIT: Final = 1024 * 1024
"""Bytes that one display may have."""

_REPRS: Final = (
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("image/svg+xml", "_repr_svg_"),
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
)
_SOURCES: Final = ("text/markdown", "text/latex")
"""Forms that people can read as they stand, where an object has no words of its own."""
_SAYS_NOTHING: Final = re.compile(r"<[\w.]+ object(?: at 0x[0-9a-fA-F]+)?>")
_MODULE: Final = "IPython.core.display_functions"
_WIDGET: Final = "application/vnd.jupyter.widget-view+json"
_PLAIN: Final = (str, bytes, bytearray, list, tuple, dict, set, frozenset)
_INLINE: Final = (
    "inline",
    "module://matplotlib_inline.backend_inline",
    "module://ipykernel.pylab.backend_inline",
)


def bundle(obj: object) -> dict[str, Any]:
    """Format `obj` as ``{mime: data}``: text as str, images as base64 text, as Jupyter carries them.

    Too large an image is made smaller; any other form over 1 MiB is left out.
    """
    return bounded(_formatted(obj))


def bounded(data: dict[str, Any]) -> dict[str, Any]:
    """Return the bundle without what does not fit in 1 MiB; images are made smaller first.

    Its plain text is the Markdown or LaTeX where an object has no words of its own.
    """
    source = next((data[mime] for mime in _SOURCES if isinstance(data.get(mime), str)), None)
    if source is not None and _SAYS_NOTHING.fullmatch(str(data.get("text/plain", ""))):
        data = {**data, "text/plain": source}
    kept: dict[str, Any] = {}
    room = DISPLAY_LIMIT
    for mime, value in sorted(data.items(), key=lambda item: item[0] != "text/plain"):
        if mime == _WIDGET:  # a widget lives in the process that made it; a log shows its text
            continue
        if isinstance(value, bytes):
            value = value.decode() if mime.startswith("text/") else base64.b64encode(value).decode()
        if mime in ("image/png", "image/jpeg") and len(value) > room:
            mime, value = _smaller(mime, value, room)
        try:
            size = len(wire.pack(value))
        except WireError:
            continue
        if size <= room:
            kept[mime] = value
            room -= size
        elif mime == "text/plain":
            kept[mime] = value[: room // 2] + f"… ({size:,} characters)"
            room //= 2
    if not kept:
        kept["text/plain"] = "(a display over 1 MiB was left out)"
    return kept


def last_look(obj: object) -> dict[str, Any]:
    """Format what is about to be lost: as `bundle` does, a long row of plain values only in part."""
    if type(obj) in _PLAIN:
        brief = reprlib.Repr()
        brief.maxlevel, brief.maxlist, brief.maxtuple, brief.maxdict = 6, 200, 200, 200
        brief.maxset = brief.maxfrozenset = 200
        brief.maxstring, brief.maxlong, brief.maxother = 10_000, 200, 10_000
        return {"text/plain": brief.repr(obj)[: DISPLAY_LIMIT // 8]}
    return bundle(obj)


def _formatted(obj: object) -> dict[str, Any]:
    shell = _shell()
    found: dict[str, Any] = {}
    if shell is not None:
        found.update(shell.display_formatter.format(obj)[0])
    elif not isinstance(obj, type):
        make = getattr(obj, "_repr_mimebundle_", None)
        if callable(make):
            made = make(include=None, exclude=None)
            found.update(made[0] if isinstance(made, tuple) else made or {})
        for mime, name in _REPRS:
            method = getattr(obj, name, None)
            value = method() if mime not in found and callable(method) else None
            if value is not None:
                found[mime] = value[0] if isinstance(value, tuple) else value
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    if "image/png" not in found and figure is not None and isinstance(obj, figure):
        target = io.BytesIO()
        obj.savefig(target, format="png", bbox_inches="tight")
        found["image/png"] = target.getvalue()
    found.setdefault("text/plain", repr(obj))
    return found


def _smaller(mime: str, data: str, room: int) -> tuple[str, str]:
    try:
        from PIL import Image
    except ImportError:
        return mime, data
    image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    quality = 85
    while True:
        target = io.BytesIO()
        image.save(target, "JPEG", quality=quality)
        smaller = base64.b64encode(target.getvalue()).decode()
        if len(smaller) <= room or min(image.size) < 32:
            return "image/jpeg", smaller
        image = image.resize((max(1, image.width * 2 // 3), max(1, image.height * 2 // 3)))


# -- displays inside a body

_state: dict[str, Any] = {}


def install(current: Callable[[], Any], *, guest: bool = False) -> None:
    """Lead displays made in a body to its job, and refuse its questions.

    `current` returns the calling body's sink, or None.

    Parameters
    ----------
    guest : bool
        Others live in this process too: its environment is left alone. Default False: it is for bodies
        only, and matplotlib is told to open no windows.
    """
    _state["current"] = current
    asking.install(current, getattr(_shell(), "kernel", None))
    actions: dict[str, Callable[[ModuleType], None]] = {
        "matplotlib.pyplot": figures.lead,
        "tqdm.notebook": functools.partial(bars.lead, lambda: current() is not None),
    }
    if _shell() is not None:
        _state["publishers"] = []
        renew()
    else:
        actions[_MODULE] = _patch
        if not hasattr(builtins, "display"):
            builtins.display = _display  # type: ignore[attr-defined]
        if not guest and (os.environ.get("MPLBACKEND") or "inline") in _INLINE:
            os.environ["MPLBACKEND"] = "agg"
    _state["loads"] = WhenLoaded(actions)
    _state["loads"].start()


def renew() -> None:
    """Lead the shell's publisher too where it is a new one: a cell that captures its output sets its own."""
    asking.renew()
    publishers = _state.get("publishers")
    if publishers is None:
        return
    publisher = _shell().display_pub
    if "publish" not in vars(publisher):
        publisher.publish = functools.partial(_publish, publisher.publish)
        publishers.append(publisher)


def _publish(publish: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> Any:
    sink = _sink()
    return publish(data, *args, **kwargs) if sink is None else sink.display(bounded(dict(data)))


def remove() -> None:
    """Undo `install`."""
    asking.remove()
    loads = _state.pop("loads", None)
    if loads is not None:
        loads.stop()
    figures.leave()
    bars.leave()
    for publisher in _state.pop("publishers", ()):
        del publisher.publish
    if getattr(builtins, "display", None) is _display:
        del builtins.display  # type: ignore[attr-defined]
    standin = _state.pop("display", None)
    if standin is not None:
        _replace(standin, standin.__wrapped__)
    _state.pop("current", None)


def _shell() -> Any:
    """Return the interactive shell of this process, if it has one."""
    module = sys.modules.get("IPython.core.interactiveshell")
    shell = getattr(module, "InteractiveShell", None)
    return shell.instance() if shell is not None and shell.initialized() else None


def _sink() -> Any:
    current = _state.get("current")
    return current() if current is not None else None


def _display(*objs: Any, **kwargs: Any) -> Any:
    """Stand in for a notebook's built-in `display` where no shell runs."""
    standin = _state.get("display")
    if _sink() is None and standin is not None:
        return standin.__wrapped__(*objs, **kwargs)
    return _into_log(*objs, **kwargs)


def _into_log(*objs: Any, **kwargs: Any) -> None:
    sink = _sink()
    if sink is None:
        print(*objs)  # noqa: T201 - what IPython's own does without a shell
        return
    for obj in objs:
        if kwargs.get("raw") and isinstance(obj, dict):
            sink.display(bounded(dict(obj)))
        else:
            sink.show(obj)


class _Display:
    """Stands in for `IPython.display.display` where no shell runs: a body's go into its job's log.

    No function, and with `__wrapped__`: who looks for its source, or ships it, finds IPython's own.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)

    def __call__(self, *objs: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*objs, **kwargs) if _sink() is None else _into_log(*objs, **kwargs)

    def __reduce__(self) -> Any:
        return pkgutil.resolve_name, (f"{_MODULE}:display",)


def _patch(module: ModuleType) -> None:
    standin = _state["display"] = _Display(module.display)
    _replace(standin.__wrapped__, standin)


def _replace(old: object, new: object) -> None:
    for name in (_MODULE, "IPython.display", "IPython.core.display"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "display", None) is old:
            module.display = new  # type: ignore[attr-defined]
