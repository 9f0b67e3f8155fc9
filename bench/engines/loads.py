"""Compares a load, from its look-up to its last byte, with one thread's memcpy of as many blocks of that size into
the same KV cache. Both alternate; the median of the ratios counts. Run it with the environment's Python.

Prints a JSON line for each block size.
"""

from __future__ import annotations

import ctypes
import json
import logging
import time

import torch
from cairn import CacheConfig, Client, Shape, TierConfig
from cairn.engine.access import Access
from cairn.engine.mover import Mover
from cairn.engine.plan import Load
from cairn.engine.report import Report
from cairn.engine.store import open_store
from cairn.engine.torch_pool import TorchPool

from pairs import Pairs

from server import Server

LAYERS = 8
# A prompt of 2,000 tokens of a model with 128 KiB a token.
LOAD_BYTES = 256 << 20
ROUNDS = 9
BLOCKS_A_SAVE = 4  # like one step of an engine


def main() -> None:
    torch.set_num_threads(1)
    server = Server()
    try:
        for block_bytes in (64 << 10, 256 << 10, 1 << 20, 2 << 20):
            print(json.dumps(measure(server, block_bytes)), flush=True)
    finally:
        server.close()


def measure(server: Server, block_bytes: int) -> dict[str, object]:
    count = LOAD_BYTES // block_bytes
    values = block_bytes // LAYERS // 2
    kv_cache = torch.randn(LAYERS, 2 * count, values).to(torch.bfloat16)
    pool = TorchPool(list(kv_cache), 2 * count)
    client, name = Client(server.unix), f"b{block_bytes}"
    config = CacheConfig(Shape(LAYERS, 1, 1, values, 2), {"pinned": TierConfig(2 * count)})
    report = Report(logging.getLogger("bench"))
    access = Access(lambda: open_store(client, name, config, 0, block_bytes, pool.adopt), report)
    access.open()
    mover = Mover(pool, access, report)
    keys = [number.to_bytes(32, "big") for number in range(count)]
    for begin in range(0, count, BLOCKS_A_SAVE):
        write = access.use(lambda store: store.write(BLOCKS_A_SAVE))
        pool.save(range(begin, begin + BLOCKS_A_SAVE), write.rows)
        write.commit(keys[begin : begin + BLOCKS_A_SAVE], [None] * BLOCKS_A_SAVE)

    # An engine's free blocks are not in order.
    blocks = [2 * count - 1 - at for at in range(0, count, 2)] + [count + at for at in range(0, count, 2)]
    mine = torch.ones(LOAD_BYTES, dtype=torch.uint8)

    def load() -> None:
        mover.load([Load("r", keys, blocks)])
        while not (done := mover.take_done()):
            time.sleep(0.001)  # a poll costs processor time too
        assert done[0][1] == set()

    def memcpy() -> None:
        for at in range(0, LOAD_BYTES, block_bytes):
            ctypes.memmove(kv_cache.data_ptr() + at, mine.data_ptr() + at, block_bytes)

    figures = Pairs(load, memcpy, ROUNDS).figures("load", LOAD_BYTES)
    mover.close()
    client.close()
    return {"block_bytes": block_bytes, **figures, "target": 0.8}


if __name__ == "__main__":
    main()
