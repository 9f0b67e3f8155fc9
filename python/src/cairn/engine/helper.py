"""A second thread for large copies: one core does not fill the memory's bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# Smaller ones are copied by one thread in a quarter of a millisecond: to have another begin takes a fifth of that.
SHARED_BYTES = 2 << 20


class Helper:
    """Safe from several threads; those that copy at once have one helper between them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "cairn-copy")

    def share(self, copy: Callable[[range], None], parts: int, size_bytes: int) -> None:
        """Copies all parts, which are `size_bytes` together, as ranges of them. When this returns or raises nobody
        copies any more."""
        if parts < 2 or size_bytes < SHARED_BYTES:
            copy(range(parts))
            return
        helped = self._thread.submit(copy, range(parts // 2, parts))
        try:
            copy(range(parts // 2))
        finally:
            # One that has not begun is done here: the helper is busy with another's.
            if helped.cancel():
                copy(range(parts // 2, parts))
            else:
                helped.result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
