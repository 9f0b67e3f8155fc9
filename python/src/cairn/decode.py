"""Converts JSON to dataclasses and back, by field name. The names are the contract's; keys are bytes in Python and
hex in JSON.

Unknown fields of an answer are ignored, so that the client works with a newer server. A missing field takes its
default; without a default it raises BadAnswer.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from cairn.errors import BadAnswer

T = TypeVar("T")


def decode(kind: type[T], value: object, at: str = "the answer") -> T:
    """Converts a JSON `value` to a `kind`. `at` names the value in a BadAnswer."""
    decoded: T = _decoder(cast(Any, kind))(value, at)
    return decoded


def encode(value: object) -> Any:
    """Converts a dataclass, or lists and dicts of them, to JSON. Members that are None are left out."""
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


# Arguments: the value, and its place in the answer for an error message.
Decoder = Callable[[Any, str], Any]


@functools.cache  # an answer may have hundreds of blocks of the same type
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
    if origin is Literal:
        return functools.partial(_one_of, get_args(kind))
    if origin in (dict, Mapping):
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
    """Wraps `read` in a check that the JSON value is a `given`."""

    def checked(value: Any, at: str) -> Any:
        # In Python, True is an int.
        if not isinstance(value, given) or (isinstance(value, bool) and kind is not bool):
            raise BadAnswer(f"{at} is {str(value)[:80]!r}, not a {getattr(kind, '__name__', kind)}")
        return read(value, at)

    return checked


def _one_of(words: tuple[object, ...], value: Any, at: str) -> Any:
    if value not in words:
        raise BadAnswer(f"{at} is {str(value)[:80]!r}, not one of {', '.join(map(str, words))}")
    return value


def _unhex(value: str, at: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise BadAnswer(f"{at} is not hex: {value[:80]!r}") from None


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
