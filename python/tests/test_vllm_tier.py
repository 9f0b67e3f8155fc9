"""The tier's class, with stand-ins for vLLM's modules, against a real server."""

from __future__ import annotations

import dataclasses
import enum
import threading
import time
import unittest
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cairn.engine.options import Unsupported
from server import PATIENCE_S, ServerCase, eventually
from stand_ins import has_the_recorded_interface, stand_in

CHUNK = 4096


class Result(enum.Enum):
    MISS = 0
    HIT = 1
    RETRY = 2


class Context:
    """A request's context, which keeps a tier's state."""

    def __init__(self, name: str, params: Any = None, hints: Any = None) -> None:
        self.req_id = name
        self.kv_transfer_params, self.kv_hints = params, hints
        self._state: dict[type, Any] = {}
        self._offload_key_positions: dict[bytes, int] = {}

    def get_offload_key_position(self, key: bytes) -> int | None:
        return None

    def set_state(self, value: Any) -> None:
        self._state[type(value)] = value

    def get_state(self, kind: type) -> Any:
        return self._state.get(kind)


class Tier:
    def __init__(self, spec: Any, view: memoryview, tier_type: str, detector: Any) -> None:
        assert view.strides is not None
        self._primary_kv_view, self._bytes = view, view.strides[0]

    @property
    def block_size_bytes(self) -> int:
        return self._bytes


class Lookups:
    """Looks up at once."""

    def __init__(self, tier_type: str) -> None:
        self.missed: set[bytes] = set()

    def lookup(self, key: bytes, context: Context) -> bool | None:
        if key in self.missed:
            return False
        found: list[bool] = list(self.batch_lookup([key], context))  # type: ignore[attr-defined]
        return found[0]

    def mark_miss(self, keys: Sequence[bytes]) -> None:
        self.missed |= set(keys)

    def cleanup(self, request: str) -> None: ...

    def flush(self) -> None: ...

    def shutdown(self) -> None: ...


class Stats:
    def __init__(self) -> None:
        self.counted: dict[str, float] = {}

    def increase_counter(self, name: str, by: float) -> None:
        self.counted[name] = self.counted.get(name, 0) + by


class JobResult(SimpleNamespace):
    def __init__(self, job_id: int, success: bool, **more: Any) -> None:
        super().__init__(job_id=job_id, success=success, successful_keys=None, **more)


