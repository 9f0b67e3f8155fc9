"""A second thread for large copies: one core does not use the memory's whole bandwidth."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cairn._forks import in_each_child

# One thread copies less than this in a quarter of a millisecond. Starting a second one takes a fifth of that.
SHARED_BYTES = 2 << 20


class CopyHelper:
    """Safe from several threads. Simultaneous copies share one helper thread."""

    def __init__(self) -> None:
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._native_id: int | None = None
        self._thread = ThreadPoolExecutor(1, "cairn-copy", self._begun)

    def share(self, copy: Callable[[int], None], parts: int, size_bytes: int) -> None:
        """Calls `copy(part)` for each part, on this thread and the helper; the parts have `size_bytes` together.
        No copy runs any more when this returns or raises. Each thread takes the next part when it is done with
        one, because busy processes of the engine may leave the helper only half a core."""
        left, taking = iter(range(parts)), threading.Lock()

        def some() -> None:
            while True:
                with taking:
                    part = next(left, None)
                if part is None:
                    return
                copy(part)

        if parts < 2 or size_bytes < SHARED_BYTES:
            some()
            return
        if self._native_id is not None:
            _move_off_this_core(self._native_id)
        helped = self._thread.submit(some)
        try:
            some()
        finally:
            # If the helper is busy with another copy it has not begun, and this thread did everything.
            if not helped.cancel():
                helped.result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _begun(self) -> None:
        self._native_id = threading.get_native_id()


def _move_off_this_core(thread: int) -> None:
    """Keeps a thread of this process off the caller's core. If an engine's processes wait in busy loops, no core
    is idle and the kernel wakes the helper on the caller's core, where the two would take turns."""
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or not permitted
        here = ctypes.CDLL(None).sched_getcpu()
        others = os.sched_getaffinity(0) - {here}
        if others:
            os.sched_setaffinity(thread, others)
