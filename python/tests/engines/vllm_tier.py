"""CairnTier below vLLM's own tiering manager, with its own memory: stores, restarts, loads and compares. Run it
with the environment's Python."""

from __future__ import annotations

import time
import unittest
import uuid
from typing import Any

import numpy
from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from cairn import Client
from server import PATIENCE_S, Server

CHUNK_BYTES = 64 << 10
CHUNKS = 6  # of the CPU tier, which is too small to hold a request below twice


def config(url: str, model: str = "tiny", groups: int = 1, **more: Any) -> OffloadingConfig:
    return OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(32, (f"layer.{number}",), number) for number in range(groups)),
        worker_kv_bytes_per_block=CHUNK_BYTES,
        enable_kv_cache_events=True,
        extra_config={
            "cpu_bytes_to_use": CHUNKS * CHUNK_BYTES,
            "secondary_tiers": [
                {
                    "type": "CairnTier",
                    "module_path": "cairn.vllm",
                    "enable_kv_events": True,
                    "cairn.url": url,
                    "cairn.pinned_bytes": 64 * CHUNK_BYTES,
                    "cairn.disk_bytes": 64 * CHUNK_BYTES,
                    **more,
                }
            ],
        },
        engine_id=uuid.uuid4().hex,
        model=OffloadingModelConfig(model, "bfloat16"),
        cache=OffloadingCacheConfig(32, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
    )


def keys(request: int, count: int, group: int = 0) -> list[Any]:
    return [make_offload_key(bytes([request, number]) * 16, group) for number in range(count)]


def content(key: bytes) -> Any:
    return numpy.random.default_rng(list(key)).integers(0, 256, CHUNK_BYTES, numpy.uint8)


