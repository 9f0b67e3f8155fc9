"""Decides what each step of an engine loads and saves. It uses no engine, no server and no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cairn.engine.hints import NO_HINT, Hint
from cairn.engine.keys import Extra, KeyChain


@dataclass(frozen=True)
class Load:
    """Blocks of a prefix to load from the server into blocks of the engine."""

    request: str
    keys: list[bytes]
    blocks: list[int]


@dataclass(frozen=True)
class Save:
    """Blocks to save once the step has computed them. Each is the parent of the next."""

    keys: list[bytes]
    blocks: list[int]
    parent: bytes | None
    first: int = 0  # index of the first block in the request
    hint: Hint = NO_HINT


@dataclass
class Step:
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    # Neither this step nor a parallel one computes anything, so a worker may wait for its loads.
    may_wait: bool = False


@dataclass
class _Request:
    chain: KeyChain
    extra: Extra | None
    hint: Hint = NO_HINT
    saved: int = 0  # the server has, or will have, this many blocks from the first on
    computed: int = 0  # blocks that the engine had at the last look-up
    load: Load | None = None
    load_begins: int = 0
    gave_up: bool = False  # a load failed: do not load for this request again


class Planner:
    """Tracks each request's blocks. A block is saved once, when it is full and its tokens are known."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._requests: dict[str, _Request] = {}
        self._loads: list[Load] = []

    def begin(self, request: str, chain: KeyChain, extra: Extra | None, hint: Hint = NO_HINT) -> None:
        """Adds a request. Does nothing if it is known already."""
        self._requests.setdefault(request, _Request(chain, extra, hint))

    def knows(self, request: str) -> bool:
        return request in self._requests

    def keys(self, request: str, tokens: Sequence[int]) -> list[bytes]:
        """The keys of all blocks that can be loaded. The engine always computes the last token."""
        state = self._requests[request]
        usable = max(len(tokens) - 1, 0) // self._block_tokens
        return state.chain.extend(tokens, state.extra)[:usable]

    def found(self, request: str, present_blocks: int, computed_tokens: int) -> int:
        """Records that the server has the first `present_blocks`. Returns how many tokens beyond the computed ones
        can be loaded; 0 if a load of this request has failed. Blocks that the engine has and the server has not
        will be saved again."""
        state = self._requests[request]
        state.computed = computed_tokens // self._block_tokens
        state.saved = present_blocks
        return 0 if state.gave_up else max(present_blocks - state.computed, 0) * self._block_tokens

    def load(self, request: str, blocks: Sequence[int], tokens: int) -> None:
        """Records that the engine has reserved blocks to load `tokens` tokens after the computed ones."""
        state = self._requests[request]
        begin = state.computed
        end = begin + tokens // self._block_tokens
        state.load_begins = begin
        state.load = Load(request, state.chain.keys[begin:end], list(blocks[begin:end]))
        self._loads.append(state.load)

    def failed(self, request: str, blocks: set[int]) -> None:
        """Records blocks that a running load did not bring. The engine computes them and they are saved again."""
        state = self._requests.get(request)
        if state is None or state.load is None:
            return
        bad = [at for at, block in enumerate(state.load.blocks) if block in blocks]
        if bad:
            state.gave_up = True
            state.saved = min(state.saved, state.load_begins + bad[0])

    def computes(
        self, request: str, tokens: Sequence[int], computed_tokens: int, blocks: Callable[[], Sequence[int]]
    ) -> Save | None:
        """What to save after a step that computes the first `computed_tokens` of `tokens` in `blocks`; None if
        nothing."""
        state = self._requests.get(request)
        if state is None:
            return None
        full = min(computed_tokens, len(tokens)) // self._block_tokens
        if full <= state.saved:
            return None
        begin, keys = state.saved, state.chain.extend(tokens, state.extra)
        state.saved = full
        parent = keys[begin - 1] if begin else None
        return Save(keys[begin:full], list(blocks()[begin:full]), parent, begin, state.hint)

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
