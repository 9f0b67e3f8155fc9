"""A connector's counters in vLLM's log and metrics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

# The counters of `cairn.engine`, and their help texts in vLLM's metrics.
COUNTERS = {
    "lookups": "Prompts looked up",
    "lookup_blocks": "Blocks looked up",
    "hit_blocks": "Looked-up blocks that the server had for all ranks",
    "slower_blocks": "Blocks that the server had, and that the engine computed because that was faster",
    "probes": "Loads that were expected to be slower than computing, to measure a tier again",
    "waits_given_up": "Waits for blocks of the shared tier that were given up because computing was faster",
    "prompt_tokens": "Tokens of prompts that the engine computed",
    "prompt_seconds": "Seconds to compute them, summed over parallel requests",
    "lookup_failures": "Look-ups that failed because the server did not answer or refused; they count as misses",
    "loaded_blocks": "Blocks loaded from the server, counted once per rank",
    "loaded_bytes": "Bytes loaded from the server",
    "load_seconds": "Seconds spent loading, summed over parallel loads",
    "load_failed_blocks": "Blocks that were found but not loaded, counted once per rank; the engine computed them",
    "given_up_blocks": "Blocks that failed because loading them took longer than computing them",
    "saved_blocks": "Blocks stored, counted once per rank",
    "saved_bytes": "Bytes stored",
    "saves_duplicate_blocks": "Blocks that the server had already when they were stored, counted once per rank",
    "saves_skipped_blocks": "Blocks not stored: the server had no room, did not answer, or was too slow",
    "actions_accepted": "Actions of requests that were done or begun, counted once per cache",
    "actions_clipped": "Actions of requests that were done only for some of the blocks",
    "actions_deferred": "Actions of requests that a full queue of the server refused",
    "actions_rejected": "Actions of requests that the server rejected",
    "actions_missing": "Actions of requests none of whose blocks was stored",
    "actions_failed": "Actions of requests that were malformed, or refused, or found no server",
}


class CairnStats(KVConnectorStats):  # type: ignore[misc]
    """`data` maps a counter's name to its value."""

    data: dict[str, Any]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: Any) -> CairnStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: round(value, 3) for name, value in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class CairnPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(name=f"vllm:cairn_{name}", documentation=f"{text}.", labelnames=labelnames)
            for name, text in COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name].labels(*self.per_engine_labelvalues[engine_idx]).inc(value)
