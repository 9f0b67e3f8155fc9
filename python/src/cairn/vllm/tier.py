"""Cairn below vLLM's own tiers: vLLM's CPU tier spills blocks to Cairn and loads them from it.

vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
  "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240,
  "secondary_tiers": [{"type": "CairnTier", "module_path": "cairn.vllm", "cairn.url": "unix:/run/cairn/socket"}]}}'

A block is what vLLM calls a chunk: the bytes of all its workers, under vLLM's own key. Processes share keys as
long as they do not set different values of PYTHONHASHSEED. In models with several KV cache groups, a key names the
group too, and chunks of all groups have one size. vLLM does not tell a tier which groups are windows or states.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingMetricMetadata,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from cairn.engine.access import TIMEOUT_S, open_access
from cairn.engine.actions import RequestActions, wishes_of
from cairn.engine.buffer_store import BufferStore, Pieces
from cairn.engine.jobs import Jobs
from cairn.engine.keys import Identity, Rank
from cairn.engine.options import Options, flat_shape
from cairn.engine.report import Report
from cairn.vllm.chunk_lookup import GROUP_BYTES, existing_chunks, group_of
from cairn.vllm.stats import COUNTERS

# Those of the connector's counters that a tier has, by their names in vLLM's metrics. vLLM itself counts the rest.
METRICS = {
    f"vllm:cairn_{name}": name
    for name in COUNTERS
    if name.startswith(("actions_", "load_failed_", "saved_", "saves_"))
}
# For loads and for stores each, so that loads never wait behind stores.
THREADS = 2
# The most unfinished stores. Beyond it chunks are not stored: they pin vLLM's memory, and the server is too slow.
MAX_PENDING_STORES = 64


@dataclass
class _Stored:
    """The stored keys of a request, and the last one in each group: the parent of the next key."""

    keys: list[bytes] = field(default_factory=list)
    last: dict[bytes, bytes] = field(default_factory=dict)


class _Lookups(AsyncLookupManager):  # type: ignore[misc]
    def __init__(self, tier_type: str, blocks: BufferStore, config: Any) -> None:
        """config: vLLM's `OffloadingConfig`."""
        self._blocks = blocks
        per_chunk = config.cache.blocks_per_chunk
        self._chunk_tokens = {
            group.group_id.to_bytes(GROUP_BYTES, "big"): group.tokens_per_block * per_chunk
            for group in config.groups
        }
        super().__init__(tier_type)

    def batch_lookup(self, keys: Sequence[bytes], req_context: ReqContext) -> Iterable[bool]:
        if len(self._chunk_tokens) <= 1:
            return self._blocks.each(keys)
        return existing_chunks(keys, req_context.get_offload_key_position, self._chunk_tokens, self._blocks.prefix)


