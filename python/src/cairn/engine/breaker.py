"""Whether a server that did not answer is asked again yet."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cairn._forks import in_each_child

FIRST_PAUSE_S = 0.5
# A server that starts again is found by look-ups within this time, and by loads within as long again.
LONGEST_PAUSE_S = 2.0


class Breaker:
    """After a failure nobody asks for a while, twice as long after each; then one asks, and the answer decides.
    Safe from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._ask_at = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether the last that was asked got no answer."""
        with self._lock:
            return self._pause_s > 0.0

    def may_ask(self) -> bool:
        with self._lock:
            if self._pause_s == 0.0:
                return True
            now = self._clock()
            if now < self._ask_at:
                return False
            self._ask_at = now + self._pause_s  # the others wait for this one's answer
            return True

    def answered(self) -> bool:
        """True where it had not answered before."""
        with self._lock:
            was_silent, self._pause_s = self._pause_s > 0.0, 0.0
            return was_silent

    def silent(self) -> bool:
        """True where it had answered before."""
        with self._lock:
            first = self._pause_s == 0.0
            self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            self._ask_at = self._clock() + self._pause_s
            return first