class Tiers(ServerCase):
    kind: Any

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        names = ("OffloadingEvent", "ReqContext", "RequestOffloadingContext", "ScheduleEndContext")
        modules: dict[str, Any] = {
            "vllm.v1.kv_offload.base": {
                **dict.fromkeys(names, object),
                "OffloadingCounterMetadata": lambda documentation: documentation,
                "OffloadingMetricMetadata": object,
                "OffloadingEvent": lambda keys, medium, **more: SimpleNamespace(keys=keys, medium=medium, **more),
                "Locality": SimpleNamespace(LOCAL="local"),
                "LookupResult": Result,
                "Medium": SimpleNamespace(STORAGE="storage"),
            },
            "vllm.distributed.kv_transfer.kv_connector.v1.metrics": {
                "KVConnectorStats": object,
                "KVConnectorPromMetrics": object,
            },
            "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics": {"OffloadingConnectorStats": Stats},
            "vllm.v1.kv_offload.tiering.async_lookup": {"AsyncLookupManager": Lookups},
            "vllm.v1.kv_offload.tiering.base": {
                "JobResult": JobResult,
                "SecondaryTierManager": Tier,
                "TransferJob": object,
            },
        }
        stand_in(cls, modules, "cairn.vllm.tier", "cairn.vllm.stats")
        import cairn.vllm

        cls.kind = cairn.vllm.CairnTier

    def tier(self, url: str | None = None, groups: int = 1, **more: Any) -> Any:
        self.memory = bytearray(8 * CHUNK)
        parallel = SimpleNamespace(is_parallelism_agnostic=True)
        config = SimpleNamespace(
            model=SimpleNamespace(name=self.name, dtype="bfloat16"),
            cache=_Cache(),
            groups=[
                SimpleNamespace(group_id=number, tokens_per_block=32, layer_names=(f"layer.{number}",))
                for number in range(groups)
            ],
            parallel=parallel,
            replicated_layout=False,
            canonical_layout=False,
        )
        spec = SimpleNamespace(config=config, kv_events_config=SimpleNamespace(enable_kv_cache_events=True))
        view = memoryview(self.memory).cast("B", (8, CHUNK))
        options = {"cairn.url": url or self.server.unix, "cairn.pinned_bytes": 16 * CHUNK, **more}
        tier = self.kind(spec, view, "cairn", enable_kv_events=True, **options)
        self.addCleanup(tier.shutdown)
        return tier

    def job(self, number: int, keys: Sequence[bytes], chunks: Sequence[int], of: Context | None = None) -> Any:
        return SimpleNamespace(job_id=number, keys=list(keys), chunk_ids=chunks, req_context=of or Context("r"))

    def ended(self, tier: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (results := tier.get_finished_jobs()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        (result,) = results
        return result

    def fill(self, chunk: int, value: int) -> None:
        self.memory[chunk * CHUNK : (chunk + 1) * CHUNK] = bytes([value]) * CHUNK

    def test_it_has_the_recorded_interface_of_vllm(self) -> None:
        has_the_recorded_interface(self, self.kind, "vllm.tier")

    def test_chunks_are_stored_and_loaded_into_other_chunks(self) -> None:
        tier, keys = self.tier(), [b"a" * 36, b"b" * 36]
        for chunk, value in ((5, 50), (2, 20)):
            self.fill(chunk, value)
        tier.submit_store(self.job(1, keys, [5, 2]))
        stored = self.ended(tier)
        self.assertEqual((stored.job_id, stored.success, stored.transfer_bytes), (1, True, 2 * CHUNK))
        (event,) = tier.take_events()
        self.assertEqual(
            (event.keys, event.medium, event.locality, event.removed), (keys, "storage", "local", False)
        )
        self.assertEqual(
            [tier.lookup(key, Context("r")) for key in (*keys, b"c" * 36)], [Result.HIT] * 2 + [Result.MISS]
        )
        tier.submit_load(self.job(2, keys, [0, 7]))
        self.assertTrue(self.ended(tier).success)
        self.assertEqual((self.memory[0], self.memory[7 * CHUNK]), (50, 20))

    def test_chunks_of_several_groups_share_a_cache(self) -> None:
        before = {cache.name for cache in self.client.caches()}
        tier = self.tier(groups=3)
        (cache,) = [cache for cache in self.client.caches() if cache.name not in before]
        self.assertEqual((cache.eviction, cache.kv_groups), ("lru", []))
        keys = [b"a" * 32 + group.to_bytes(4, "big") for group in range(3)]
        for chunk in range(3):
            self.fill(chunk, chunk + 10)
        tier.submit_store(self.job(1, [keys[2], keys[0]], [2, 0]))
        self.assertTrue(self.ended(tier).success)
        found = [tier.lookup(key, Context("r")) for key in keys]
        self.assertEqual(found, [Result.HIT, Result.MISS, Result.HIT])
        tier.submit_load(self.job(2, keys, [5, 6, 7]))
        self.assertEqual(self.ended(tier).successful_keys, [keys[0], keys[2]])
        self.assertEqual((self.memory[5 * CHUNK], self.memory[7 * CHUNK]), (10, 12))

    def test_missing_chunks_are_named_and_not_found_again(self) -> None:
        tier, keys = self.tier(), [b"a" * 36, b"b" * 36]
        tier.submit_store(self.job(1, keys[:1], [0]))
        self.ended(tier)
        tier.submit_load(self.job(2, keys, [1, 2]))
        loaded = self.ended(tier)
        self.assertEqual((loaded.success, loaded.successful_keys, loaded.transfer_bytes), (False, keys[:1], CHUNK))
        self.assertEqual(tier.lookup(keys[1], Context("r")), Result.MISS)

    def test_every_job_fails_without_a_server(self) -> None:
        with self.assertLogs("vllm.cairn", "WARNING"):
            tier = self.tier("unix:/nowhere")
            tier.submit_store(self.job(1, [b"a" * 36], [0]))
            self.assertFalse(self.ended(tier).success)
            tier.submit_load(self.job(2, [b"a" * 36], [0]))
            self.assertEqual(self.ended(tier).successful_keys, [])
            self.assertEqual(tier.lookup(b"a" * 36, Context("r")), Result.MISS)

    def test_a_pin_of_a_request_keeps_all_its_chunks_in_their_order(self) -> None:
        before = {cache.name for cache in self.client.caches()}
        tier, keys = (
            self.tier(None, **{"cairn.pinned_bytes": 12 * CHUNK}),
            [bytes([number]) * 36 for number in range(5)],
        )
        (cache,) = {cache.name for cache in self.client.caches()} - before
        tier.submit_store(self.job(1, keys[:2], [0, 1]))  # of another request
        self.ended(tier)
        payload = {"ttl_ms": 600_000}
        action = SimpleNamespace(action_id="a", action_type="pin", action_version="1", payload=payload)
        hints = SimpleNamespace(protocol_version="1", message_id="m", actions=[action])
        context = Context("r", hints=hints)
        tier.on_new_request(context)
        # vLLM records the chunks that the tiers above have, too, and in any order.
        for number in (2, 3, 4, 0, 1):
            context._offload_key_positions[keys[number]] = (number + 1) * 32
        goes_on, put = threading.Event(), tier._blocks.put

        def later(*args: Any) -> Any:
            goes_on.wait(PATIENCE_S)
            return put(*args)

        with mock.patch.object(tier._blocks, "put", later):
            tier.submit_store(self.job(2, keys[2:], [2, 3, 4], context))
        tier.on_request_finished(context)
        # Stores may end after the request.
        self.assertEqual(self.client.pins(cache).pins, [])
        goes_on.set()
        eventually(lambda: len(self.client.pins(cache).pins) == 1)
        self.ended(tier)
        # A quarter of 12 chunks: of five, the first three.
        self.assertEqual(self.client.pins(cache).pins[0].blocks, 3)
        self.client.evict(cache, keys)
        self.assertEqual(self.client.contains(cache, keys), "ppp..")

    def test_actions_with_a_target_are_sent_when_the_request_arrives(self) -> None:
        before = {cache.name for cache in self.client.caches()}
        tier, key = self.tier(), b"a" * 36
        (cache,) = {cache.name for cache in self.client.caches()} - before
        tier.submit_store(self.job(1, [key], [0]))
        self.ended(tier)
        pin = {"type": "pin", "target": {"keys": [key.hex()]}}
        tier.on_new_request(Context("r", {"cairn": {"actions": [pin]}}))
        eventually(lambda: [pin.blocks for pin in self.client.pins(cache).pins] == [1])

    def test_wrong_actions_do_not_prevent_a_request(self) -> None:
        tier = self.tier()
        with self.assertLogs("vllm.cairn", "WARNING"):
            tier.on_new_request(Context("r", {"actions": 5}))
            tier.on_new_request(object())
        tier.on_request_finished(Context("r"))
        self.assertEqual(tier.get_stats().counted, {"vllm:cairn_actions_failed": 1})
        self.assertEqual(tier.get_stats().counted, {})
        # vLLM refuses the others.
        definitions = self.kind.build_metric_definitions({})
        self.assertIn("vllm:cairn_actions_failed", definitions)
        self.assertTrue(all(isinstance(text, str) and text for text in definitions.values()))

    def test_a_drained_tier_has_no_running_job(self) -> None:
        tier = self.tier()
        for number in range(8):
            tier.submit_store(self.job(number, [bytes([number]) * 36], [number]))
        tier.drain_jobs()
        self.assertEqual(sorted(result.job_id for result in tier.get_finished_jobs()), list(range(8)))

    def test_an_unknown_option_and_a_too_small_size_are_refused(self) -> None:
        with self.assertRaisesRegex(Unsupported, "cairn.colour"):
            self.tier(None, **{"cairn.colour": "red"})
        with self.assertRaisesRegex(Unsupported, "cairn.pinned_bytes=5"):
            self.tier(None, **{"cairn.pinned_bytes": 5})


@dataclasses.dataclass
class _Cache:
    tokens_per_hash: int = 32
    blocks_per_chunk: int = 1


if __name__ == "__main__":
    unittest.main()
