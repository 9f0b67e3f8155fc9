"""The connector's part in vLLM's scheduler: what is looked up, loaded and saved."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from cairn.engine.chain import KeyChain
from cairn.engine.hints import NO_HINT, Hint, hint_of
from cairn.engine.lookup import Finder, Found, Lookups
from cairn.engine.plan import Planner, Step
from cairn.engine.report import Report
from cairn.vllm.requests import may_be_shared, of_block, of_request
from cairn.vllm.setup import DEADLINE_LOOKUP_S, Setup

if TYPE_CHECKING:
    from cairn.vllm.events import Events

# After so many blocks were looked up, and half as many before them saved, without one hit, something is wrong.
NEVER_HIT_BLOCKS = 10_000


class SchedulerSide:
    """Used by the scheduler's loop alone."""

    def __init__(self, setup: Setup, report: Report) -> None:
        self._setup = setup
        self._report = report
        client = setup.options.client(DEADLINE_LOOKUP_S)
        caches = [setup.cache_name(rank) for rank in setup.ranks]
        self._events: Events | None = None
        if setup.tells:
            from cairn.vllm.events import Events

            self._events = Events(client, caches, setup.block_tokens, setup.attention, report)
        tell = None if self._events is None else self._events.found
        self._finder = Finder(client, caches, "pinned" if setup.options.pinned_bytes else None, report, tell)
        self._lookups = Lookups(self._finder)
        self._planner = Planner(setup.block_tokens)
        self._requests: dict[str, Any] = {}
        self._holding: dict[str, Found] = {}  # of loads under way
        self._looked_up = 0
        self._hits = 0

    def matched_tokens(self, request: Any, computed_tokens: int) -> int | None:
        """How many tokens beyond the computed ones can be loaded; None where that is not known yet."""
        name = request.request_id
        if not may_be_shared(request):
            return 0
        is_new = not self._planner.knows(name)
        if is_new:
            chain = KeyChain(self._setup.identity.root, self._setup.block_tokens, of_request(request))
            self._planner.begin(name, chain, of_block(request), self._hint(request))
            self._requests[name] = request
        keys = self._planner.keys(name, request.all_token_ids)
        if is_new and self._events is not None:
            self._events.know(request, 0, keys)
        computed = computed_tokens // self._setup.block_tokens
        if len(keys) <= computed:
            self._planner.found(name, computed, computed_tokens)  # nothing beyond it that could be there
            return 0
        present = self._lookups.poll(name, keys, computed, self._planner.hint(name).session)
        if present is None:
            return None
        tokens = self._planner.found(name, present, computed_tokens)
        self._count(len(keys) - computed, max(present - computed, 0))
        if not self._setup.loads or request.skip_reading_prefix_cache:
            return 0
        return tokens

    def allocated(self, request: Any, blocks: list[int], loaded_tokens: int) -> None:
        """The engine has blocks for the request; those of `loaded_tokens` are to be loaded."""
        name = request.request_id
        if not self._planner.knows(name):
            return
        found = self._lookups.take(name)
        if loaded_tokens > 0:
            self._planner.load(name, blocks, loaded_tokens)
            self._holding[name] = found
        else:
            self._lookups.release(found)

    def step(self, output: Any) -> Step:
        """What the workers load and save around this step."""
        may_wait = self._setup.steps_alone and not output.num_scheduled_tokens
        step = Step(loads=self._planner.take_loads(), may_wait=may_wait)
        if self._setup.saves:
            try:
                self._plan_saves(output, step)
            except Exception:  # the loads must go on: the engine waits for them
                self._report.failed("saves could not be planned")
        return step

    def _plan_saves(self, output: Any, step: Step) -> None:
        def blocks_of(name: str) -> list[int]:
            blocks: list[int] = output.kv_connector_block_state.get_block_ids(name)[0]
            return blocks

        for name, scheduled in output.num_scheduled_tokens.items():
            request = self._requests.get(name)
            if request is None:
                continue
            save = self._planner.computes(
                name,
                request.all_token_ids,
                request.num_computed_tokens + scheduled,
                functools.partial(blocks_of, name),
            )
            if save is not None:
                step.saves.append(save)
                if self._events is not None:
                    self._events.know(request, save.first, save.keys)

    def take_events(self) -> list[Any]:
        """vLLM's events of blocks that were stored on the server, or removed there."""
        return [] if self._events is None else self._events.take()

    def loads_ended(self, requests: set[str], failed_blocks: set[int]) -> None:
        # Blocks that failed are named with, or before, the end of their load.
        if failed_blocks:
            for name in self._holding:
                self._planner.failed(name, failed_blocks)
        for name in requests:
            self._lookups.release(self._holding.pop(name, Found()))

    def finished(self, request: Any) -> None:
        """The request has ended. One whose load is under way holds its blocks until that has ended too."""
        hint = self._planner.hint(request.request_id)
        self._lookups.tell(self._planner.end(request.request_id), hint)
        self._requests.pop(request.request_id, None)
        self._lookups.forget(request.request_id)

    def clear(self) -> bool:
        return self._finder.clear()

    def close(self) -> None:
        for found in self._holding.values():
            self._lookups.release(found)
        if self._events is not None:
            self._events.close()
        self._lookups.close()

    def _hint(self, request: Any) -> Hint:
        try:
            return hint_of(request.kv_transfer_params)
        except ValueError as error:
            self._report.warn(f"kv_transfer_params are not passed on: {error}")
            return NO_HINT

    def _count(self, blocks: int, hits: int) -> None:
        self._report.count("lookups")
        self._report.count("lookup_blocks", blocks)
        self._report.count("hit_blocks", hits)
        self._looked_up += blocks
        self._hits += hits
        if self._hits == 0 and self._looked_up - blocks < NEVER_HIT_BLOCKS <= self._looked_up:
            self._report.warn(
                f"{self._looked_up} blocks were looked up and none was there. Do requests share no prefix, or is "
                f"the cache {self._setup.cache_name(self._setup.ranks[0])} too small?"
            )
