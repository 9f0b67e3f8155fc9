"""JSON to dataclasses and back, by their fields: names are the contract's, keys are bytes here and hex there.

Fields that an answer has and the class has not are left out, so that a newer server can be asked; a field that
is missing takes its default, and is a BadAnswer where there is none.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from cairn.errors import BadAnswer

T = TypeVar("T")


def decode(kind: type[T], value: object, at: str = "the answer") -> T:
    """`value`, as JSON has it, as a `kind`."""
    decoded: T = _decoder(cast(Any, kind))(value, at)
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


# What a value becomes, and where it stands for who gets the error.
Decoder = Callable[[Any, str], Any]


@functools.cache  # hundreds of blocks come with one answer: what their fields are is found out once
def _decoder(kind: Any) -> Decoder:
    origin = get_origin(kind)
    if kind is Any or kind is object:
        return lambda value, at: value
    if origin in (Union, types.UnionType):
        inner = _decoder(next(member for member in get_args(kind) if member is not type(None)))
        return lambda value, at: None if value is None else inner(value, at)
    if origin in (list, Sequence):
        member = _decoder(get_args(kind)[0])
        return _of(list, kind, lambda value, at: [member(item, at) for item in value])
    if origin is dict:
        member = _decoder(get_args(kind)[1])
        return _of(
            dict, kind, lambda value, at: {name: member(item, f"{at}.{name}") for name, item in value.items()}
        )
    if dataclasses.is_dataclass(kind):
        return _of(dict, kind, functools.partial(_decode_object, kind))
    if kind is bytes:
        return _of(str, kind, _unhex)
    if kind is float:
        return _of((float, int), kind, lambda value, at: float(value))
    return _of(kind, kind, lambda value, at: value)


def _of(given: Any, kind: Any, read: Decoder) -> Decoder:
    """`read`, of what JSON has as `given`."""

    def checked(value: Any, at: str) -> Any:
        # To Python True is a number.
        if not isinstance(value, given) or (isinstance(value, bool) and kind is not bool):
            raise BadAnswer(f"{at} is {str(value)[:80]!r}, not {getattr(kind, '__name__', kind)}")
        return read(value, at)

    return checked


def _unhex(value: str, at: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise BadAnswer(f"{at} is no hex: {value[:80]!r}") from None


def _decode_object(kind: Any, value: dict[str, Any], at: str) -> Any:
    given: dict[str, Any] = {}
    for name, decoder, has_default in _fields(kind):
        if name in value:
            given[name] = decoder(value[name], f"{at}.{name}")
        elif not has_default:
            raise BadAnswer(f"{at} has no {name}")
    return kind(**given)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Decoder, bool], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            f.name,
            _decoder(hints[f.name]),
            f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING,
        )
        for f in dataclasses.fields(kind)
    )
