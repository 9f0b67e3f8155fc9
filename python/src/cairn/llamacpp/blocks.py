"""The states of one model in Cairn: blocks of tokens, or whole states."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cairn.aio import AsyncClient
from cairn.engine.options import Options, flat_shape
from cairn.errors import CairnError, UnknownCache
from cairn.keys import token_keys
from cairn.llamacpp.state import Form, State, checkpoints_of, make_state
from cairn.model import CacheConfig, KvGroup

T = TypeVar("T")

GROUP = "state"
# The most bytes of one write. A write is all or none, so it must find that much room at once.
WRITE_BYTES = 32 << 20
# A whole state is stored in pieces of this size, the last one filled up with zeros.
PIECE_BYTES = 256 << 10
# In front of a whole state: its size, its tokens and its SHA-256. A size of 0 means that the state is elsewhere, and
# has a checkpoint here: the key of its first piece is in place of the hash.
WHOLE_HEAD = struct.Struct("<QQ32s")
# The most bytes of a whole state that is read. A larger size is damage.
MAX_WHOLE_BYTES = 64 << 30


@dataclass(frozen=True)
class Found:
    """A prefix that Cairn holds: how many of the prompt's tokens, the pieces of a state file, and how many tokens that
    restores. These are more if the state has a checkpoint after the prompt's tokens."""

    tokens: int
    pieces: Iterable[bytes | memoryview]
    restores: int


