"""CairnAdapter below LMCache's own storage manager: stores, restarts, loads and compares. Run it with the
environment's Python."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
import unittest
from typing import Any

import numpy
import torch
from lmcache.v1.check.check_mode_test_l2_adapter import run_test_mode
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.distributed.storage_manager import StorageManager

from cairn import Client
from server import PATIENCE_S, Server

LAYOUT = MemoryLayoutDesc([torch.Size([2, 4, 16, 32])], [torch.float16])
OBJECT_BYTES = 2 * 4 * 16 * 32 * 2


def keys(request: int, count: int, model: str = "tiny", salt: str = "") -> list[ObjectKey]:
    return [ObjectKey(bytes([request, number]) * 16, model, 7, 0, salt) for number in range(count)]


def content(key: ObjectKey) -> Any:
    seed = list(f"{key}".encode())
    return numpy.random.default_rng(seed).integers(0, 256, OBJECT_BYTES, numpy.uint8)


def plugin(url: str) -> dict[str, Any]:
    sizes = {"cairn.pinned_bytes": 64 * OBJECT_BYTES, "cairn.disk_bytes": 64 * OBJECT_BYTES}
    return {
        "module_path": "cairn.lmcache",
        "class_name": "CairnAdapter",
        "adapter_params": {"cairn.url": url, **sizes},
    }


class Lmcache:
    """LMCache's server, without engines."""

    def __init__(self, url: str) -> None:
        memory = L1MemoryManagerConfig(4 << 20, use_lazy=False, shm_name="")
        self.manager = StorageManager(
            StorageManagerConfig(
                L1ManagerConfig(memory),
                EvictionConfig("LRU"),
                L2AdaptersConfig([PluginL2AdapterConfig.from_dict(plugin(url))]),
            )
        )
        ((_, self.adapter),) = self.manager.l2_adapters()

    def store(self, wanted: list[ObjectKey]) -> None:
        for key, one in self.manager.reserve_write(wanted, LAYOUT).items():
            numpy.frombuffer(one.byte_array, numpy.uint8)[:] = content(key)
        self.manager.finish_write(wanted)

    def load(self, wanted: list[ObjectKey]) -> list[Any]:
        """The objects of the prefix that LMCache finds and loads."""
        group = GroupedObjectKeys(wanted, 0, LAYOUT)
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec([group]))
        deadline = time.monotonic() + PATIENCE_S
        while (result := self.manager.query_prefetch_status(handle)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        prefix = wanted[: result.hit_cells[0].count_leading_ones()]
        if not prefix:
            return []
        with self.manager.read_prefetched_results(prefix) as objects:
            assert objects is not None
            there = [numpy.frombuffer(one.byte_array, numpy.uint8).copy() for one in objects]
        self.manager.finish_read_prefetched(prefix)
        return there

    def forget(self) -> None:
        """The objects in LMCache's own memory."""
        self.manager.clear(force=True)

    def close(self) -> None:
        self.manager.close()


class LmcacheAdapter(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)

    def lmcache(self) -> Lmcache:
        lmcache = Lmcache(self.server.unix)
        self.addCleanup(lmcache.close)
        return lmcache

    def is_loaded(self, objects: list[Any], wanted: list[ObjectKey]) -> None:
        self.assertEqual(len(objects), len(wanted))
        for one, key in zip(objects, wanted, strict=True):
            self.assertTrue((one == content(key)).all())

    def nothing_is_held(self, lmcache: Lmcache) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with Client(self.server.unix) as client:
            while client.metrics().count("cairn_leased_blocks{") == 0 or any(
                not line.endswith(" 0")
                for line in client.metrics().splitlines()
                if line.startswith("cairn_leases{")
            ):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
        self.assertEqual(lmcache.adapter.report_status()["held_objects"], 0)

    def test_a_server_loads_what_another_stored_also_after_a_restart(self) -> None:
        first = self.lmcache()
        first.store(keys(1, 6))
        self.server.until_stored(6, "pinned")
        first.forget()
        self.is_loaded(first.load(keys(1, 6)), keys(1, 6))
        self.nothing_is_held(first)

        second = self.lmcache()
        self.is_loaded(second.load(keys(1, 9)), keys(1, 6))
        self.server.until_stored(6, "disk")
        self.server.kill()
        self.server.start()
        third = self.lmcache()
        self.is_loaded(third.load(keys(1, 6)), keys(1, 6))
        self.nothing_is_held(third)

    def test_salts_and_models_share_nothing(self) -> None:
        lmcache = self.lmcache()
        lmcache.store(keys(1, 3))
        self.server.until_stored(3, "pinned")
        self.assertEqual(lmcache.load(keys(1, 3, salt="other")), [])
        self.assertEqual(lmcache.load(keys(1, 3, model="other")), [])

    def test_a_lost_server_is_a_miss_and_is_found_again(self) -> None:
        lmcache = self.lmcache()
        lmcache.store(keys(1, 4))
        self.server.until_stored(4, "disk")
        lmcache.forget()
        self.server.kill()
        self.assertEqual(lmcache.load(keys(1, 4)), [])
        self.assertFalse(lmcache.adapter.report_status()["is_healthy"])
        lmcache.store(keys(2, 2))
        self.server.start()
        deadline = time.monotonic() + PATIENCE_S
        while not (objects := lmcache.load(keys(1, 4))):
            self.assertLess(time.monotonic(), deadline)
        self.is_loaded(objects, keys(1, 4))
        self.assertTrue(lmcache.adapter.report_status()["is_healthy"])

    def test_looked_up_objects_stay_until_unlocked(self) -> None:
        lmcache = self.lmcache()
        lmcache.store(keys(1, 4))
        self.server.until_stored(4, "disk")
        adapter = lmcache.adapter
        task = adapter.submit_lookup_and_lock_task(keys(1, 5), {0: LAYOUT})
        deadline = time.monotonic() + PATIENCE_S
        while (found := adapter.query_lookup_and_lock_result(task)) is None:
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(found.get_indices_list(), [0, 1, 2, 3])
        with Client(self.server.unix) as client:
            (cache,) = client.caches()
            self.assertEqual(client.clear(cache.name).leased, 4)
        adapter.submit_unlock(keys(1, 5))
        self.nothing_is_held(lmcache)

    def test_deleted_objects_are_gone(self) -> None:
        lmcache = self.lmcache()
        lmcache.store(keys(1, 4))
        self.server.until_stored(4, "disk")
        lmcache.forget()
        lmcache.adapter.delete(keys(1, 4)[2:])
        self.is_loaded(lmcache.load(keys(1, 4)), keys(1, 2))

    def test_lmcaches_own_check_of_adapters(self) -> None:
        adapter = {"type": "plugin", **plugin(self.server.unix)}
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            asyncio.run(run_test_mode("tiny", l2_adapter=[json.dumps(adapter)], num_keys=5))
        text = said.getvalue()
        for line in (
            "5/5 correctly absent",
            "Batch store OK",
            "Validation: 5/5 found",
            "(loaded): 5/5",
            "(content): 5/5",
        ):
            self.assertIn(line, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
