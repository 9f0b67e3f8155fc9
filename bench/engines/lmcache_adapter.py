"""Compares storing and loading LMCache's objects through the adapter, called like LMCache's controllers call it,
with one thread's memcpy of as many bytes into the same objects. Both alternate; the median of the ratios counts.
Run it with the environment's Python.

Prints a JSON line for each object size and direction. A native adapter would be worth its code if the Python one
cost more than a tenth.
"""

from __future__ import annotations

import ctypes
import json
import select
from collections.abc import Callable
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.platform import consume_fd
from pairs import Pairs

from cairn.lmcache import CairnAdapter
from server import Server

# A prompt of 2,000 tokens of a model with 128 KiB a token. LMCache's chunks of 256 tokens then have 32 MiB.
LOAD_BYTES = 256 << 20
OBJECT_BYTES = (1 << 20, 4 << 20, 32 << 20)
ROUNDS = 9
DEADLINE_S = 60


def main() -> None:
    torch.set_num_threads(1)
    memory = L1MemoryManagerConfig(LOAD_BYTES + (64 << 20), use_lazy=False, shm_name="")
    for object_bytes in OBJECT_BYTES:
        manager = StorageManager(
            StorageManagerConfig(L1ManagerConfig(memory), EvictionConfig("LRU"), L2AdaptersConfig([]))
        )
        server = Server()
        try:
            for line in measure(server, manager, object_bytes):
                print(json.dumps(line), flush=True)
        finally:
            server.close()
            manager.close()


def measure(server: Server, manager: Any, object_bytes: int) -> list[dict[str, object]]:
    count = LOAD_BYTES // object_bytes
    # Room for all objects twice: a round stores existing objects, which are copied again and then dropped.
    adapter = CairnAdapter({"cairn.url": server.unix, "cairn.pinned_bytes": 2 * LOAD_BYTES})
    keys = [ObjectKey(number.to_bytes(32, "big"), "tiny", 7, 0, "") for number in range(count)]
    layout = MemoryLayoutDesc([torch.Size([object_bytes])], [torch.uint8])
    reserved = manager.reserve_write(keys, layout)
    objects = [reserved[key] for key in keys]
    mine = torch.ones(LOAD_BYTES, dtype=torch.uint8)
    addresses = [address_of(one) for one in objects]

    def out() -> None:
        for at, address in enumerate(addresses):
            ctypes.memmove(mine.data_ptr() + at * object_bytes, address, object_bytes)

    def into() -> None:
        for at, address in enumerate(addresses):
            ctypes.memmove(address, mine.data_ptr() + at * object_bytes, object_bytes)

    def store() -> None:
        adapter.submit_store_task(keys, objects)
        (result,) = until(adapter.get_store_event_fd(), lambda: adapter.pop_completed_store_tasks() or None).values()
        assert result.is_successful()

    def load() -> None:
        number = adapter.submit_load_task(keys, objects)
        came = until(adapter.get_load_event_fd(), lambda: adapter.query_load_result(number))
        assert came.popcount() == count

    lines: list[dict[str, object]] = []
    for what, act, yardstick in (("store", store, out), ("load", load, into)):
        figures = Pairs(act, yardstick, ROUNDS).figures(what, LOAD_BYTES)
        lines.append({"what": f"lmcache {what}", "object_bytes": object_bytes, **figures, "target": 0.9})
    adapter.close()
    return lines


def address_of(one: Any) -> int:
    return int(one.tensor.data_ptr())


def until(event: int, result: Callable[[], Any]) -> Any:
    """Waits the way LMCache's controllers do."""
    poll = select.poll()
    poll.register(event, select.POLLIN)
    while (done := result()) is None:
        assert poll.poll(DEADLINE_S * 1000), "a task does not end"
        consume_fd(event)
    return done


if __name__ == "__main__":
    main()
