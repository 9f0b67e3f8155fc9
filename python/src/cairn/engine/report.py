"""What a connector counts and says. Safe from several threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cairn._forks import in_each_child

# The same line is not said more often: a server that is gone fails every request.
SAID_AGAIN_AFTER_S = 10.0


# Of lines that begin differently. Over it all may be said again.
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
        self._said: dict[str, float] = {}

    def count(self, name: str, by: float = 1) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + by

    def take(self) -> dict[str, float]:
        """What was counted since the last time."""
        with self._lock:
            taken, self._counts = self._counts, {}
            return taken

    def note(self, text: str) -> None:
        self._log.info("Cairn: %s", text)

    def warn(self, text: str) -> None:
        if self._may_say(text):
            self._log.warning("Cairn: %s", text)

    def failed(self, where: str) -> None:
        """In an except clause: what no one expected."""
        if self._may_say(where):
            self._log.exception("Cairn: %s", where)

    def _may_say(self, text: str) -> bool:
        # By its beginning: what follows has numbers in it.
        kind, now = text[:40], self._clock()
        with self._lock:
            if now < self._said.get(kind, -SAID_AGAIN_AFTER_S) + SAID_AGAIN_AFTER_S:
                return False
            if len(self._said) >= MAX_KINDS:
                self._said.clear()
            self._said[kind] = now
            return True
