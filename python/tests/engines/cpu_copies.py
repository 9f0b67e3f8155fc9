"""vLLM's tiers on a CPU engine. vLLM copies between an engine's blocks and its CPU tier only on GPUs; this copies
between two arrays instead. Everything else is vLLM's own. An engine loads it as `spec_module_path`."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuCopies(OffloadingWorker):  # type: ignore[misc]
    """A chunk is one block of each layer."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._pairs = [
            (
                one.tensor.view(torch.int8).view(-1, one.page_size_bytes),
                region.create_next_worker_view(one.page_size_bytes),
            )
            for one in kv_caches.tensors
        ]
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for engine, tier in self._pairs:
            tier[dst_spec.block_ids] = engine[src_spec.block_ids]
        return self._ended(job_id, src_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for engine, tier in self._pairs:
            engine[dst_spec.block_ids] = tier[src_spec.block_ids]
        return self._ended(job_id, dst_spec)

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Returns nothing to wait for: copies end when they are submitted."""

    def shutdown(self) -> None:
        self._pairs.clear()
        self._region.cleanup()

    def _ended(self, job_id: int, spec: Any) -> bool:
        copied = sum(tier.shape[1] for _, tier in self._pairs) * len(spec.block_ids)
        self._done.append(TransferResult(job_id, True, copied, 0.0))
        return True


class CpuTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]
    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            assert self.blocks_per_chunk == 1
            region = SharedOffloadRegion(
                self.config.engine_id,
                self.num_chunks,
                self.config.parallel.rank,
                self.kv_bytes_per_chunk,
                self.cpu_page_size_per_worker,
            )
            self._worker = CpuCopies(kv_caches, region)
        return self._worker
