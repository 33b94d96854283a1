"""Objects that pickle by name, or not at all, taken by value; and classes made without their base's hook."""

from __future__ import annotations

import functools
import sys
import types
import typing
from typing import Any

from cloudpickle import cloudpickle as engine

from lakeshore.functions.reference import by_reference, is_installed


def lru_cache(cached: Any) -> Any:
    """Reduce a caching wrapper to its function and settings; the cache itself stays."""
    if by_reference(cached) is not None:
        return cached.__qualname__
    inner, options = cached.__wrapped__, cached.cache_parameters()
    arguments = (inner, options["maxsize"], options["typed"], functools._CacheInfo)
    return type(cached), arguments, dict(vars(cached))


def named_type(value: Any) -> Any:
    """Reduce a NewType, ParamSpec or TypeVarTuple that no installed module has."""
    module = sys.modules.get(value.__module__)
    if module is not None and is_installed(module):
        return value.__name__
    more = (value.__supertype__,) if type(value) is typing.NewType else ()
    return type(value), (value.__name__, *more)


def type_alias(value: Any) -> Any:
    """Reduce a ``type`` statement's alias (Python 3.12) that no installed module has."""
    module = sys.modules.get(value.__module__)
    if module is not None and is_installed(module):
        return value.__name__
    kind: Any = type(value)
    make = functools.partial(kind, type_params=value.__type_params__)
    return make, (value.__name__, value.__value__)


def weak_dictionary(value: Any) -> Any:
    """Reduce a weak dictionary to what it holds now."""
    return type(value), (dict(value),)


def cached_property(value: functools.cached_property[Any]) -> Any:
    """Reduce a cached property without the lock that Python 3.11 gives it."""
    state = {name: item for name, item in vars(value).items() if name not in ("func", "lock")}
    return functools.cached_property, (value.func,), state


def hook_owner(bases: tuple[Any, ...]) -> Any:
    """Return the class whose `__init_subclass__` a subclass of `bases` would run, or None."""
    for base in types.resolve_bases(bases):
        for owner in base.__mro__[:-1]:
            if "__init_subclass__" in vars(owner):
                return owner
    return None


def graft(meta: Any, name: str, bases: tuple[Any, ...], kwargs: dict[str, Any]) -> type:
    """Make the class under a bare base, and only then give it its own: no hook runs.

    Raises
    ------
    TypeError
        When no bare base has the layout in memory that the own ones have.
    """
    own = types.resolve_bases(bases)
    error: TypeError | None = None
    for root in _bare_roots(own):
        stem = types.new_class("Stem", (root,))
        made = types.new_class(name, (stem,), {"metaclass": meta}, lambda space: space.update(kwargs))
        try:
            made.__bases__ = own
        except TypeError as mismatch:
            error = mismatch
        else:
            return made
    assert error is not None
    raise error


def _bare_roots(bases: tuple[Any, ...]) -> dict[type, None]:
    """Return `object` and the bases' bases that run no hook of a user's."""
    above = (owner for base in bases for owner in base.__mro__[1:-1])
    return dict.fromkeys([object, *(each for each in above if _hookless(each))])


def _hookless(cls: type) -> bool:
    return not any(
        "__init_subclass__" in vars(each) for each in cls.__mro__[:-1] if each is not typing.Generic
    )


def set_enum_state(cls: Any, state: tuple[Any, Any, dict[str, dict[str, Any]]]) -> Any:
    """Give an enum made anew its attributes, and its members what they hold."""
    attributes, slot_state, members = state
    engine._class_setstate(cls, (attributes, slot_state))
    for name, own in members.items():
        vars(cls.__members__[name]).update(own)
    return cls
