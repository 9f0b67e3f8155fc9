"""A second thread for large copies: one core does not fill the memory's bandwidth."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cairn._forks import in_each_child

# Smaller ones are copied by one thread in a quarter of a millisecond: to have another begin takes a fifth of that.
SHARED_BYTES = 2 << 20


class Helper:
    """Safe from several threads; those that copy at once have one helper between them."""

    def __init__(self) -> None:
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._native_id: int | None = None
        self._thread = ThreadPoolExecutor(1, "cairn-copy", self._begun)

    def share(self, copy: Callable[[int], None], parts: int, size_bytes: int) -> None:
        """Copies each of the parts, which are `size_bytes` together. When this returns or raises nobody copies any
        more. Each thread takes the next part when it is done with one: an engine's own processes, which wait in a
        loop, may leave the helper half a core."""
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
            _send_elsewhere(self._native_id)
        helped = self._thread.submit(some)
        try:
            some()
        finally:
            # It has not begun where it is busy with another's copy: then all is done here.
            if not helped.cancel():
                helped.result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _begun(self) -> None:
        self._native_id = threading.get_native_id()


def _send_elsewhere(thread: int) -> None:
    """Keeps a thread of this process off the core that the caller runs on. Where an engine's processes wait in
    loops no core is idle, and the kernel wakes the helper on its waker's: the two then copy in turn."""
    with contextlib.suppress(AttributeError, OSError):  # another system, or one that forbids it
        here = ctypes.CDLL(None).sched_getcpu()
        others = os.sched_getaffinity(0) - {here}
        if others:
            os.sched_setaffinity(thread, others)
