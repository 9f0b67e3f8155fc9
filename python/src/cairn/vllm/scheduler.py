"""The connector's part in vLLM's scheduler: decides what is looked up, loaded and saved."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cairn.engine.actions import KeysOf, RequestActions, wishes_of
from cairn.engine.costs import Advice, Costs
from cairn.engine.hints import cairn_fields, hint_or_none
from cairn.engine.keys import Extra, KeyChain
from cairn.engine.lookup import Finder, Found, GroupFinder, Lookups
from cairn.engine.plan import Computed, Planner, Step
from cairn.engine.report import Report
from cairn.model import Tier
from cairn.packed import Reach
from cairn.tracing import traced, traceparent_in
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
        self._costs = Costs(setup.options.load if setup.loads else "never", time.monotonic)
        finder = GroupFinder if setup.has_kv_groups else Finder
        self._finder: Finder = finder(client, caches, fast_tier, report, groups, self._costs, on_found)
        self._lookups = Lookups(self._finder)
        self._actions = RequestActions(client, caches, report)
        self._key_tokens = groups.key_tokens
        self._planner = Planner(groups)
        self._numbers = {one.number: place for place, one in enumerate(setup.layer_groups)}
        self._requests: dict[str, Any] = {}
        self._holding: dict[str, Found] = {}  # what pins the blocks of running loads
        self._loading: dict[str, tuple[Advice, float]] = {}  # running loads, and when they began
        self._computing: dict[
            str, tuple[int, float]
        ] = {}  # prompts: the first token computed, and when that began
        self._looked_up = 0
        self._hits = 0

    def arrived(self, request: Any) -> None:
        """Sends the actions of a new request, or keeps them until it has ended."""
        hints, params = getattr(request, "kv_hints", None), request.kv_transfer_params
        if hints is not None or params:
            wishes = wishes_of(request.request_id, params, hints, self._report)
            if wishes:
                self._actions.arrived(request.request_id, wishes, self._keys_for(request))

    def _keys_for(self, request: Any) -> KeysOf:
        """May be called on another thread, beside the engine's loop: hashing a long prompt takes milliseconds."""
        shareable = may_be_shared(request)
        prompt = list(request.all_token_ids) if shareable else []
        block, root, size = extra_of_block(request), self._setup.identity.root, self._key_tokens

        def keys_of(tokens: Sequence[int] | None, salt: str | None) -> Sequence[bytes]:
            chain = KeyChain(root, size, extra_of_request(request, salt))
            return chain.extend(prompt, block) if tokens is None else chain.extend(tokens)

        return keys_of

    def matched_tokens(self, request: Any, computed_tokens: int) -> int | None:
        """How many tokens beyond the computed ones can be loaded; None if that is not known yet."""
        name = request.request_id
        self._computing.pop(name, None)  # it was preempted
        if not may_be_shared(request):
            return 0
        is_new = not self._planner.knows(name)
        if is_new:
            chain = KeyChain(self._setup.identity.root, self._key_tokens, extra_of_request(request))
            hint = hint_or_none(cairn_fields(request.kv_transfer_params), "kv_transfer_params", self._report)
            self._planner.begin(name, chain, extra_of_block(request), hint, _traceparent_of(request))
            self._requests[name] = request
        keys = self._planner.keys(name, request.all_token_ids)
        if is_new and self._events is not None:
            self._events.track_prompt(request, keys)
        computed = computed_tokens // self._key_tokens
        if len(keys) <= computed:
            self._planner.found(name, Reach(computed, computed), computed_tokens)  # there is nothing to look up
            return 0
        with traced(_traceparent_of(request)):
            present = self._lookups.poll(name, keys, computed, self._planner.hint(name).session)
        if present is None:
            return None
        tokens = self._planner.found(name, present, computed_tokens)
        self._stop_at_junction(request)
        self._count(len(keys) - computed, max(present.matched - computed, 0))
        if not self._setup.loads or request.skip_reading_prefix_cache:
            return 0
        advice = self._lookups.advice(name)
        if advice is None:
            return tokens
        # The engine may have computed more since the look-up, of another request with the same prefix.
        advised = 0 if advice.offer is None else max(0, min(advice.offer.tokens - computed_tokens, tokens))
        self._report.count("slower_blocks", (tokens - advised) // self._key_tokens)
        self._report.count("probes", advice.is_probe)
        return advised

    def allocated(self, request: Any, tables: Sequence[list[int]], loaded_tokens: int) -> None:
        """Records that the engine reserved blocks for the request, and that it wants `loaded_tokens` loaded.
        tables: by vLLM's groups."""
        name = request.request_id
        if not self._planner.knows(name):
            return
        found = self._lookups.take(name)
        if loaded_tokens > 0:
            self._holding[name] = found
            advice = found.advice or Advice(None)
            self._loading[name] = advice, time.monotonic()
            try:
                self._planner.load(name, self._own(tables), loaded_tokens, advice.limit_s)
            except Exception:  # the engine waits for the load, so it must end
                self._report.failed("a load could not be planned")
                self._planner.refuse(name)
        else:
            self._lookups.release(found)

    def step(self, output: Any) -> Step:
        """What the workers load before this step and save after it."""
        self._measure(output.num_scheduled_tokens)
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
            self._load_ended(name)
            self._lookups.release(self._holding.pop(name, Found()))

    def _load_ended(self, name: str) -> None:
        advice, began = self._loading.pop(name, (Advice(None), 0.0))
        if advice.offer is None:
            return
        seconds = time.monotonic() - began
        # What the load waited for in the shared tier was measured apart.
        sources = {source: size for source, size in advice.offer.sources.items() if source != "shared"}
        if not self._planner.has_failed(name):
            self._costs.loaded(sources, seconds)
        elif seconds >= advice.limit_s:
            self._costs.gave_up(sources, seconds)

    def _measure(self, scheduled: Mapping[str, int]) -> None:
        """Measures how long prompts take: from the step that computes their first tokens to the end of the step
        that computed their last ones, whatever else was computed in these steps."""
        now = time.monotonic()
        for name in list(self._computing):
            self._prompt_ended(name, now)
        for name in scheduled:
            request = self._requests.get(name)
            if request is not None and name not in self._computing:
                begin = request.num_computed_tokens
                if begin < getattr(request, "num_prompt_tokens", 0) and not has_answer(request):
                    self._computing[name] = begin, now

    def _prompt_ended(self, name: str, now: float) -> None:
        request = self._requests.get(name)
        if request is not None and has_answer(request):
            begin, began = self._computing.pop(name)
            self._costs.computed(begin, request.num_prompt_tokens, now - began)
            self._report.count("prompt_tokens", request.num_prompt_tokens - begin)
            self._report.count("prompt_seconds", now - began)

    def finished(self, request: Any) -> None:
        """Forgets a request that has ended. If its load is still running, its blocks stay pinned until that
        ends."""
        if request.request_id in self._computing:
            self._prompt_ended(request.request_id, time.monotonic())
            self._computing.pop(request.request_id, None)
        hint = self._planner.hint(request.request_id)
        keys = self._planner.end(request.request_id)
        self._lookups.hint(keys, hint)
        self._lookups.forget(request.request_id)
        stored = keys if self._setup.saves else ()
        self._actions.ended(request.request_id, keys, stored, self._lookups.releasing())
        self._requests.pop(request.request_id, None)

    def clear(self) -> bool:
        return self._finder.clear()

    def close(self) -> None:
        for found in self._holding.values():
            self._lookups.release(found)
        if self._events is not None:
            self._events.close()
        self._actions.close()
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


def _traceparent_of(request: Any) -> str | None:
    """Of the caller of vLLM's API, which passes it on if it traces requests itself (--otlp-traces-endpoint)."""
    return traceparent_in(getattr(request, "trace_headers", None))


def has_answer(request: Any) -> bool:
    """Whether the first token of a vLLM request's answer is there."""
    return bool(len(request.all_token_ids) > request.num_prompt_tokens)


def may_be_shared(request: Any) -> bool:
    """False for prompts given as embeddings: they have no tokens to identify them by."""
    return request.prompt_embeds is None


def extra_of_request(request: Any, salt: str | None = None) -> object:
    """What all blocks of a vLLM request depend on besides tokens. A LoRA is identified by name and path, because
    its number differs between processes. salt: instead of the request's own."""
    lora, salt = request.lora_request, request.cache_salt if salt is None else salt
    if lora is None and salt is None:
        return None
    return {"salt": salt, "lora": None if lora is None else [lora.lora_name, lora.lora_path]}


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
