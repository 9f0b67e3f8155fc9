"""llama-server's slots, each used by one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# The most requests that wait for a slot. Each holds its body.
MAX_WAITING = 1024


class TooManyWaiting(Exception):
    """More requests wait for a slot than may."""


@dataclass
class Slot:
    """One slot. `tokens` are those that it holds as far as is known."""

    id: int
    tokens: Sequence[int] = ()
    used_at: int = 0


@dataclass
class _Waiting:
    tokens: Sequence[int]
    given: asyncio.Future[Slot] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Slots:
    """Gives each slot to one request at a time, in the order in which they came: none waits for a later one. Of the
    free slots a request gets the one with its longest prefix, else the one that was not used for longest."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = {number: Slot(number) for number in range(count)}
        self._waiting: deque[_Waiting] = deque()
        self._uses = itertools.count(1)
        self._forgotten_at = 0

    async def take(self, tokens: Sequence[int]) -> Slot:
        """Waits for a slot. Raises TooManyWaiting."""
        if self._free and not self._waiting:
            return self._best(tokens)
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyWaiting
        waiting = _Waiting(tokens)
        self._waiting.append(waiting)
        try:
            return await waiting.given
        except asyncio.CancelledError:
            if waiting.given.done() and not waiting.given.cancelled():
                self.give_back(waiting.given.result())
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiting)
            raise

    def give_back(self, slot: Slot) -> None:
        if slot.used_at <= self._forgotten_at:
            slot.tokens = ()
        self._free[slot.id] = slot
        while self._waiting and self._free:
            waiting = self._waiting.popleft()
            if not waiting.given.done():
                waiting.given.set_result(self._best(waiting.tokens))

    def forget(self) -> None:
        """What the slots hold is not known any more."""
        self._forgotten_at = next(self._uses)
        for slot in self._free.values():
            slot.tokens = ()

    def _best(self, tokens: Sequence[int]) -> Slot:
        best = max(self._free.values(), key=lambda slot: (common(slot.tokens, tokens), -slot.used_at))
        best.used_at = next(self._uses)
        return self._free.pop(best.id)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs: Iterator[tuple[int, int]] = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
