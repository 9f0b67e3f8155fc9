"""vLLM's connector interface. It only forwards calls to the scheduler's or the worker's part.

Once the engine runs, no exception leaves it. A failure is logged and counts as a miss.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

from cairn.engine.plan import Step
from cairn.engine.report import Report
from cairn.vllm.scheduler import SchedulerSide
from cairn.vllm.setup import Setup
from cairn.vllm.stats import CairnPromMetrics, CairnStats
from cairn.vllm.worker import WorkerSide

P = ParamSpec("P")
T = TypeVar("T")


class CairnMetadata(KVConnectorMetadata):  # type: ignore[misc]
    def __init__(self, step: Step) -> None:
        self.step = step


def guarded(otherwise: Callable[[], Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Logs an exception and returns `otherwise()` instead, because an exception would end the engine's loop."""

    def wrap(method: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except Exception:
                report: Report = args[0]._report  # type: ignore[attr-defined]
                report.failed(f"{method.__name__} failed")
                fallback: T = otherwise()
                return fallback

        return call

    return wrap


class CairnConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Derives from SupportsHMA so that vLLM keeps the KV cache groups of a model apart."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        # A child of vLLM's logger, so that vLLM's log shows the lines.
        self._report = Report(logging.getLogger("vllm.cairn"))
        self._setup = setup = Setup.of(vllm_config, kv_cache_config)
        # vLLM computes a block that did not arrive; without this setting it would abort the request.
        vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(setup, self._report)
        else:
            tensor, pipeline = get_tensor_model_parallel_rank(), get_pp_group().rank_in_group
            rank = setup.rank(tensor, pipeline)
            saves = setup.saves and tensor % setup.replicas == 0
            part = setup.part(tensor)
            self._worker = WorkerSide(setup, rank, saves=saves, report=self._report, part=part)

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a block that is not saved is only a miss."""
        return False

    # The scheduler's part.

    @guarded(lambda: None)
    def on_new_request(self, request: Any) -> None:
        self._in_scheduler.arrived(request)

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tokens = self._in_scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    @guarded(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._in_scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    @guarded(lambda: CairnMetadata(Step()))
    def build_connector_meta(self, scheduler_output: Any) -> CairnMetadata:
        return CairnMetadata(self._in_scheduler.step(scheduler_output))

    @guarded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        self._in_scheduler.loads_ended(
            connector_output.finished_recving or set(),
            connector_output.invalid_block_ids or set(),
            connector_output.failed_recving or set(),
        )

    @guarded(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._in_scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    @guarded(list)
    def take_events(self) -> list[Any]:
        return self._in_scheduler.take_events()

    @guarded(lambda: False)
    def reset_cache(self) -> bool:
        """Drops every block, for example after the model's weights changed."""
        return self._in_scheduler.clear()

    # The worker's part.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        from cairn.engine.torch_pool import TorchPool

        num_blocks = self._setup.num_blocks
        groups = self._setup.layer_groups
        self._in_worker.register([TorchPool(group.own_layers(kv_caches), num_blocks) for group in groups])

    @guarded(lambda: None)
    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._in_worker.before_step(connector_metadata.step)

    @guarded(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._in_worker.fence()

    @guarded(lambda: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._in_worker.load(self._get_connector_metadata().step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: loads end between steps."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing: whole blocks are saved after the step."""

    @guarded(lambda: None)
    def wait_for_save(self) -> None:
        self._in_worker.save()

    @guarded(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._in_worker.take_loaded() or None

    @guarded(lambda: KVConnectorTransferResults())
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        results.failed_recving |= self._in_worker.take_failed_requests()
        return results

    @guarded(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._in_worker.take_failed_blocks()

    # Both.

    @guarded(lambda: None)
    def get_kv_connector_stats(self) -> CairnStats | None:
        counts = self._report.take()
        return CairnStats(counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> CairnStats:
        return CairnStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> CairnPromMetrics:
        return CairnPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @guarded(lambda: None)
    def shutdown(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    @property
    def _in_scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None, "vLLM called a scheduler's method in a worker"
        return self._scheduler

    @property
    def _in_worker(self) -> WorkerSide:
        assert self._worker is not None, "vLLM called a worker's method in the scheduler"
        return self._worker
