"""Displays of a body: an object as a MIME bundle, and `IPython.display` led into the job's log.

IPython is never imported here; it is met only when something else has loaded it.
"""

from __future__ import annotations

import base64
import builtins
import functools
import io
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from lakeshore import wire
from lakeshore.errors import WireError

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
_MODULE: Final = "IPython.core.display_functions"


def bundle(obj: object) -> dict[str, Any]:
    """Format `obj` as ``{mime: data}``: text as str, images as base64 text, as Jupyter carries them.

    Too large an image is made smaller; any other form over 1 MiB is left out.
    """
    return bounded(_formatted(obj))


def bounded(data: dict[str, Any]) -> dict[str, Any]:
    """Return the bundle without what does not fit in 1 MiB; images are made smaller first."""
    kept: dict[str, Any] = {}
    room = DISPLAY_LIMIT
    for mime, value in sorted(data.items(), key=lambda item: item[0] != "text/plain"):
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


# -- IPython.display inside a body

_state: dict[str, Any] = {}


def install(current: Callable[[], Any]) -> None:
    """Lead displays made in a body to its job; `current` returns the calling body's sink, or None."""
    _state["current"] = current
    if _shell() is not None:
        _state["publishers"] = []
        renew()
        return
    if not hasattr(builtins, "display"):
        builtins.display = _display  # type: ignore[attr-defined]
    if _MODULE in sys.modules:
        _patch(sys.modules[_MODULE])
    else:
        _state["finder"] = _Finder()
        sys.meta_path.insert(0, _state["finder"])


def renew() -> None:
    """Lead the shell's publisher too where it is a new one: a cell that captures its output sets its own."""
    publishers = _state.get("publishers")
    if publishers is None:
        return
    publisher = _shell().display_pub
    if "publish" not in vars(publisher):
        publisher.publish = functools.partial(_publish, publisher.publish)
        publishers.append(publisher)


def _publish(publish: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> Any:
    sink = _state["current"]() if "current" in _state else None
    return publish(data, *args, **kwargs) if sink is None else sink.display(bounded(dict(data)))


def remove() -> None:
    """Undo `install`."""
    for publisher in _state.pop("publishers", ()):
        del publisher.publish
    if getattr(builtins, "display", None) is _display:
        del builtins.display  # type: ignore[attr-defined]
    finder = _state.pop("finder", None)
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
    original = _state.pop("display", None)
    if original is not None:
        for name in (_MODULE, "IPython.display", "IPython.core.display"):
            module = sys.modules.get(name)
            if module is not None and getattr(module, "display", None) is _display:
                module.display = original  # type: ignore[attr-defined]
    _state.pop("current", None)


def _shell() -> Any:
    """Return the interactive shell of this process, if it has one."""
    module = sys.modules.get("IPython.core.interactiveshell")
    shell = getattr(module, "InteractiveShell", None)
    return shell.instance() if shell is not None and shell.initialized() else None


def _display(*objs: Any, **kwargs: Any) -> Any:
    """Stand in for `IPython.display.display` where no shell runs: into the job's log."""
    current = _state.get("current")
    sink = current() if current is not None else None
    if sink is None:
        original = _state.get("display")
        if original is not None:
            return original(*objs, **kwargs)
        print(*objs)  # noqa: T201 - what IPython's own does without a shell
        return None
    for obj in objs:
        if kwargs.get("raw") and isinstance(obj, dict):
            sink.display(bounded(dict(obj)))
        else:
            sink.show(obj)
    return None


def _patch(module: ModuleType) -> None:
    _state["display"] = module.display
    module.display = _display  # type: ignore[attr-defined]
    for name in ("IPython.display", "IPython.core.display"):
        other = sys.modules.get(name)
        if other is not None and getattr(other, "display", None) is _state["display"]:
            other.display = _display  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    """Patches IPython's display module when a body loads it."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Patching(spec.loader)
                return spec
        return None


class _Patching(Loader):
    """Loads as the wrapped loader does, then patches."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if _state.get("current") is not None:
            _patch(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
