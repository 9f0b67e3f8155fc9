"""The caches of one rank's pools.

Pools whose pages a prefix needs together share a cache, as its KV groups: its memory goes to the pools that need
it, and a state is evicted with the pages that it continues. Any other pool has a cache of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cairn.client import Client
from cairn.engine.access import Access, open_access, open_group_access
from cairn.engine.buffer_store import BufferStore
from cairn.engine.keys import Rank
from cairn.engine.options import MAX_ROW_VALUES, Options, Unsupported, flat_shape, value_bytes
from cairn.engine.report import Report
from cairn.errors import CairnError
from cairn.model import KvGroup, Shape
from cairn.sglang.pages import identity_of, page_bytes, page_tokens, rank_of, shared_identity_of

KV = "kv"
STATE = "mamba"
# SGLang's names for pools that can share a cache, and the kind of layers that each is for.
KINDS = {
    KV: "full",
    "indexer": "full",
    "draft": "full",
    "draft_indexer": "full",
    "swa": "window",
    "auxiliary_swa": "window",
    "draft_swa": "window",
    STATE: "state",
}
# SGLang resumes at the longest prefix that all ranks have. Ranks differ only in what was stored or evicted last.
MAX_ENDS = 8
# Limits a search among windows of which parts were evicted. A step takes a fraction of a millisecond.
MAX_STEPS = 64


@dataclass(frozen=True)
class _Shared:
    """A cache with KV groups, one for each of these pools."""

    name: str
    access: Access
    pools: tuple[str, ...]  # in the order of the groups


class PoolCaches:
    """Safe from several threads once the pools are added."""

    def __init__(self, client: Client, options: Options, config: Any, report: Report, *, in_place: bool) -> None:
        """config: SGLang's `HiCacheStorageConfig`. in_place: whether SGLang passes pages of keys and values as
        indices into its pool."""
        self._client = client
        self._options = options
        self._config = config
        self._report = report
        self._in_place = in_place
        self._pools: dict[str, Any] = {}
        self._blocks: dict[str, BufferStore] = {}
        self._shared: _Shared | None = None

    def add(self, name: str, pool: Any) -> None:
        self._pools[name] = pool

    def pool(self, name: str) -> Any:
        return self._pools[name]

    def open(self) -> None:
        """Makes the caches of the pools so far. Raises Unsupported if a pool's pages cannot be stored, or if the
        server refuses a cache or has another one of its name."""
        sharing = self._sharing()
        if len(sharing) > 1 and self._shared is None:
            self._open_shared(sharing)
        for name in self._pools:
            self.blocks(name)

    def blocks(self, name: str) -> BufferStore:
        """A pool's pages. Opens its cache if the pool was added after `open`."""
        if name not in self._blocks:
            size = self._page_bytes(name)
            rank = self._rank(name)
            ranks = rank.tensor_size * rank.pipeline_size
            config = self._options_for((name,)).cache_config(flat_shape(size), ranks)
            access = open_access(self._client, self._own_name(name), config, size, self._report)
            self._blocks[name] = BufferStore(access, size, self._report)
        return self._blocks[name]

    def follows(self, name: str) -> bool:
        """Whether a pool's pages must be stored after the pages of keys and values that they belong to. A window
        or a state without them is the first that is evicted, and is not written to a full disk."""
        return self._shared is not None and name in self._shared.pools and KINDS[name] != "full"

    def ends(self, keys: Sequence[bytes], needed: Mapping[str, int]) -> list[int]:
        """The lengths of prefixes of `keys` after which each of these pools has its last `needed` pages, in
        ascending order. The pools of all pages must have `keys`. May leave out shorter ones."""
        usable = set(range(1, len(keys) + 1))
        alone = dict(needed)
        shared = self._shared
        # The server answers for all windows and states of the cache.
        if (
            shared is not None
            and (asked := set(needed) & set(shared.pools))
            and asked.issuperset(name for name in shared.pools if KINDS[name] != "full")
        ):
            usable &= set(self._ends_in(shared, keys, {name: alone.pop(name) for name in asked}))
        for name, pages in alone.items():
            there = self.blocks(name).each(keys, max_gaps=len(keys))
            usable &= {end for end in usable if all(there[max(end - pages, 0) : end])}
        return sorted(usable)

    def names(self) -> list[str]:
        """Of the caches."""
        shared = self._shared
        alone = [self._own_name(name) for name in self._pools if shared is None or name not in shared.pools]
        return alone if shared is None else [shared.name, *alone]

    def close(self) -> None:
        for blocks in self._blocks.values():
            blocks.close()

    def _ends_in(self, shared: _Shared, keys: Sequence[bytes], needed: Mapping[str, int]) -> list[int]:
        """Goes down from the longest prefix. The server finds the next one with its state and with the last page
        of each window; the other pages of the windows are looked up."""
        ends: list[int] = []
        end = len(keys)
        for _ in range(MAX_STEPS):
            end = self._matched(shared, keys[:end])
            if end == 0 or len(ends) == MAX_ENDS:
                break
            longest = end
            for name, pages in needed.items():
                if pages > 1:
                    begin = max(end - pages, 0)
                    # No prefix that is longer than this, but shorter than `end`, has a whole window either.
                    longest = min(longest, begin + self.blocks(name).prefix(keys[begin:end]))
            if longest == end:
                ends.append(end)
                longest -= 1
            end = longest
        return ends

    def _matched(self, shared: _Shared, keys: Sequence[bytes]) -> int:
        if not keys:
            return 0

        def match(_: object) -> int:
            # The caller has found the pages of the full groups.
            return self._client.match(shared.name, keys, lease_ms=0, have=len(keys)).matched

        try:
            return shared.access.use(match)
        except CairnError as error:
            self._report.warn(f"a look-up failed: {error}")
            return 0

    def _sharing(self) -> tuple[str, ...]:
        """The pools that share a cache, in the order of their groups."""
        if KV not in self._pools:
            return ()
        rank, tokens = self._rank(KV), page_tokens(self._pools[KV])

        def shares(name: str) -> bool:
            if name not in KINDS or self._rank(name) != rank:
                return False
            if KINDS[name] == "state":
                return page_tokens(self._pools[name]) == 1
            inner, rest = divmod(self._page_bytes(name), tokens)
            return page_tokens(self._pools[name]) == tokens and not rest and inner <= MAX_ROW_VALUES

        names = [name for name in KINDS if name in self._pools and shares(name)]
        return tuple(names) if KV in names else ()

    def _open_shared(self, names: tuple[str, ...]) -> None:
        tokens, rank = page_tokens(self._pools[KV]), self._rank(KV)
        pools = {name: self._pools[name] for name in names}
        sizes = {name: self._page_bytes(name) for name in names}
        named = self._options.cache
        identity = shared_identity_of(self._config, pools, in_place=self._in_place, bytes_of=sizes)
        cache = identity.cache_name(rank) if named is None else f"{named}.{rank.label}"
        groups = [_kv_group(name, sizes[name], tokens) for name in names]
        ranks = rank.tensor_size * rank.pipeline_size
        config = self._options_for(names).group_cache_config(groups, tokens, ranks)
        access = open_group_access(self._client, cache, config, groups, tokens, self._report)
        self._shared = _Shared(cache, access, names)
        for number, name in enumerate(names):
            self._blocks[name] = BufferStore(access, sizes[name], self._report, number)

    def _options_for(self, names: Sequence[str]) -> Options:
        """Divides the sizes so that each cache has room for the same number of pages."""
        part = sum(self._page_bytes(name) for name in names)
        whole = sum(self._page_bytes(name) for name in self._pools)
        return dataclasses.replace(
            self._options,
            pinned_bytes=self._options.pinned_bytes * part // whole,
            disk_bytes=self._options.disk_bytes * part // whole,
        )

    def _own_name(self, name: str) -> str:
        if self._options.cache is not None:
            named = f"{self._options.cache}.{self._rank(name).label}"
            return named if name == KV else f"{named}.{name}"
        identity = identity_of(
            self._config,
            self._pools[name],
            name,
            in_place=self._is_in_place(name),
            pool_page_bytes=self._page_bytes(name),
        )
        return identity.cache_name(self._rank(name))

    def _page_bytes(self, name: str) -> int:
        try:
            return page_bytes(self._pools[name], in_place=self._is_in_place(name))
        except (NotImplementedError, ValueError) as error:
            raise Unsupported(f"CairnStorage does not support SGLang's pool {name} here: {error}") from error

    def _is_in_place(self, name: str) -> bool:
        # SGLang always passes indices for the other pools.
        return self._in_place or name != KV

    def _rank(self, name: str) -> Rank:
        # A state is not replicated, even if the latent is: each rank has its own.
        return rank_of(self._config, replicated=self._config.is_mla_model and name != STATE)


def _kv_group(name: str, size: int, tokens: int) -> KvGroup:
    kind = KINDS[name]
    if kind == "state":
        rows = flat_shape(size)
        return KvGroup(name, kind, Shape(rows.page_size, 1, 1, rows.inner_dim, rows.dtype_width_bytes))
    width = value_bytes(size // tokens)
    # SGLang tells the storage with each question how many pages a window has. One page is the least.
    return KvGroup(
        name, kind, Shape(1, 1, tokens, size // tokens // width, width), tokens if kind == "window" else None
    )
