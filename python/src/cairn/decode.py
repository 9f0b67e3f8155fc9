"""JSON to dataclasses and back, by their fields: names are the contract's, keys are bytes here and hex there.

Fields that an answer has and the class has not are left out, so that a newer server can be asked; a field that
is missing takes its default, and is a BadAnswer where there is none.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from cairn.errors import BadAnswer

T = TypeVar("T")


def decode(kind: type[T], value: object, at: str = "the answer") -> T:
    """`value`, as JSON has it, as a `kind`."""
    decoded: T = _decode(kind, value, at)
    return decoded


def encode(value: object) -> Any:
    """A dataclass, or lists and dicts of them, as JSON; what is None is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: encode(member) for name, member in pairs if member is not None}
    if isinstance(value, dict):
        return {name: encode(member) for name, member in value.items() if member is not None}
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [encode(member) for member in value]
    return value


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            f.name,
            hints[f.name],
            f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING,
        )
        for f in dataclasses.fields(kind)
    )


def _decode(kind: Any, value: Any, at: str) -> Any:
    if type(value) is kind or kind is Any or kind is object:
        return value
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        return _decode(next(member for member in get_args(kind) if member is not type(None)), value, at)
    if origin in (list, Sequence) and isinstance(value, list):
        (member,) = get_args(kind)
        return [_decode(member, item, at) for item in value]
    if origin is dict and isinstance(value, dict):
        member = get_args(kind)[1]
        return {name: _decode(member, item, f"{at}.{name}") for name, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _decode_object(kind, value, at)
    if kind is bytes and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise BadAnswer(f"{at} is no hex: {value[:80]!r}") from None
    if kind is float and isinstance(value, int):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise BadAnswer(f"{at} is {str(value)[:80]!r}, not {getattr(kind, '__name__', kind)}")


def _decode_object(kind: Any, value: dict[str, Any], at: str) -> Any:
    given: dict[str, Any] = {}
    for name, hint, has_default in _fields(kind):
        if name in value:
            given[name] = _decode(hint, value[name], f"{at}.{name}")
        elif not has_default:
            raise BadAnswer(f"{at} has no {name}")
    return kind(**given)
