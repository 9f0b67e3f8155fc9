"""A small fake engine. It calls the connector in vLLM's order: schedules, computes in chunks, preempts, aborts.

A block's "keys and values" are derived from all tokens up to its end, so that every byte can be checked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cairn.vllm.scheduler import SchedulerSide
from cairn.vllm.worker import WorkerSide
from fake_pool import FakePool
from server import PATIENCE_S

BLOCK_TOKENS = 4
LAYERS = 3
LAYER_VALUES = 32
DTYPE_BYTES = 2
BLOCK_BYTES = LAYERS * LAYER_VALUES * DTYPE_BYTES
HEADS = 4


def content(tokens: Sequence[int], rank: int) -> bytes:
    """The bytes of the rank's block that ends with the last of `tokens`."""
    seed = hashlib.sha256(repr((rank, list(tokens))).encode()).digest()
    return (seed * (BLOCK_BYTES // len(seed) + 1))[:BLOCK_BYTES]


def heads_of(tokens: Sequence[int], rank: int, ranks: int) -> bytes:
    """The bytes of the heads that one of several ranks has, in each layer."""
    whole, layer_bytes = content(tokens, 0), BLOCK_BYTES // LAYERS
    size = layer_bytes // ranks
    begins = (layer * layer_bytes + rank * size for layer in range(LAYERS))
    return b"".join(whole[begin : begin + size] for begin in begins)


class Blocks(FakePool):
    """A worker's memory."""

    num_layers = LAYERS
    dtype_bytes = DTYPE_BYTES

    def __init__(self, count: int, parts: int = 1) -> None:
        super().__init__([bytearray(BLOCK_BYTES // parts) for _ in range(count)])
        self.layer_values = LAYER_VALUES // parts
        self.layer_shape = (HEADS // parts, BLOCK_TOKENS, LAYER_VALUES // HEADS // BLOCK_TOKENS)

    def adopt(self, memory: memoryview) -> None: ...


@dataclass
class Request:
    """Has the members of a vLLM request that the connector uses."""

    request_id: str
    all_token_ids: list[int]
    new_tokens: int = 4
    prompt_embeds: None = None
    lora_request: Any = None
    cache_salt: str | None = None
    mm_features: list[Any] = field(default_factory=list)
    skip_reading_prefix_cache: bool = False
    kv_transfer_params: dict[str, Any] | None = None
    kv_hints: Any = None
    trace_headers: dict[str, str] | None = None
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    shared_prefix_boundary: int = 0
    blocks: list[int] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)  # of an engine with several groups
    loading: bool = False
    loaded_tokens: int = 0
    computed_here: int = 0


class FakeEngine:
    def __init__(
        self,
        scheduler: SchedulerSide,
        workers: list[WorkerSide],
        *,
        blocks: int = 256,
        chunk: int = 10,
        share_heads: bool = False,
    ) -> None:
        """share_heads: the workers' blocks are parts of those of the whole model."""
        self.scheduler = scheduler
        self.workers = workers
        self.parts = len(workers) if share_heads else 1
        self.pools = [Blocks(blocks, self.parts) for _ in workers]
        for worker, pool in zip(workers, self.pools, strict=True):
            worker.register([pool])
        self._chunk = chunk
        self._free = list(range(blocks))
        self._received: dict[str, int] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def run(self, *requests: Request) -> None:
        """Runs until all requests have ended. Checks the blocks of each request at its end."""
        for request in requests:
            self.scheduler.arrived(request)
        self.waiting += requests
        deadline = time.monotonic() + PATIENCE_S
        while self.waiting or self.running:
            self.step()
            assert time.monotonic() < deadline, "a request does not end"

    def step(self) -> None:
        for request in list(self.waiting):
            self._admit(request)
        scheduled = {request.request_id: self._grow(request) for request in self.running}
        state = SimpleNamespace(get_block_ids=lambda name: (self._find(name).blocks,))
        output = SimpleNamespace(num_scheduled_tokens=scheduled, kv_connector_block_state=state)
        plan = self.scheduler.step(output)
        received, failed = set(), set()
        for rank, worker in enumerate(self.workers):
            worker.fence()
            worker.before_step(plan)
            self._compute(rank, scheduled)
            worker.load(plan)
            worker.save()
            received |= self._all_received(worker.take_loaded())
            failed |= worker.take_failed_blocks()
        for request in self.running:
            count = scheduled[request.request_id]
            request.num_computed_tokens += count
            request.computed_here += count
        self._loads_ended(received, failed)
        self._sample()

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._free += request.blocks
        request.blocks, request.num_computed_tokens = [], 0
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """If a load of the request is running, its blocks stay reserved until the load has ended."""
        self.scheduler.finished(request)
        if not request.loading:
            (self.running if request in self.running else self.waiting).remove(request)
            self._free += request.blocks
        request.new_tokens = -1

    def close(self) -> None:
        self.scheduler.close()
        for worker in self.workers:
            worker.close()

    def _admit(self, request: Request) -> None:
        if request.loading:
            return
        tokens = 0
        if request.num_computed_tokens == 0:
            found = self.scheduler.matched_tokens(request, 0)
            if found is None:
                return
            tokens = found
        self._blocks_for(request, max(tokens, request.num_computed_tokens, 1))
        self.scheduler.allocated(request, [request.blocks], tokens)
        if tokens:
            request.num_computed_tokens = request.loaded_tokens = tokens
            request.loading = True
        else:
            self.waiting.remove(request)
            self.running.append(request)

    def _grow(self, request: Request) -> int:
        count = min(self._chunk, len(request.all_token_ids) - request.num_computed_tokens)
        self._blocks_for(request, request.num_computed_tokens + count)
        return count

    def _blocks_for(self, request: Request, tokens: int) -> None:
        while len(request.blocks) * BLOCK_TOKENS < tokens:
            request.blocks.append(self._free.pop())

    def _compute(self, rank: int, scheduled: dict[str, int]) -> None:
        """Computes each block from all tokens before it, as attention does. `_check` finds wrong blocks later."""
        for request in self.running:
            begin = request.num_computed_tokens
            for block in range(begin // BLOCK_TOKENS, (begin + scheduled[request.request_id]) // BLOCK_TOKENS):
                tokens = request.all_token_ids[: (block + 1) * BLOCK_TOKENS]
                self.pools[rank].blocks[request.blocks[block]][:] = self._content(tokens, rank)

    def _content(self, tokens: Sequence[int], rank: int) -> bytes:
        return content(tokens, rank) if self.parts == 1 else heads_of(tokens, rank, self.parts)

    def _all_received(self, requests: set[str]) -> set[str]:
        """The requests that every worker has reported."""
        for name in requests:
            self._received[name] = self._received.get(name, 0) + 1
        done = {name for name, count in self._received.items() if count == len(self.workers)}
        for name in done:
            del self._received[name]
        return done

    def _loads_ended(self, received: set[str], failed: set[int]) -> None:
        for request in self.waiting:
            bad = [at for at, block in enumerate(request.blocks) if request.loading and block in failed]
            if bad:
                request.num_computed_tokens = request.loaded_tokens = bad[0] * BLOCK_TOKENS
        self.scheduler.loads_ended(received, failed)
        for name in received:
            request = self._find(name)
            request.loading = False
            if request.new_tokens < 0:  # it was aborted during the step
                self.waiting.remove(request)
                self._free += request.blocks
            elif request.num_computed_tokens == 0:
                self._free += request.blocks
                request.blocks = []

    def _sample(self) -> None:
        for request in list(self.running):
            if request.num_computed_tokens < len(request.all_token_ids):
                continue
            if request.new_tokens == 0:
                self._check(request)
                self.scheduler.finished(request)
                self.running.remove(request)
                self._free += request.blocks
            else:
                request.all_token_ids.append(sum(request.all_token_ids) % 1000)
                request.new_tokens -= 1

    def _check(self, request: Request) -> None:
        for rank, pool in enumerate(self.pools):
            for block in range(len(request.all_token_ids) // BLOCK_TOKENS):
                expected = self._content(request.all_token_ids[: (block + 1) * BLOCK_TOKENS], rank)
                assert pool.blocks[request.blocks[block]] == expected, f"rank {rank}: wrong bytes in block {block}"

    def _find(self, name: str) -> Request:
        return next(request for request in [*self.waiting, *self.running] if request.request_id == name)
