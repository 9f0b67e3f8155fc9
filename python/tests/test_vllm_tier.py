"""The tier's class, with stand-ins for vLLM's modules, against a real server."""

from __future__ import annotations

import dataclasses
import enum
import time
import unittest
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cairn.engine.options import Unsupported
from server import PATIENCE_S, ServerCase
from stand_ins import has_the_recorded_interface, stand_in

CHUNK = 4096


class Result(enum.Enum):
    MISS = 0
    HIT = 1
    RETRY = 2


class Context:
    """A request's context, which keeps a tier's state."""

    def __init__(self, name: str) -> None:
        self.req_id = name
        self._state: dict[type, Any] = {}

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
                "OffloadingEvent": lambda keys, medium, **more: SimpleNamespace(keys=keys, medium=medium, **more),
                "Locality": SimpleNamespace(LOCAL="local"),
                "LookupResult": Result,
                "Medium": SimpleNamespace(STORAGE="storage"),
            },
            "vllm.v1.kv_offload.tiering.async_lookup": {"AsyncLookupManager": Lookups},
            "vllm.v1.kv_offload.tiering.base": {
                "JobResult": JobResult,
                "SecondaryTierManager": Tier,
                "TransferJob": object,
            },
        }
        stand_in(cls, modules, "cairn.vllm.tier")
        import cairn.vllm

        cls.kind = cairn.vllm.CairnTier

    def tier(self, url: str | None = None, **more: Any) -> Any:
        self.memory = bytearray(8 * CHUNK)
        parallel = SimpleNamespace(is_parallelism_agnostic=True)
        config = SimpleNamespace(
            model=SimpleNamespace(name=self.name, dtype="bfloat16"),
            cache=_Cache(),
            groups=[],
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

    def job(self, number: int, keys: Sequence[bytes], chunks: Sequence[int]) -> Any:
        return SimpleNamespace(job_id=number, keys=list(keys), chunk_ids=chunks, req_context=Context("r"))

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
