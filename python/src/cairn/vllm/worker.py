"""The connector's part in a vLLM worker: copies its blocks to and from the server."""

from __future__ import annotations

from typing import Protocol

from cairn.engine.access import TIMEOUT_S, open_access
from cairn.engine.keys import Rank
from cairn.engine.mover import IDLE_WAIT_S, Mover, Pool
from cairn.engine.plan import Step
from cairn.engine.report import Report
from cairn.vllm.setup import Setup


class ShapedPool(Pool, Protocol):
    """The worker's blocks and their shape."""

    num_layers: int
    layer_values: int
    dtype_bytes: int

    def adopt(self, memory: memoryview) -> None: ...


class WorkerSide:
    """Used by the worker's thread only."""

    def __init__(self, setup: Setup, rank: Rank, *, saves: bool, report: Report) -> None:
        self._setup = setup
        self._rank = rank
        self._saves = saves
        self._report = report
        self._client = setup.options.client(TIMEOUT_S)
        self._mover: Mover | None = None
        self._failed_blocks: set[int] = set()
        self._may_wait = False  # in this step

    def register(self, pool: ShapedPool) -> None:
        """Opens the rank's cache. Raises Unsupported if the server refuses it or has one that does not fit."""
        name = self._setup.cache_name(self._rank)
        config = self._setup.cache_config(pool.num_layers, pool.layer_values, pool.dtype_bytes)
        access = open_access(self._client, name, config, pool.block_bytes, self._report, pool.adopt)
        self._mover = Mover(pool, access, self._report)

    def fence(self) -> None:
        """Call before the engine begins work that may overwrite saved blocks."""
        if self._mover is not None:
            self._mover.fence()

    def before_step(self, step: Step) -> None:
        """Call before the step's computation begins."""
        self._may_wait = step.may_wait
        if self._mover is not None:
            self._mover.fence()
            self._mover.prepare(step.saves if self._saves else [])

    def load(self, step: Step) -> None:
        if self._mover is not None:
            self._mover.load(step.loads)

    def save(self) -> None:
        if self._mover is not None:
            self._mover.save()

    def take_loaded(self) -> set[str]:
        """The requests whose loads have ended. `take_failed_blocks` names the blocks that did not arrive."""
        done = [] if self._mover is None else self._mover.take_done(IDLE_WAIT_S if self._may_wait else 0.0)
        for _, failed in done:
            self._failed_blocks |= failed
        return {load.request for load, _ in done}

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close()
        self._client.close()
