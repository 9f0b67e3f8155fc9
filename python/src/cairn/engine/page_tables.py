"""Fills this process's page tables for a mapped tier before the first load.

The server allocates a tier's pages when it makes the tier, but each process that maps them has its own page
tables. If the first loads filled these, a load would pay one page fault for each 64 to 128 KiB, a tenth of its
time.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable

from cairn.client import Client
from cairn.errors import CairnError
from cairn.model import TierInfo

# Since Linux 5.14; Python's mmap has no name for it. It changes no data.
MADV_POPULATE_READ = 22
# Each step holds the interpreter's lock, for about 0.2 ms.
STEP_BYTES = 4 << 20
PAUSE_S = 0.25
# The server allocates about 1 GB/s a thread.
PATIENCE_S = 300.0


def fill_ahead(client: Client, cache: str, memory: memoryview) -> None:
    """Fills the tables from a new thread, once the server has allocated all of the tier's pages. Until then the
    pages are left alone: the server must allocate them, as far as its memory allows."""

    def tier() -> TierInfo:
        return client.cache_info(cache).tiers["pinned"]

    threading.Thread(target=_fill, args=(tier, memory, PAUSE_S), name="cairn-pages", daemon=True).start()


def _fill(tier: Callable[[], TierInfo], memory: memoryview, pause_s: float) -> None:
    mapping = memory.obj
    assert isinstance(mapping, mmap.mmap)
    # If the server or kernel does not support this, or the cache is gone, pages are mapped when they are first
    # used.
    with contextlib.suppress(CairnError, KeyError, OSError, ValueError):
        if _is_whole(tier, pause_s):
            for at in range(0, len(memory), STEP_BYTES):
                mapping.madvise(MADV_POPULATE_READ, at, min(STEP_BYTES, len(memory) - at))


def _is_whole(tier: Callable[[], TierInfo], pause_s: float) -> bool:
    give_up = time.monotonic() + PATIENCE_S
    while (now := tier()).populated_bytes is not None:
        if now.populated_bytes >= now.reserved_bytes:
            return True
        if time.monotonic() > give_up:
            return False
        time.sleep(pause_s)
    return False
