"""The connector's part in a vLLM worker: copies its blocks to and from the server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from cairn.engine.access import TIMEOUT_S, Access, open_access, open_group_access
from cairn.engine.keys import Rank
from cairn.engine.mover import IDLE_WAIT_S, Mover, Pool
from cairn.engine.options import Unsupported
from cairn.engine.plan import Load, Save, Step
from cairn.engine.report import Report
from cairn.engine.store import Part
from cairn.vllm.setup import BlockShape, Setup

# A larger load or save over HTTP goes in several requests, in parallel. At 13 MB/s such a request ends within its
# timeout.
MAX_PIECE_BYTES = 64 << 20


class ShapedPool(Pool, Protocol):
    """The worker's blocks and their shape."""

    num_layers: int
    layer_values: int
    layer_shape: tuple[int, ...]  # of a block in a layer
    dtype_bytes: int

    def adopt(self, memory: memoryview) -> None: ...


class WorkerSide:
    """Used by the worker's thread only."""

    def __init__(
        self, setup: Setup, rank: Rank, *, saves: bool, report: Report, part: Part | None = None
    ) -> None:
        """part: of each block, that the worker has."""
        self._setup = setup
        self._rank = rank
        self._part = part
        self._saves = saves
        self._report = report
        self._client = setup.options.client(TIMEOUT_S)
        self._mover: Mover | None = None
        self._piece_blocks: list[int] = []  # with KV groups: the most blocks of a request, by group
        self._loading: dict[str, int] = {}  # how many loads of a request are running
        self._failed_blocks: set[int] = set()
        self._failed_requests: set[str] = set()
        self._may_wait = False  # in this step

    def register(self, pools: Sequence[ShapedPool]) -> None:
        """Opens the rank's cache. pools: one for each group. Raises Unsupported if the server refuses the cache or
        has one that does not fit."""
        access = self._open_groups(pools) if self._setup.has_kv_groups else self._open(*pools)
        self._mover = Mover(pools, access, self._report)
        if self._setup.has_kv_groups:
            self._piece_blocks = [max(MAX_PIECE_BYTES // pool.block_bytes, 1) for pool in pools]

    def fence(self) -> None:
        """Call before the engine begins work that may overwrite saved blocks."""
        if self._mover is not None:
            self._mover.fence()

    def before_step(self, step: Step) -> None:
        """Call before the step's computation begins."""
        self._may_wait = step.may_wait
        if self._mover is not None:
            self._mover.fence()
            saves = step.saves if self._saves else []
            self._mover.prepare([piece for save in saves for piece in self._save_pieces(save)])

    def load(self, step: Step) -> None:
        if self._mover is not None:
            loads = [piece for load in step.loads for piece in self._load_pieces(load)]
            if self._setup.has_kv_groups:
                loads.sort(key=lambda load: len(load.keys), reverse=True)  # the longest first, beside the others
            for load in loads:
                self._loading[load.request] = self._loading.get(load.request, 0) + 1
            self._mover.load(loads)

    def save(self) -> None:
        if self._mover is not None:
            self._mover.save()

    def take_loaded(self) -> set[str]:
        """The requests whose loads have ended. `take_failed_blocks` names the blocks that did not arrive, or with
        KV groups `take_failed_requests` the requests."""
        ended: set[str] = set()
        deadline = time.monotonic() + (IDLE_WAIT_S if self._may_wait else 0.0)
        # A request has a load for each group: those of its first groups end before the request does.
        while self._mover is not None and not ended:
            done = self._mover.take_done(max(deadline - time.monotonic(), 0.0))
            if not done:
                break
            for load, failed in done:
                self._ended(load, failed, ended)
        return ended

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_failed_requests(self) -> set[str]:
        """The requests some of whose blocks did not arrive, and whose loads have all ended. vLLM computes all of
        such a request again: it does not take single blocks of several groups for failed."""
        failed = {name for name in self._failed_requests if name not in self._loading}
        self._failed_requests -= failed
        return failed

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close()
        self._client.close()

    def _ended(self, load: Load, failed: set[int], ended: set[str]) -> None:
        self._loading[load.request] -= 1
        if self._loading[load.request] == 0:
            del self._loading[load.request]
            ended.add(load.request)
        if not self._setup.has_kv_groups:
            self._failed_blocks |= failed
        elif failed or not load.keys:
            self._failed_requests.add(load.request)

    def _load_pieces(self, load: Load) -> Iterator[Load]:
        if not load.keys:
            yield load
        for piece in self._slices(len(load.keys), load.group):
            yield replace(load, keys=load.keys[piece], blocks=load.blocks[piece])

    def _save_pieces(self, save: Save) -> Iterator[Save]:
        for piece in self._slices(len(save.keys), save.group):
            begin = piece.start
            yield replace(
                save,
                keys=save.keys[piece],
                blocks=save.blocks[piece],
                parent=save.keys[begin - 1] if begin else save.parent,
                first=save.first + begin,
            )

    def _slices(self, count: int, group: int) -> Iterator[slice]:
        step = self._piece_blocks[group] if self._piece_blocks else max(count, 1)
        for begin in range(0, count, step):
            yield slice(begin, min(begin + step, count))

    def _open(self, pool: ShapedPool) -> Access:
        if self._setup.heads:
            # Others would read blocks of another order as theirs.
            wanted = (self._setup.heads // self._setup.head_ranks, self._setup.groups.key_tokens)
            if tuple(pool.layer_shape[:2]) != wanted:
                raise Unsupported(
                    f"CairnConnector supports layers whose blocks are ordered by KV heads, then tokens, here {wanted}; "
                    f"this worker's blocks have the shape {tuple(pool.layer_shape)}"
                )
        config = self._setup.cache_config(pool.num_layers, pool.layer_values, pool.dtype_bytes)
        name = self._setup.cache_name(self._rank)
        return open_access(self._client, name, config, pool.block_bytes, self._report, pool.adopt, self._part)

    def _open_groups(self, pools: Sequence[ShapedPool]) -> Access:
        shapes = [BlockShape(pool.num_layers, pool.layer_values, pool.dtype_bytes) for pool in pools]
        groups = self._setup.kv_groups(shapes)
        config, key_tokens = self._setup.group_cache_config(groups), self._setup.groups.key_tokens
        name = self._setup.cache_name(self._rank)
        # The memory is one for all groups, so one pool registers it.
        adopt = pools[0].adopt
        return open_group_access(self._client, name, config, groups, key_tokens, self._report, adopt)
