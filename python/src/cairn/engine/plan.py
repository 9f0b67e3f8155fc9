"""What each step of an engine loads and saves. Pure: no engine, no server, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cairn.engine.chain import Extra, KeyChain
from cairn.engine.hints import NO_HINT, Hint


@dataclass(frozen=True)
class Load:
    """Blocks of a prefix that are in the server, into blocks of the engine."""

    request: str
    keys: list[bytes]
    blocks: list[int]


@dataclass(frozen=True)
class Save:
    """Blocks that are computed once the step has ended, each the parent of the next."""

    keys: list[bytes]
    blocks: list[int]
    parent: bytes | None
    first: int = 0  # of the request's blocks
    hint: Hint = NO_HINT


@dataclass
class Step:
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    # Nothing is computed in this step, nor in another beside it: a worker may wait for its loads.
    may_wait: bool = False


@dataclass
class _Request:
    chain: KeyChain
    extra: Extra | None
    hint: Hint = NO_HINT
    saved: int = 0  # blocks from the first on that the server has, or will have
    computed: int = 0  # blocks that the engine had when it last asked
    load: Load | None = None
    load_begins: int = 0
    gave_up: bool = False  # a load failed: another might too, again and again


class Planner:
    """Which blocks of which request are where. A block is saved once, when it is full and its tokens are known."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._requests: dict[str, _Request] = {}
        self._loads: list[Load] = []

    def begin(self, request: str, chain: KeyChain, extra: Extra | None, hint: Hint = NO_HINT) -> None:
        """A request that is new; of one that is known nothing changes."""
        self._requests.setdefault(request, _Request(chain, extra, hint))

    def knows(self, request: str) -> bool:
        return request in self._requests

    def keys(self, request: str, tokens: Sequence[int]) -> list[bytes]:
        """Of all blocks that may be loaded: the last token is always computed."""
        state = self._requests[request]
        usable = max(len(tokens) - 1, 0) // self._block_tokens
        return state.chain.extend(tokens, state.extra)[:usable]

    def found(self, request: str, present_blocks: int, computed_tokens: int) -> int:
        """The server has the first `present_blocks`: how many tokens beyond the computed ones can be loaded.
        What the engine has and the server has not is saved again. None of a request whose load has failed."""
        state = self._requests[request]
        state.computed = computed_tokens // self._block_tokens
        state.saved = present_blocks
        return 0 if state.gave_up else max(present_blocks - state.computed, 0) * self._block_tokens

    def load(self, request: str, blocks: Sequence[int], tokens: int) -> None:
        """The engine has blocks for `tokens` tokens to be loaded behind the computed ones."""
        state = self._requests[request]
        begin = state.computed
        end = begin + tokens // self._block_tokens
        state.load_begins = begin
        state.load = Load(request, state.chain.keys[begin:end], list(blocks[begin:end]))
        self._loads.append(state.load)

    def failed(self, request: str, blocks: set[int]) -> None:
        """Of a load under way some blocks did not come: they are computed by the engine, and saved again."""
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
        """After this step the first `computed_tokens` of `tokens` are computed, in `blocks`."""
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
        """What the request said when it began."""
        state = self._requests.get(request)
        return NO_HINT if state is None else state.hint

    def end(self, request: str) -> Sequence[bytes]:
        """The keys of its full blocks."""
        state = self._requests.pop(request, None)
        return [] if state is None else state.chain.keys
