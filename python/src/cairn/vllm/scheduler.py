"""The connector's part in vLLM's scheduler: decides what is looked up, loaded and saved."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from cairn.engine.hints import hint_or_none
from cairn.engine.keys import Extra, KeyChain
from cairn.engine.lookup import Finder, Found, GroupFinder, Lookups
from cairn.engine.plan import Computed, Planner, Step
from cairn.engine.report import Report
from cairn.model import Tier
from cairn.packed import Reach
from cairn.vllm.setup import LOOKUP_TIMEOUT_S, Setup

if TYPE_CHECKING:
    from cairn.vllm.events import Events

# After this many looked-up blocks without a hit, a warning is logged: something is probably wrong.
NEVER_HIT_BLOCKS = 10_000


class SchedulerSide:
    """Used by the scheduler's loop only."""

    def __init__(self, setup: Setup, report: Report) -> None:
        self._setup = setup
        self._report = report
        client = setup.options.client(LOOKUP_TIMEOUT_S)
        caches = [setup.cache_name(rank) for rank in setup.ranks]
        groups = setup.groups
        fast_tier: Tier | None = "pinned" if setup.options.pinned_bytes else None
        for group in setup.left_out:
            report.info(f"the KV cache group {group} is left out: vLLM does not share its blocks")
        self._events: Events | None = None
        if setup.publishes_events:
            from cairn.vllm.events import Events

            self._events = Events(client, setup, report)
        on_found = None if self._events is None else self._events.found
        self._finder: Finder
        if setup.has_kv_groups:
            self._finder = GroupFinder(client, caches, fast_tier, report, groups, on_found)
        else:
            self._finder = Finder(client, caches, fast_tier, report, on_found)
        self._lookups = Lookups(self._finder)
        self._key_tokens = groups.key_tokens
        self._planner = Planner(groups)
        self._numbers = {one.number: place for place, one in enumerate(setup.layer_groups)}
        self._requests: dict[str, Any] = {}
        self._holding: dict[str, Found] = {}  # what pins the blocks of running loads
        self._looked_up = 0
        self._hits = 0

    def matched_tokens(self, request: Any, computed_tokens: int) -> int | None:
        """How many tokens beyond the computed ones can be loaded; None if that is not known yet."""
        name = request.request_id
        if not may_be_shared(request):
            return 0
        is_new = not self._planner.knows(name)
        if is_new:
            chain = KeyChain(self._setup.identity.root, self._key_tokens, extra_of_request(request))
            hint = hint_or_none(request.kv_transfer_params, "kv_transfer_params", self._report)
            self._planner.begin(name, chain, extra_of_block(request), hint)
            self._requests[name] = request
        keys = self._planner.keys(name, request.all_token_ids)
        if is_new and self._events is not None:
            self._events.track_prompt(request, keys)
        computed = computed_tokens // self._key_tokens
        if len(keys) <= computed:
            self._planner.found(name, Reach(computed, computed), computed_tokens)  # there is nothing to look up
            return 0
        present = self._lookups.poll(name, keys, computed, self._planner.hint(name).session)
        if present is None:
            return None
        tokens = self._planner.found(name, present, computed_tokens)
        self._stop_at_junction(request)
        self._count(len(keys) - computed, max(present.matched - computed, 0))
        if not self._setup.loads or request.skip_reading_prefix_cache:
            return 0
        return tokens

    def allocated(self, request: Any, tables: Sequence[list[int]], loaded_tokens: int) -> None:
        """Records that the engine reserved blocks for the request, and that it wants `loaded_tokens` loaded.
        tables: by vLLM's groups."""
        name = request.request_id
        if not self._planner.knows(name):
            return
        found = self._lookups.take(name)
        if loaded_tokens > 0:
            self._holding[name] = found
            try:
                self._planner.load(name, self._own(tables), loaded_tokens)
            except Exception:  # the engine waits for the load, so it must end
                self._report.failed("a load could not be planned")
                self._planner.refuse(name)
        else:
            self._lookups.release(found)

    def step(self, output: Any) -> Step:
        """What the workers load before this step and save after it."""
        may_wait = self._setup.steps_alone and not output.num_scheduled_tokens
        step = Step(loads=self._planner.take_loads(), may_wait=may_wait)
        if self._setup.saves:
            try:
                self._plan_saves(output, step)
            except Exception:  # the engine waits for the loads, so they must not be lost
                self._report.failed("saves could not be planned")
        return step

    def _plan_saves(self, output: Any, step: Step) -> None:
        state = output.kv_connector_block_state
        offered = getattr(state, "boundary_state_offloads", None) or {}
        for name in dict.fromkeys([*output.num_scheduled_tokens, *offered]):
            request = self._requests.get(name)
            if request is None:
                continue
            computed = Computed(
                request.num_computed_tokens + output.num_scheduled_tokens.get(name, 0),
                getattr(request, "num_prompt_tokens", 0),
                [getattr(request, "shared_prefix_boundary", 0)],
                [
                    (self._numbers[group], block, tokens)
                    for group, block, tokens in offered.get(name, ())
                    if group in self._numbers
                ],
            )
            tables = _Tables(self, state, name)
            for save in self._planner.computes(name, request.all_token_ids, computed, tables):
                step.saves.append(save)
                if self._events is not None:
                    self._events.track(request, save.group, save.first, save.keys)

    def _own(self, tables: Sequence[list[int]]) -> list[list[int]]:
        """The block tables of the groups that Cairn keeps."""
        return [tables[one.number] for one in self._setup.layer_groups]

    def _stop_at_junction(self, request: Any) -> None:
        """Makes vLLM keep the states where the full groups' blocks of this prompt end, if they reach further than
        the states: other requests part there. vLLM does the same if its own prefix cache shows such a place."""
        junction = self._planner.junction(request.request_id)
        if junction > getattr(request, "shared_prefix_boundary", junction):
            request.shared_prefix_boundary = junction

    def take_events(self) -> list[Any]:
        """vLLM's events for blocks that the server stored or removed."""
        return [] if self._events is None else self._events.take()

    def loads_ended(
        self, requests: set[str], failed_blocks: set[int], failed_requests: Collection[str] = ()
    ) -> None:
        """Releases the blocks of loads that ended."""
        for name in failed_requests:
            self._planner.failed(name)
        # vLLM reports failed blocks together with the end of their load, or earlier.
        if failed_blocks:
            for name in self._holding:
                self._planner.failed(name, failed_blocks)
        for name in requests:
            self._lookups.release(self._holding.pop(name, Found()))

    def finished(self, request: Any) -> None:
        """Forgets a request that has ended. If its load is still running, its blocks stay pinned until that
        ends."""
        hint = self._planner.hint(request.request_id)
        self._lookups.hint(self._planner.end(request.request_id), hint)
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

    def _count(self, blocks: int, hits: int) -> None:
        self._report.count("lookups")
        self._report.count("lookup_blocks", blocks)
        self._report.count("hit_blocks", hits)
        self._looked_up += blocks
        self._hits += hits
        if self._hits == 0 and self._looked_up - blocks < NEVER_HIT_BLOCKS <= self._looked_up:
            self._report.warn(
                f"{self._looked_up} blocks were looked up and none was there. Either requests share no prefix, or "
                f"the cache {self._setup.cache_name(self._setup.ranks[0])} is too small"
            )


