"""torch on the wire: dense tensors (2), detached and on the CPU.

The body is packed [dtype, shape, raw bytes in C order, little-endian]; dtype is the name that numpy and torch
share ("float32"), or torch's own ("bfloat16", "float8_e4m3fn").
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from lakeshore.wire.codecs import Refused, fields, plain_packb

_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex32", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_DTYPES = {name: getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
_NAME_OF = {dtype: name for name, dtype in _DTYPES.items()}


def encoder(kind: type) -> tuple[int, Callable[[Any], bytes]] | None:
    """Return the codec of exactly `torch.Tensor`, or None. Raises `Refused` for its subclasses."""
    if kind is torch.Tensor:
        return 2, encode_tensor
    if issubclass(kind, torch.Tensor):
        raise Refused(f"a {kind.__name__} would come back as a plain tensor; send value.detach()")
    if issubclass(kind, torch.nn.Module):
        raise Refused(f"a module ({kind.__name__}) is code; send dict(value.state_dict())")
    return None


def encode_tensor(value: torch.Tensor) -> bytes:
    """Return the body of a dense tensor of any layout in memory; one on a GPU comes back on the CPU."""
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise Refused(
            f"a {value.layout} tensor of {value.dtype} on {value.device} is not dense; send value.to_dense()"
        )
    name = _NAME_OF.get(value.dtype)
    if name is None or sys.byteorder != "little":
        raise Refused(f"a tensor of {value.dtype} has no form on the wire; send value.to(torch.float32)")
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw = ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size()) if dense.numel() else b""
    return plain_packb([name, list(dense.shape), raw])


def decode_tensor(body: bytes) -> torch.Tensor:
    """Return the tensor of a body: writable, on the CPU, its own memory."""
    name, shape, raw = fields(body, 3, "a tensor")
    dtype = _DTYPES.get(name) if type(name) is str else None
    if dtype is None:
        raise ValueError(f"a tensor's dtype {name!r} is not known to torch {torch.__version__}")
    if type(shape) is not list or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 64:
        raise ValueError("a tensor's shape wants at most 64 ints of 0 or more")
    if type(raw) is not bytes or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError("a tensor's shape and dtype do not match its bytes")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    if dtype is torch.bool and raw.strip(b"\0\1"):
        raise ValueError("a tensor of bool holds what is neither 0 nor 1")
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
