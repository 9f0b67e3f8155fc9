"""A connector's counters and log lines. Safe from several threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cairn._forks import in_each_child

T = TypeVar("T")

# A line is repeated at most this often: while a server is gone, every request fails.
REPEAT_AFTER_S = 10.0
# The most different lines remembered. Beyond it all are forgotten and may be logged again.
MAX_KINDS = 256


class Report:
    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._logged_at: dict[str, float] = {}

    def count(self, name: str, by: float = 1) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + by

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        with self._lock:
            taken, self._counts = self._counts, {}
            return taken

    def loaded(self, *, blocks: int, failed_blocks: int, block_bytes: int, seconds: float) -> None:
        self.count("loaded_blocks", blocks)
        self.count("loaded_bytes", blocks * block_bytes)
        self.count("load_seconds", seconds)
        self.count("load_failed_blocks", failed_blocks)

    def saved(self, *, blocks: int, duplicate_blocks: int, block_bytes: int) -> None:
        self.count("saved_blocks", blocks)
        self.count("saved_bytes", blocks * block_bytes)
        self.count("saves_duplicate_blocks", duplicate_blocks)

    def info(self, text: str) -> None:
        self._log.info("Cairn: %s", text)

    def warn(self, text: str) -> None:
        if self._may_log(text):
            self._log.warning("Cairn: %s", text)

    def failed(self, where: str) -> None:
        """In an except clause: logs an unexpected exception."""
        if self._may_log(where):
            self._log.exception("Cairn: %s", where)

    def guard(self, where: str, fallback: T, act: Callable[[], T]) -> T:
        """Returns what `act` returns. If it raises, logs the exception and returns `fallback`."""
        try:
            return act()
        except Exception:
            self.failed(where)
            return fallback

    def _may_log(self, text: str) -> bool:
        # Compares only the beginning, because the rest contains numbers.
        kind, now = text[:40], self._clock()
        with self._lock:
            if now < self._logged_at.get(kind, -REPEAT_AFTER_S) + REPEAT_AFTER_S:
                return False
            if len(self._logged_at) >= MAX_KINDS:
                self._logged_at.clear()
            self._logged_at[kind] = now
            return True
