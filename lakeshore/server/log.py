"""Where a server's log goes: one line an event on stderr, text or JSON; no secret, no raw control byte."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Final, Literal

from lakeshore.planes.store_tokens import PREFIX
from lakeshore.server.gate import Line

Form = Literal["text", "json", "off"]
_TOKEN: Final = re.compile(f"{PREFIX}[A-Za-z0-9_-]+")
_LOGGERS: Final = ("lakeshore.server", "uvicorn.error")
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = record.args
        text = line.text if isinstance(line, Line) else super().format(record)
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        return _clean(f"{at} {text}")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = record.args
        if isinstance(line, Line):
            return _clean(str(line))
        told = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": super().format(record),
        }
        return _clean(json.dumps(told))


def _clean(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", _TOKEN.sub("***", text))


def set_up(form: Form) -> None:
    """Send the log to stderr in this form; ``"off"`` keeps warnings and errors alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json("%(message)s") if form == "json" else _Text("%(levelname)s: %(message)s"))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if form == "off" or name.startswith("uvicorn") else logging.INFO)
