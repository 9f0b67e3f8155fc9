"""One function for each call of the API: it makes a `Call`. `verb` turns such a function into a method of a
client."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from cairn.http import Call

P = ParamSpec("P")
T = TypeVar("T")


class Performs(Protocol):
    def perform(self, call: Call[T], /) -> T: ...


class PerformsLater(Protocol):
    def perform(self, call: Call[T], /) -> Awaitable[T]: ...


def verb(make: Callable[P, Call[T]]) -> Callable[Concatenate[Performs, P], T]:
    """A method of the blocking client that performs the call `make` returns, with the same parameters and
    docstring."""

    @functools.wraps(make)
    def method(self: Performs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.perform(make(*args, **kwargs))

    _show(method, make)
    return method


def async_verb(make: Callable[P, Call[T]]) -> Callable[Concatenate[PerformsLater, P], Awaitable[T]]:
    """Like `verb`, for the asyncio client."""

    @functools.wraps(make)
    async def method(self: PerformsLater, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.perform(make(*args, **kwargs))

    _show(method, make)
    return method


def _show(method: Any, make: Callable[..., object]) -> None:
    """Sets what help() and editors show: `self`, then the parameters of `make`."""
    signature = inspect.signature(make)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(parameters=[me, *signature.parameters.values()])
    method.__module__ = make.__module__