class _Tables:
    """The block tables of a request, asked for once and only if something is saved."""

    def __init__(self, side: SchedulerSide, state: Any, request: str) -> None:
        self._side = side
        self._state = state
        self._request = request
        self._tables: list[list[int]] | None = None

    def __call__(self) -> list[list[int]]:
        if self._tables is None:
            self._tables = self._side._own(self._state.get_block_ids(self._request))
        return self._tables


def may_be_shared(request: Any) -> bool:
    """False for prompts given as embeddings: they have no tokens to identify them by."""
    return request.prompt_embeds is None


def extra_of_request(request: Any) -> object:
    """What all blocks of a vLLM request depend on besides tokens. A LoRA is identified by name and path, because
    its number differs between processes."""
    lora = request.lora_request
    if lora is None and request.cache_salt is None:
        return None
    return {"salt": request.cache_salt, "lora": None if lora is None else [lora.lora_name, lora.lora_path]}


def extra_of_block(request: Any) -> Extra | None:
    """The images and sounds in a block, and where they begin in it."""
    features = [
        (feature.mm_position.offset, feature.mm_position.length, feature.identifier)
        for feature in request.mm_features
    ]
    if not features:
        return None

    def extra(begin: int, end: int) -> object:
        inside = [
            [identifier, offset - begin]
            for offset, length, identifier in features
            if offset < end and begin < offset + length
        ]
        return inside or None

    return extra
