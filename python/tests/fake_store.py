"""A store for tests, without a server."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from cairn.engine.hints import NO_HINT, Hint
from cairn.engine.store import ReadRows, Row, Store, WriteRows
from cairn.errors import LeaseLost, NoCapacity
from server import PATIENCE_S


class FakeStore:
    """A server in a dictionary. Tests can make its calls fail."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.room = 64
        self.fails: Exception | None = None
        self.fails_commit: Exception | None = None
        self.hints: list[Hint] = []
        self.limits: list[float] = []  # of each read
        self.loses_leases = False
        self.gate = threading.Event()
        self.gate.set()
        self.released = 0

    def of(self, group: int) -> Store:
        return self

    def has(self, keys: Sequence[bytes]) -> int:
        self._answer()
        return next((at for at, key in enumerate(keys) if key not in self.held), len(keys))

    def read(self, keys: Sequence[bytes], limit_s: float = math.inf) -> ReadRows:
        self.limits.append(limit_s)
        self._answer()
        there = keys[: self.has(keys)]
        return FakeRows(self, [memoryview(bytearray(self.held[key])) for key in there])

    def write(self, count: int) -> WriteRows:
        self._answer()
        if count > self.room:
            raise NoCapacity(507, "no_capacity", "full")
        return FakeRows(self, [memoryview(bytearray(8)) for _ in range(count)])

    def _answer(self) -> None:
        self.gate.wait(PATIENCE_S)
        if self.fails is not None:
            raise self.fails


class FakeRows:
    def __init__(self, store: FakeStore, rows: list[Row]) -> None:
        self.rows = rows
        self._store = store

    def end(self) -> None:
        if self._store.loses_leases:
            raise LeaseLost("gone")

    def commit(self, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint = NO_HINT) -> int:
        self._store.hints.append(hint)
        error = self._store.fails or self._store.fails_commit
        if error is not None:
            raise error
        new = [key for key in keys if key not in self._store.held]
        self._store.held.update({key: bytes(row) for key, row in zip(keys, self.rows, strict=True) if key in new})
        return len(new)

    def release(self) -> None:
        self._store.released += 1
