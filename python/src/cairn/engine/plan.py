"""Decides what each step of an engine loads and saves. It uses no engine, no server and no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cairn.engine.groups import Group, Groups
from cairn.engine.hints import NO_HINT, Hint
from cairn.engine.keys import Extra, KeyChain
from cairn.packed import Reach

# In an engine's block table: there is no block.
NO_BLOCK = 0

Tables = Sequence[Sequence[int]]  # the engine's blocks of a request, by group


@dataclass(frozen=True)
class Load:
    """Blocks of a prefix to load from the server into blocks of the engine. Without keys, the load fails. After
    `limit_s` it is given up."""

    request: str
    keys: list[bytes]
    blocks: list[int]
    group: int = 0
    limit_s: float = math.inf
    traceparent: str | None = None  # of the engine's request


@dataclass(frozen=True)
class Save:
    """Blocks to save once the step has computed them. Each is the parent of the next."""

    keys: list[bytes]
    blocks: list[int]
    parent: bytes | None
    first: int = 0  # index of the first block in the request
    hint: Hint = NO_HINT
    group: int = 0
    traceparent: str | None = None  # of the engine's request


@dataclass
class Step:
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    # Neither this step nor a parallel one computes anything, so a worker may wait for its loads.
    may_wait: bool = False


@dataclass(frozen=True)
class Computed:
    """What a step computes of a request."""

    tokens: int  # of the prompt and the answer, from the first on, computed at the end of the step
    prompt_tokens: int
    # Where another request may go on, besides the end of the prompt. In tokens.
    junctions: Sequence[int] = ()
    # The states that the engine keeps at the end of the step: group, block, and the tokens before it.
    states: Sequence[tuple[int, int, int]] = ()


@dataclass
class _Request:
    chain: KeyChain
    extra: Extra | None
    hint: Hint = NO_HINT
    traceparent: str | None = None
    # What the server has, or will have. `full` counts a full group's blocks from the first on. `parts` has the
    # indices of a window's blocks, and for a state the numbers of tokens before it.
    full: dict[int, int] = field(default_factory=dict)
    parts: dict[int, set[int]] = field(default_factory=dict)
    computed: int = 0  # tokens that the engine had at the last look-up
    passed: int = -1  # the boundaries up to here have been considered
    junction: int = 0
    loads: list[Load] = field(default_factory=list)
    load_ends: int = 0
    gave_up: bool = False  # a load failed: do not load for this request again


class Planner:
    """Tracks each request's blocks. A full group's block is saved once, when it is full and its tokens are known.
    The other groups' blocks are saved where another request may go on: at the end of the prompt, in the answer,
    and where a look-up found more of the full groups than of the others."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._has_states = any(group.kind == "state" for group in groups.groups)
        self._requests: dict[str, _Request] = {}
        self._loads: list[Load] = []

    def begin(
        self,
        request: str,
        chain: KeyChain,
        extra: Extra | None,
        hint: Hint = NO_HINT,
        traceparent: str | None = None,
    ) -> None:
        """Adds a request. Does nothing if it is known already."""
        if request not in self._requests:
            self._requests[request] = state = _Request(chain, extra, hint, traceparent)
            self._has(state, Reach(0, 0))

    def knows(self, request: str) -> bool:
        return request in self._requests

    def keys(self, request: str, tokens: Sequence[int]) -> list[bytes]:
        """The keys of all blocks that can be loaded. The engine always computes the last token."""
        state = self._requests[request]
        usable = max(len(tokens) - 1, 0) // self._groups.unit_tokens * self._groups.unit_keys
        return state.chain.extend(tokens, state.extra)[:usable]

    def found(self, request: str, reach: Reach, computed_tokens: int) -> int:
        """Records how far the server's blocks reach, in keys: those of all groups, and those of the full groups.
        Returns how many tokens beyond the computed ones can be loaded; 0 if a load of this request has failed.
        Full blocks that the engine has and the server has not will be saved again."""
        state = self._requests[request]
        state.computed = computed_tokens
        state.passed = computed_tokens - 1
        self._has(state, reach)
        reached = self._floor(reach.full_matched * self._groups.key_tokens)
        matched = reach.matched * self._groups.key_tokens
        state.junction = reached if reached > matched else 0
        return 0 if state.gave_up else max(matched - computed_tokens, 0)

    def junction(self, request: str) -> int:
        """Up to which token the full groups alone reach, if that is further than all groups; else 0."""
        state = self._requests.get(request)
        return 0 if state is None else state.junction

    def load(self, request: str, tables: Tables, tokens: int, limit_s: float = math.inf) -> None:
        """Records that the engine has reserved blocks to load `tokens` tokens after the computed ones, in
        `limit_s`. Raises ValueError if it has not reserved all that are needed."""
        state = self._requests[request]
        begin, end = state.computed, state.computed + tokens
        loads = []
        for number, (group, table) in enumerate(zip(self._groups.groups, tables, strict=True)):
            if group.kind == "state":
                blocks, keys = list(group.needed(end)), [self._groups.key_at(end)]
            else:
                # The engine has those before its computed tokens, also of a window.
                blocks = [block for block in group.needed(end) if block >= begin // group.block_tokens]
                keys = [self._groups.key_of(number, block) for block in blocks]
            if not blocks:
                continue
            places = list(table[blocks[0] : blocks[-1] + 1])
            if len(places) != len(blocks) or (len(self._groups.groups) > 1 and NO_BLOCK in places):
                raise ValueError(f"the engine's table of the group {group.name} lacks blocks of {blocks}")
            named = [state.chain.keys[key] for key in keys]
            loads.append(Load(request, named, places, number, limit_s, state.traceparent))
        state.loads, state.load_ends = loads, end
        self._loads += loads

    def refuse(self, request: str) -> None:
        """Makes the load that the engine waits for fail."""
        self._requests[request].loads = []
        self._loads.append(Load(request, [], []))

    def has_failed(self, request: str) -> bool:
        """Whether a load of this request has failed."""
        state = self._requests.get(request)
        return state is not None and state.gave_up

    def failed(self, request: str, blocks: set[int] | None = None) -> None:
        """Records blocks that a running load did not bring; None if nothing of it counts. The engine computes them
        and they are saved again."""
        state = self._requests.get(request)
        if state is None:
            return
        for load in state.loads:
            bad = [at for at, block in enumerate(load.blocks) if blocks is None or block in blocks]
            if not bad:
                continue
            state.gave_up = True
            group = self._groups.groups[load.group]
            if group.kind == "full":
                begins = state.computed // group.block_tokens
                state.full[load.group] = min(state.full[load.group], begins + bad[0])
            else:
                state.parts[load.group].clear()
        state.gave_up = state.gave_up or blocks is None

    def computes(
        self, request: str, tokens: Sequence[int], step: Computed, tables: Callable[[], Tables]
    ) -> list[Save]:
        """What to save after a step, of a request with these `tokens`."""
        state = self._requests.get(request)
        if state is None:
            return []
        end = min(step.tokens, len(tokens))
        ends = [*self._ends(state, step, end)]
        state.passed = max(state.passed, end)
        saves: list[Save] = []
        for number, group in enumerate(self._groups.groups):
            if group.kind == "full":
                saves += self._save_full(state, number, tokens, end, tables)
            elif group.kind == "window":
                saves += self._save_window(state, number, tokens, end, ends, tables)
        for number, block, boundary in step.states:
            if boundary <= end and self._is_worth(state, step, boundary) and block != NO_BLOCK:
                saves += self._save_state(state, number, tokens, boundary, block)
        return saves

    def take_loads(self) -> list[Load]:
        loads, self._loads = self._loads, []
        return loads

    def hint(self, request: str) -> Hint:
        """The hint given to `begin`."""
        state = self._requests.get(request)
        return NO_HINT if state is None else state.hint

    def end(self, request: str) -> Sequence[bytes]:
        """Forgets the request and returns the keys of its full blocks."""
        state = self._requests.pop(request, None)
        return [] if state is None else state.chain.keys

    def _has(self, state: _Request, reach: Reach) -> None:
        """Records what the server has after a look-up."""
        matched = reach.matched * self._groups.key_tokens
        for number, group in enumerate(self._groups.groups):
            if group.kind == "full":
                state.full[number] = reach.full_matched * self._groups.key_tokens // group.block_tokens
            elif group.kind == "state":
                state.parts[number] = {matched}
            else:
                state.parts[number] = set(group.needed(matched))

    def _floor(self, tokens: int) -> int:
        return tokens // self._groups.unit_tokens * self._groups.unit_tokens

    def _prompt_ends(self, step: Computed) -> set[int]:
        """Where the same prompt goes on, and where a longer one does: the engine computes the last token."""
        return {self._floor(step.prompt_tokens - 1), self._floor(step.prompt_tokens)}

    def _is_worth(self, state: _Request, step: Computed, boundary: int) -> bool:
        """Whether the groups that are not full should be saved at a boundary."""
        if boundary <= 0 or boundary != self._floor(boundary):
            return False
        wanted = {state.junction, *map(self._floor, step.junctions)} | self._prompt_ends(step)
        return boundary in wanted or boundary > step.prompt_tokens

    def _ends(self, state: _Request, step: Computed, end: int) -> Iterator[int]:
        """The boundaries up to `end` where windows are saved and that the steps before have not passed."""
        if self._has_states:
            # In the answer a window is of use only where there are states.
            possible: Iterable[int] = {boundary for _, _, boundary in step.states}
            possible = {*possible, *self._prompt_ends(step), state.junction, *map(self._floor, step.junctions)}
        else:
            unit = self._groups.unit_tokens
            possible = range(self._floor(max(state.passed, 0)), end + 1, unit)
        for boundary in sorted(possible):
            if state.passed < boundary <= end and self._is_worth(state, step, boundary):
                yield boundary

    def _save_full(
        self, state: _Request, number: int, tokens: Sequence[int], end: int, tables: Callable[[], Tables]
    ) -> Iterator[Save]:
        full, saved = end // self._groups.groups[number].block_tokens, state.full[number]
        if full > saved:
            state.full[number] = full
            yield self._save(state, number, tokens, range(saved, full), tables())

    def _save_window(
        self,
        state: _Request,
        number: int,
        tokens: Sequence[int],
        end: int,
        ends: Sequence[int],
        tables: Callable[[], Tables],
    ) -> Iterator[Save]:
        group, there = self._groups.groups[number], state.parts[number]
        # A chunk is dropped at its end, but Cairn looks for whole windows: all of it is saved as it is computed.
        windows = [range(end // group.block_tokens)] if group.in_chunks else [group.needed(one) for one in ends]
        new: set[int] = set()
        for window in windows:
            missing = [block for block in window if block not in there]
            if missing:
                table = tables()[number]
                here = [block for block in missing if block < len(table) and table[block] != NO_BLOCK]
                # An incomplete window is of no use.
                if here == missing or group.in_chunks:
                    new.update(here)
        there |= new
        for run in _runs(sorted(new)):
            yield self._save(state, number, tokens, run, tables())

    def _save_state(
        self, state: _Request, number: int, tokens: Sequence[int], boundary: int, block: int
    ) -> Iterator[Save]:
        there = state.parts[number]
        if boundary in there:
            return
        there.add(boundary)
        at, keys = self._groups.key_at(boundary), state.chain.extend(tokens, state.extra)
        first = boundary // self._groups.groups[number].block_tokens - 1
        parent = keys[at - 1] if at else None
        yield Save([keys[at]], [block], parent, first, state.hint, number, state.traceparent)

    def _save(self, state: _Request, number: int, tokens: Sequence[int], run: range, tables: Tables) -> Save:
        keys = state.chain.extend(tokens, state.extra)
        parent = keys[self._groups.key_of(number, run.start - 1)] if run.start else None
        own = [keys[self._groups.key_of(number, block)] for block in run]
        blocks = list(tables[number][run.start : run.stop])
        return Save(own, blocks, parent, run.start, state.hint, number, state.traceparent)


def only(block_tokens: int) -> Groups:
    """The group of a model whose layers all keep everything."""
    return Groups.of([Group("default", "full", block_tokens)])


def _runs(blocks: Sequence[int]) -> Iterator[range]:
    """Consecutive blocks together."""
    begin = 0
    for at in range(1, len(blocks) + 1):
        if at == len(blocks) or blocks[at] != blocks[at - 1] + 1:
            yield range(blocks[begin], blocks[at - 1] + 1)
            begin = at
