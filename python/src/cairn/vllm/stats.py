"""Counts of a connector, for vLLM's log and its metrics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

# What `cairn.engine` counts, and what vLLM's metrics say of it.
COUNTERS = {
    "lookups": "Look-ups of prompts",
    "lookup_blocks": "Blocks that were looked up",
    "hit_blocks": "Blocks of those that the server had for all ranks",
    "lookup_failures": "Look-ups that were misses because the server did not answer or refused",
    "loaded_blocks": "Blocks that came from the server, by rank",
    "loaded_bytes": "Bytes of them",
    "load_seconds": "Time of loads, added up over all that ran side by side",
    "load_failed_blocks": "Blocks that were found and did not come, by rank: they were computed",
    "saved_blocks": "Blocks that were stored, by rank",
    "saved_bytes": "Bytes of them",
    "saves_duplicate_blocks": "Blocks that were there already when they were stored, by rank",
    "saves_skipped_blocks": "Blocks that were not stored: no room, no answer, or slower than the engine",
}


class CairnStats(KVConnectorStats):  # type: ignore[misc]
    """`data`: a number for each name that was counted."""

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