class Blocks:
    """Prefixes of a model with layers that all attend to everything. Each block holds `block_tokens` tokens."""

    def __init__(self, client: AsyncClient, options: Options, form: Form, salt: str, block_tokens: int) -> None:
        self._form = form
        self._salt = salt
        self._block_tokens = block_tokens
        self._block_bytes = form.cell_bytes * block_tokens
        name = options.cache or f"llamacpp.{block_tokens}x{form.cell_bytes}"
        self._cache = _Cache(client, name, options.cache_config(flat_shape(self._block_bytes)))

    @property
    def name(self) -> str:
        return self._cache.name

    def least_tokens(self) -> int:
        """Prompts with fewer tokens are not stored."""
        return self._block_tokens

    async def held(self, tokens: Sequence[int]) -> int:
        """How many leading tokens Cairn holds, without the last one, which llama-server computes in any case."""
        keys = self._keys(tokens[:-1])
        return await self._matched(keys) * self._block_tokens if keys else 0

    async def read(self, tokens: Sequence[int], held: int) -> Found | None:
        """The first `held` tokens, or as many as are still there; None if none are."""
        keys = self._keys(tokens[:held])
        cache = self._cache
        got = await cache.ask(lambda: cache.client.read(cache.name, keys))
        if not got.matched:
            return None
        blocks = list(got)
        there = len(blocks) * self._block_tokens
        return Found(there, make_state(self._form, tokens[:there], blocks), there)

    async def save(self, state: State | memoryview, tokens: Sequence[int]) -> int:
        """Stores the blocks that are missing, and returns how many those are."""
        assert isinstance(state, State)
        keys = self._keys(tokens)
        at = first = await self._matched(keys) if keys else 0
        cache = self._cache
        step = max(WRITE_BYTES // self._block_bytes, 1)
        while at < len(keys):
            end = min(at + step, len(keys))
            data = await asyncio.to_thread(self._cut, state, at, end)
            parent = keys[at - 1] if at else None
            await cache.client.write(cache.name, keys[at:end], data, parent=parent)
            at = end
        return at - first

    def _cut(self, state: State, begin: int, end: int) -> list[bytes]:
        return [state.block(number, self._block_tokens) for number in range(begin, end)]

    def _keys(self, tokens: Sequence[int]) -> list[bytes]:
        return token_keys(tokens, self._block_tokens, self._salt)

    async def _matched(self, keys: Sequence[bytes]) -> int:
        cache = self._cache
        found = await cache.ask(lambda: cache.client.match(cache.name, keys, lease_ms=0))
        return found.matched


class WholeStates:
    """Prefixes of any other model: with windows, or recurrent. A state serves prompts that begin with all of its
    tokens, or with those up to one of its checkpoints. It lies in the KV group `state`, in pieces: the first under
    the key of its last token. Under the key of a checkpoint's last token is the key of the state."""

    def __init__(self, client: AsyncClient, options: Options, salt: str, least_tokens: int) -> None:
        self._salt = salt
        self._least_tokens = least_tokens
        group = KvGroup(GROUP, "state", flat_shape(PIECE_BYTES))
        self._cache = _Cache(client, options.cache or "llamacpp.states", options.group_cache_config([group], 1))

    @property
    def name(self) -> str:
        return self._cache.name

    def least_tokens(self) -> int:
        """Prompts with fewer tokens are not stored."""
        return self._least_tokens

    async def held(self, tokens: Sequence[int]) -> int:
        """How many leading tokens the longest stored state of them has, without the last token."""
        keys = token_keys(tokens[:-1], 1, self._salt)
        cache = self._cache
        places = await cache.ask(lambda: cache.client.contains(cache.name, keys, kv_group=GROUP)) if keys else ""
        return len(places.rstrip("."))

    async def read(self, tokens: Sequence[int], held: int) -> Found | None:
        """The state of the first `held` tokens, or one with a checkpoint there; None if it is gone, or damaged."""
        cache = self._cache
        key = place = token_keys(tokens[:held], 1, self._salt)[-1]
        first = await cache.ask(lambda: cache.client.read(cache.name, [place], kv_group=GROUP))
        if not first.matched:
            return None
        size, count, right = WHOLE_HEAD.unpack_from(first.data)
        if not size:
            key = right
            first = await cache.client.read(cache.name, [key], kv_group=GROUP)
            if not first.matched:  # the next state with this checkpoint takes its place
                await cache.client.delete(cache.name, place, kv_group=GROUP)
                return None
            size, count, right = WHOLE_HEAD.unpack_from(first.data)
        keys = _piece_keys(key, WHOLE_HEAD.size + size)[1:] if size <= MAX_WHOLE_BYTES else []
        data = bytes(first.data)
        if keys:
            rest = await cache.client.read(cache.name, keys, kv_group=GROUP)
            if rest.matched < len(keys):
                return None
            data += rest.data
        state = memoryview(data)[WHOLE_HEAD.size : WHOLE_HEAD.size + size]
        return Found(held, [state], count) if hashlib.sha256(state).digest() == right else None

    async def save(self, state: State | memoryview, tokens: Sequence[int]) -> int:
        """Stores the state unless it is there, and returns how many pieces were stored."""
        assert isinstance(state, memoryview)
        cache = self._cache
        places = token_keys(tokens, 1, self._salt)
        key = places[-1]
        if await cache.ask(lambda: cache.client.contains(cache.name, [key], kv_group=GROUP)) != ".":
            return 0
        data = WHOLE_HEAD.pack(len(state), len(tokens), hashlib.sha256(state).digest()) + state
        keys = _piece_keys(key, len(data))
        data += bytes(-len(data) % PIECE_BYTES)
        # The first piece comes last, because it is what a search finds.
        for number in reversed(range(len(keys))):
            piece = memoryview(data)[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
            await cache.client.put(cache.name, keys[number], piece, kv_group=GROUP)
        link = WHOLE_HEAD.pack(0, len(tokens), key).ljust(PIECE_BYTES, b"\0")
        for at in checkpoints_of(state):
            if 0 < at < len(tokens):
                await cache.client.put(cache.name, places[at - 1], link, kv_group=GROUP)
        return len(keys)


class _Cache:
    """A cache that is made when it is needed, also after a server lost it."""

    def __init__(self, client: AsyncClient, name: str, config: CacheConfig | None) -> None:
        """config: None if the cache exists already."""
        self.client = client
        self.name = name
        self._config = config
        self._is_made = config is None

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._ask(call)
        except UnknownCache:
            if self._config is None:
                raise
            self._is_made = False
            return await self._ask(call)
        except CairnError:
            self._is_made = self._config is None
            raise

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        if not self._is_made and self._config is not None:
            await self.client.make_cache(self.name, self._config)
            self._is_made = True
        return await call()


def _piece_keys(key: bytes, size: int) -> list[bytes]:
    """The keys of the pieces of a whole state, the first of which is `key`."""
    pieces = -(-size // PIECE_BYTES)
    return [key, *(hashlib.sha256(key + struct.pack("<I", number)).digest() for number in range(1, pieces))]
