"""The wire: what a value, an envelope and a frame are as bytes.

The bytes of version 1 are fixed. Decoding never runs code from the bytes and never allocates more than they
justify.
"""

from __future__ import annotations

from lakeshore.errors import CodecError
from lakeshore.wire.envelope import WIRE_VERSION, Envelope
from lakeshore.wire.frames import (
    CHUNK_SIZE,
    Assembler,
    Event,
    Frame,
    FrameKind,
    FrameReader,
    attempt_frame,
    end_frame,
    error_frame,
    reseq,
    value_frames,
)
from lakeshore.wire.registry import Codec, register
from lakeshore.wire.values import MAX_DEPTH, pack, unpack

__all__ = [
    "CHUNK_SIZE",
    "MAX_DEPTH",
    "WIRE_VERSION",
    "Assembler",
    "Codec",
    "CodecError",
    "Envelope",
    "Event",
    "Frame",
    "FrameKind",
    "FrameReader",
    "attempt_frame",
    "end_frame",
    "error_frame",
    "pack",
    "register",
    "reseq",
    "unpack",
    "value_frames",
]
