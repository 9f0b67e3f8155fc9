"""Measures something and its yardstick alternately."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


class Pairs:
    """The times of a function and of its yardstick, which move the same number of bytes."""

    def __init__(self, measured: Callable[[], None], yardstick: Callable[[], None], rounds: int) -> None:
        measured()
        yardstick()
        self._pairs = [(_seconds(measured), _seconds(yardstick)) for _ in range(rounds)]

    def figures(self, name: str, size_bytes: int) -> dict[str, float]:
        """Returns medians, also of the ratios."""
        return {
            f"{name}_gb_s": self._gb_s(0, size_bytes),
            "memcpy_gb_s": self._gb_s(1, size_bytes),
            "ratio": self._ratio(0),
            # Other load on the machine changes the speed by the second, but the processor time much less.
            "ratio_by_processor_time": self._ratio(1),
        }

    def _gb_s(self, which: int, size_bytes: int) -> float:
        return round(size_bytes / statistics.median(pair[which][0] for pair in self._pairs) / 1e9, 2)

    def _ratio(self, kind: int) -> float:
        return round(statistics.median(yardstick[kind] / measured[kind] for measured, yardstick in self._pairs), 2)


def _seconds(act: Callable[[], None]) -> tuple[float, float]:
    """Returns wall-clock seconds and this process's processor seconds."""
    began, began_cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began, time.process_time() - began_cpu