class CairnTier(SecondaryTierManager):  # type: ignore[misc]
    """Used by vLLM's scheduler thread only. After the start no failure of the server raises an exception."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        enable_kv_events: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality.LOCAL
        given = Options.of(options, "the tier")
        self._report = report = Report(logging.getLogger("vllm.cairn"))
        name = given.cache or _identity(offloading_spec.config, self.block_size_bytes).cache_name(Rank())
        self._client = given.client(TIMEOUT_S)
        config = given.cache_config(flat_shape(self.block_size_bytes))
        if config is not None and _has_groups(offloading_spec.config):
            config = replace(config, eviction="lru")
        access = open_access(self._client, name, config, self.block_size_bytes, report)
        self._blocks = BufferStore(access, self.block_size_bytes, report)
        self._actions = RequestActions(self._client, [name], report)
        self._lookups = _Lookups(tier_type, self._blocks, offloading_spec.config)
        self._loads: Jobs[list[bool]] = Jobs("cairn-load", THREADS, report)
        self._stores: Jobs[bool] = Jobs("cairn-save", THREADS, report)
        self._jobs: dict[int, TransferJob] = {}
        self._pending_stores = 0
        publishes = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] | None = [] if publishes else None

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._jobs[job_metadata.job_id] = job_metadata
        keys = list(job_metadata.keys)
        store = functools.partial(
            self._blocks.put, keys, self._chunks(job_metadata), _parents(keys, job_metadata.req_context)
        )
        if self._pending_stores >= MAX_PENDING_STORES:
            self._report.count("saves_skipped_blocks", len(keys))
            self._report.warn("blocks are not saved: the server is slower than the engine")
            store = functools.partial(bool, False)
        self._pending_stores += 1
        self._stores.submit(job_metadata.job_id, store, False)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._jobs[job_metadata.job_id] = job_metadata
        keys = list(job_metadata.keys)
        load = functools.partial(self._blocks.get, keys, self._chunks(job_metadata))
        self._loads.submit(job_metadata.job_id, load, [False] * len(keys))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        for store in self._stores.take_done():
            job = self._jobs.pop(store.number)
            self._pending_stores -= 1
            if store.result and self._events is not None:
                event = OffloadingEvent(list(job.keys), self.medium, removed=False, locality=self.locality)
                self._events.append(event)
            results.append(self._result(store.number, store.result, store.seconds, len(job.keys)))
        for load in self._loads.take_done():
            job = self._jobs.pop(load.number)
            arrived = list(itertools.compress(job.keys, load.result))
            # Otherwise the scheduler would find and load them again without end.
            missing = [key for key, here in zip(job.keys, load.result, strict=True) if not here]
            self._lookups.mark_miss(missing)
            result = self._result(load.number, all(load.result), load.seconds, len(arrived))
            if not result.success:
                result.successful_keys = arrived
            results.append(result)
        return results

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events:
            events, self._events = self._events, []
            yield from events

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._report.guard("actions of a request are ignored", None, lambda: self._arrived(req_context))
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)
        stored = req_context.get_state(_Stored) or _Stored()
        self._actions.ended(req_context.req_id, _keys_of(req_context), stored.keys)

    def _arrived(self, context: ReqContext) -> None:
        wishes = wishes_of(context.req_id, context.kv_transfer_params, context.kv_hints, self._report)
        # Only vLLM can make keys of tokens, and does so after this.
        self._actions.arrived(context.req_id, wishes, None)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        return {metric: OffloadingCounterMetadata(f"{COUNTERS[name]}.") for metric, name in METRICS.items()}

    def get_stats(self) -> OffloadingConnectorStats | None:
        counts, stats = self._report.take(), OffloadingConnectorStats()
        for metric, name in METRICS.items():
            if counts.get(name):
                stats.increase_counter(metric, counts[name])
        return stats

    def drain_jobs(self) -> None:
        self._loads.drain()
        self._stores.drain()

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._actions.close()
        self._loads.close()
        self._stores.close()
        self._blocks.close()
        self._client.close()

    def _chunks(self, job: TransferJob) -> list[Pieces]:
        """The job's memory in the CPU tier, which vLLM pins until the job has ended."""
        # One piece each; a view of two dimensions cannot be sliced into rows.
        flat = self._primary_kv_view.cast("B")
        size = self.block_size_bytes
        return [[flat[int(chunk) * size : (int(chunk) + 1) * size]] for chunk in job.chunk_ids]

    def _result(self, number: int, success: bool, seconds: float, blocks: int) -> JobResult:
        return JobResult(
            number, success, transfer_time=seconds, transfer_bytes=blocks * self.block_size_bytes or None
        )


def _parents(keys: Sequence[bytes], context: ReqContext) -> list[bytes | None]:
    """Each key's predecessor in its group. It only affects the order of eviction."""
    stored = context.get_state(_Stored)
    if stored is None:
        context.set_state(stored := _Stored())
    parents = []
    for key in keys:
        parents.append(stored.last.get(group_of(key)))
        stored.last[group_of(key)] = key
    stored.keys += keys
    return parents


def _keys_of(context: ReqContext) -> list[bytes]:
    """All keys of a request, the first tokens' first. A tier does not see those that the tiers above it have, but
    vLLM's scheduler records where each one ends."""
    ends: dict[bytes, int] = getattr(context, "_offload_key_positions", {})
    return sorted(ends, key=lambda key: ends[key])


def _has_groups(config: Any) -> bool:
    """Whether the model has several KV cache groups. Their chunks share a cache that does not know the groups. An
    order of eviction that learns is misled by the windows: with five of them, `class_hazard` found 19% of a trace
    of which `lru` found 25%."""
    return len(config.groups) > 1


def _identity(config: Any, block_bytes: int) -> Identity:
    """What two engines must agree on. config: vLLM's `OffloadingConfig`."""
    parallel = config.parallel
    portable = parallel.is_parallelism_agnostic or config.replicated_layout
    facts: dict[str, object] = {
        "tier": "chunks",
        "dtype": str(config.model.dtype),
        "cache": asdict(config.cache),
        "groups": [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "parallel": None
        if portable
        else [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
        "replicated": config.replicated_layout,
        "canonical": config.kv_cache_layout if config.canonical_layout else None,
        "block_bytes": block_bytes,
    }
    if _has_groups(config):
        facts["eviction"] = "lru"  # an existing cache with another order would be refused
    return Identity(config.model.name, facts)