class Manager:
    """The part of vLLM's scheduler that its manager sees."""

    def __init__(self, url: str, **more: Any) -> None:
        self.spec = TieringOffloadingSpec(config(url, **more))
        self.manager = self.spec.get_manager()
        self.memory = numpy.frombuffer(self.manager.primary_tier._mmap_region.mmap_obj, numpy.uint8)
        self.memory = self.memory.reshape(CHUNKS, CHUNK_BYTES)
        self.tier = self.manager.secondary_tiers[0]

    def step(self, *new: str) -> None:
        self.manager.on_schedule_end(ScheduleEndContext(new, ()))

    def settle(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.manager.has_pending_work():
            assert time.monotonic() < deadline, "jobs do not end"
            self.step()
            time.sleep(0.01)

    def store(self, name: str, request: list[Any], hints: KvHintsEnvelope | None = None) -> None:
        context = ReqContext(name, kv_hints=hints)
        self.manager.on_new_request(context)
        for number, key in enumerate(request):
            context.set_offload_key_position(key, (number + 1) * 32)
        prepared = self.manager.prepare_store(request, context)
        assert prepared is not None and prepared.keys_to_store == request
        for key, chunk in zip(request, prepared.store_spec.chunk_ids, strict=True):
            self.memory[chunk] = content(key)
        self.manager.complete_store(request, context)
        self.step(name)
        self.settle()
        self.manager.on_request_finished(context)
        self.step()

    def load(self, name: str, request: list[Any]) -> list[Any]:
        """The chunks of the prefix that the manager finds."""
        context = ReqContext(name)
        self.manager.on_new_request(context)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = []
            for key in request:
                found.append(self.manager.lookup(key, context))
                if found[-1] is LookupResult.MISS:
                    break
            self.step(name)
            if all(one in (LookupResult.HIT, LookupResult.MISS) for one in found):
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        prefix = request[: found.count(LookupResult.HIT)]
        chunks = []
        if prefix:
            spec = self.manager.prepare_load(prefix, context)
            chunks = [self.memory[chunk].copy() for chunk in spec.chunk_ids]
            self.manager.complete_load(prefix, context)
        self.manager.on_request_finished(context)
        self.step()
        return chunks

    def found(self, name: str, full: list[Any], window: list[Any]) -> list[Any]:
        """Which chunks of a request the manager finds, if it asks like vLLM's scheduler: for the full group's from
        the beginning on until one is missing, for the window's from the end on."""
        context = ReqContext(name)
        for group in (full, window):
            for number, key in enumerate(group):
                context.set_offload_key_position(key, (number + 1) * 32)
        self.manager.on_new_request(context)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            results = {}
            for key in full:
                results[key] = self.manager.lookup(key, context)
                if results[key] is LookupResult.MISS:
                    break
            for key in reversed(window):
                results[key] = self.manager.lookup(key, context)
            self.step(name)
            if all(one in (LookupResult.HIT, LookupResult.MISS) for one in results.values()):
                break
            assert time.monotonic() < deadline, results
            time.sleep(0.01)
        self.manager.on_request_finished(context)
        self.step()
        return [key for key, one in results.items() if one is LookupResult.HIT]

    def close(self) -> None:
        del self.memory
        self.manager.shutdown()


class VllmTiering(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)

    def manager(self, **more: Any) -> Manager:
        manager = Manager(self.server.unix, **more)
        self.addCleanup(manager.close)
        return manager

    def is_loaded(self, chunks: list[Any], request: list[Any]) -> None:
        self.assertEqual(len(chunks), len(request))
        for chunk, key in zip(chunks, request, strict=True):
            self.assertTrue((chunk == content(key)).all())

    def test_a_process_loads_what_another_stored_also_after_a_restart(self) -> None:
        first = self.manager()
        first.store("a", keys(1, 4))
        self.assertEqual([event.keys for event in first.tier.take_events()], [keys(1, 4)])
        first.store("b", keys(2, 5))  # replaces the earlier chunks
        self.is_loaded(first.load("c", keys(1, 4)), keys(1, 4))

        second = self.manager()
        self.is_loaded(second.load("d", keys(2, 6)), keys(2, 5))
        self.server.until_stored(9, "disk")
        self.server.kill()
        self.server.start()
        third = self.manager()
        self.is_loaded(third.load("e", keys(1, 5)), keys(1, 4))

    def test_a_window_is_found_before_a_long_new_part(self) -> None:
        full, window = keys(1, 40), keys(1, 40, group=1)
        first = self.manager(groups=2)
        first.store("a", [*full[:4], *window[2:4]])
        second = self.manager(groups=2)
        self.assertEqual(second.found("b", full, window), [*full[:4], window[3], window[2]])

    def test_a_pin_in_vllms_envelope_keeps_the_chunks_of_its_request(self) -> None:
        manager = self.manager()
        pin = KvHintAction("a", "pin", "1", {"ttl_ms": 600_000})
        manager.store("a", keys(1, 4), KvHintsEnvelope("1", "m", [pin]))
        manager.store("b", keys(2, 4))
        with Client(self.server.unix) as client:
            (cache,) = client.caches()
            deadline = time.monotonic() + PATIENCE_S
            while not (pins := client.pins(cache.name).pins):
                self.assertLess(time.monotonic(), deadline)
            self.assertEqual([one.blocks for one in pins], [4])
            # vLLM's metrics know the tier's counters.
            counted: dict[str, float] = {}
            while "vllm:cairn_actions_accepted" not in counted:
                self.assertLess(time.monotonic(), deadline)
                stats = manager.manager.get_stats()
                counted |= {} if stats is None else stats.reduce()
            known = TieringOffloadingSpec.build_metric_definitions(config(self.server.unix).extra_config)
            self.assertIn("vllm:cairn_actions_accepted", known)
            client.clear(cache.name)
            self.assertEqual(client.contains(cache.name, [*keys(1, 4), *keys(2, 4)]), "pppp....")

    def test_another_model_finds_nothing(self) -> None:
        self.manager().store("a", keys(1, 4))
        self.assertEqual(self.manager(model="other").load("b", keys(1, 4)), [])

    def test_a_lost_server_is_a_miss_and_is_found_again(self) -> None:
        manager = self.manager()
        manager.store("a", keys(1, 4))
        manager.store("b", keys(2, CHUNKS))
        self.server.until_stored(4 + CHUNKS, "disk")
        self.server.kill()
        self.assertEqual(manager.load("c", keys(1, 4)), [])
        manager.store("d", keys(3, 2))  # is not stored, and its memory does not stay pinned
        self.server.start()
        deadline = time.monotonic() + PATIENCE_S
        while not (chunks := manager.load("e", keys(1, 4))):
            self.assertLess(time.monotonic(), deadline)
        self.is_loaded(chunks, keys(1, 4))

    def test_a_load_does_not_wait_for_chunks_lost_after_the_look_up(self) -> None:
        manager = self.manager()
        manager.store("a", keys(1, 4))
        manager.store("b", keys(2, 5))
        context = ReqContext("c")
        manager.manager.on_new_request(context)
        wanted = keys(1, 4)
        while any(manager.tier.lookup(key, context) is LookupResult.RETRY for key in wanted):
            manager.step()
        with Client(self.server.unix) as client:
            (cache,) = client.caches()
            client.evict(cache.name, wanted[2:])
        manager.manager.on_request_finished(context)
        self.is_loaded(manager.load("c", wanted), wanted[:2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
