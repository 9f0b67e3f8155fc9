"""A worker's store: a mapped tier of a server on this host, or a server over HTTP.

Both provide rows: the memory of one block each, in canonical order, to copy from or to. If a rank has a part of each
block, its row may have bytes of others between its layers, which must not be changed.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cairn.client import Client
from cairn.engine.hints import NO_HINT, Hint
from cairn.engine.page_tables import fill_ahead
from cairn.errors import CairnError, TimedOut, UnknownCache
from cairn.model import CacheConfig, CacheInfo, KvGroup
from cairn.tier_map import Rows
from cairn.tier_view import ReadBlocks, TierView, WriteBlocks

Row = memoryview

# While a cache is cleared: how long to wait for blocks that are being read or written to disk.
CLEAR_DEADLINE_S = 2.0
CLEAR_PAUSE_S = 0.02


# A longer read takes several requests, one after the other. From a disk of 2 MB/s such a request ends within a
# client's timeout of 5 s, and what came before a limit is of use.
READ_BYTES = 8 << 20


class WrongBlocks(CairnError):
    """A cache whose block size is not the engine's."""

    code = "wrong_blocks"


class TooSlow(CairnError):
    """Blocks did not arrive within the limit. The server is well."""

    code = "too_slow"


class ReadRows(Protocol):
    @property
    def rows(self) -> Sequence[Row]: ...

    def end(self) -> None:
        """Raises LeaseLost if what was read must be discarded."""

    def release(self) -> None: ...


class WriteRows(Protocol):
    @property
    def rows(self) -> Sequence[Row]: ...

    def commit(self, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint = NO_HINT) -> int:
        """Returns how many blocks were new."""

    def release(self) -> None: ...


class Store(Protocol):
    """Every call may raise a CairnError and ends within the client's timeout."""

    def of(self, group: int) -> Store:
        """The blocks of one KV group, by its number."""

    def has(self, keys: Sequence[bytes]) -> int:
        """The length of the longest prefix that exists now. It is not pinned."""

    def read(self, keys: Sequence[bytes], limit_s: float = math.inf) -> ReadRows:
        """The longest prefix that exists, without blocks that do not arrive within `limit_s`. Raises TooSlow if it
        cannot tell which those are."""

    def write(self, count: int) -> WriteRows: ...


@dataclass(frozen=True)
class Part:
    """The part of each block that a rank of an engine has: one of `shards` equal ranges of the KV heads."""

    shard: int | None
    shards: int | None

    @property
    def count(self) -> int:
        """How many of it a block has."""
        return self.shards or 1


WHOLE = Part(None, None)


class HttpStore:
    """Copies blocks over HTTP, for servers on other hosts."""

    def __init__(
        self, client: Client, cache: str, block_bytes: int, kv_group: str | None = None, part: Part | None = None
    ) -> None:
        """block_bytes: of the part, if there is one."""
        self._client = client
        self._cache = cache
        self._block_bytes = block_bytes
        self._kv_group = kv_group
        self._part = part or WHOLE

    def of(self, group: int) -> Store:
        return self

    def has(self, keys: Sequence[bytes]) -> int:
        return self._client.match(self._cache, keys, lease_ms=0, kv_group=self._kv_group).matched

    def read(self, keys: Sequence[bytes], limit_s: float = math.inf) -> ReadRows:
        give_up_at = time.monotonic() + limit_s
        rows: Sequence[Row] = []
        size = max(READ_BYTES // self._block_bytes, 1)
        for begin in range(0, len(keys), size):
            piece = keys[begin : begin + size]
            try:
                more = self._read(piece, give_up_at - time.monotonic())
            except TooSlow:
                if not rows:
                    raise
                break
            rows = [*rows, *more] if rows else more
            if len(more) < len(piece):
                break
        return _HttpRead(rows)

    def _read(self, keys: Sequence[bytes], limit_s: float) -> Sequence[Row]:
        try:
            read = self._client.read(
                self._cache,
                keys,
                kv_group=self._kv_group,
                shard=self._part.shard,
                shards=self._part.shards,
                limit_s=max(limit_s, 0.0),
            )
        except TimedOut as error:
            if limit_s >= self._client.timeout:
                raise
            raise TooSlow(f"{len(keys)} blocks did not arrive within {limit_s:.2f} s") from error
        if len(read.data) != read.matched * self._block_bytes:
            raise CairnError(f"{len(read.data)} bytes for {read.matched} blocks of {self._block_bytes}")
        return Rows(read.data, range(0, len(read.data), self._block_bytes), self._block_bytes)

    def write(self, count: int) -> WriteRows:
        data = bytearray(count * self._block_bytes)
        return _HttpWrite(self._client, self._cache, data, count, self._kv_group, self._part)


class _HttpRead:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def end(self) -> None:
        """What was received over HTTP is always valid."""

    def release(self) -> None:
        self.rows = []


class _HttpWrite:
    def __init__(
        self,
        client: Client,
        cache: str,
        data: bytearray,
        count: int,
        kv_group: str | None,
        part: Part,
    ) -> None:
        size = len(data) // count
        self.rows: Sequence[Row] = Rows(memoryview(data), range(0, len(data), size), size)
        self._client = client
        self._cache = cache
        self._kv_group = kv_group
        self._part = part

    def commit(self, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint = NO_HINT) -> int:
        answer = self._client.write(
            self._cache,
            keys,
            list(self.rows),
            parents=parents,
            reuse=hint.reuse,
            session=hint.session,
            kv_group=self._kv_group,
            shard=self._part.shard,
            shards=self._part.shards,
        )
        return sum(one.status != "duplicate" for one in answer.blocks)

    def release(self) -> None:
        self.rows = []


class MappedStore:
    """Uses the mapped tier in place. Blocks that do not reach that tier in time are read over HTTP."""

    def __init__(
        self,
        http: HttpStore,
        view: TierView,
        wait_ms: int,
        *,
        kv_group: str | None = None,
        part: Part | None = None,
    ) -> None:
        self._part = part or WHOLE
        self._http = http
        self._view = view
        self._wait_ms = wait_ms
        self._kv_group = kv_group

    def of(self, group: int) -> Store:
        return self

    def has(self, keys: Sequence[bytes]) -> int:
        return self._http.has(keys)

    def read(self, keys: Sequence[bytes], limit_s: float = math.inf) -> ReadRows:
        began = time.monotonic()
        wait_ms = int(min(self._wait_ms, limit_s * 1000))
        held = self._view.read(keys, wait_ms=wait_ms, kv_group=self._kv_group)
        try:
            rows: Sequence[Row] = self._part_of(held.rows())
            left_s = limit_s - (time.monotonic() - began)
            if len(rows) < len(keys) and left_s > 0:
                with contextlib.suppress(TooSlow):
                    rows = [*rows, *self._http.read(keys[len(rows) :], left_s).rows]
        except BaseException:
            held.release()
            raise
        return _MappedRead(held, rows)

    def write(self, count: int) -> WriteRows:
        return _MappedWrite(self._view.write(count, kv_group=self._kv_group), self._part_of, self._part)

    def _part_of(self, rows: Rows) -> Rows:
        """The rows of the part of each block: from its first byte to its last, with those of other parts between its
        layers."""
        if self._part.shard is None:
            return rows
        layers = self._view.shape_of(self._kv_group).num_layers
        layer_bytes = rows.row_bytes // layers
        part_bytes = layer_bytes // self._part.count
        before = self._part.shard * part_bytes
        offsets = [offset + before for offset in rows.offsets]
        return Rows(rows.memory, offsets, (layers - 1) * layer_bytes + part_bytes)


class _MappedRead:
    def __init__(self, held: ReadBlocks, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._held = held

    def end(self) -> None:
        self._held.end()

    def release(self) -> None:
        self._held.release()


class _MappedWrite:
    def __init__(self, slots: WriteBlocks, part_of: Callable[[Rows], Rows], part: Part) -> None:
        self._slots = slots
        self._part_of = part_of
        self._part = part

    @property
    def rows(self) -> Sequence[Row]:
        """Raises LeaseLost if the server may have reused the slots."""
        return self._part_of(self._slots.rows())

    def commit(self, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint = NO_HINT) -> int:
        done = self._slots.commit(
            keys,
            parents=parents,
            reuse=hint.reuse,
            session=hint.session,
            shard=self._part.shard,
            shards=self._part.shards,
        )
        return sum(one.status != "duplicate" for one in done)

    def release(self) -> None:
        self._slots.release()


def open_store(
    client: Client,
    cache: str,
    config: CacheConfig | None,
    wait_ms: int,
    block_bytes: int,
    adopt: Callable[[memoryview], None] | None = None,
    part: Part | None = None,
) -> Store:
    """Makes the cache, or without a `config` uses an existing one. Maps its pinned tier if that is on this host
    and holds each block in one piece; otherwise blocks go over HTTP.

    wait_ms: how long reads wait for blocks that come up from lower tiers.
    adopt: called with the tier's memory each time it is mapped.
    part: of each block, if `block_bytes` are those of a part.

    Raises CacheExists if the cache has another configuration, and WrongBlocks if its blocks do not have
    `block_bytes`.
    """
    info = client.cache_info(cache) if config is None else client.make_cache(cache, config)
    part = part or WHOLE
    shards = 0 if info.layout is None else info.layout.shards or 0
    if part.shard is not None and (not shards or shards % part.count):
        raise WrongBlocks(f"the blocks of the cache {cache} have no {part.count} shards, one for each rank")
    block_bytes *= part.count
    if info.block_bytes != block_bytes:
        raise WrongBlocks(
            f"a block of the cache {cache} has {info.block_bytes} bytes, a block of the engine {block_bytes}"
        )

    http = HttpStore(client, cache, info.block_bytes // part.count, part=part)
    view = _view_of(client, info, adopt)
    return http if view is None else MappedStore(http, view, wait_ms, part=part)


def _view_of(client: Client, cache: CacheInfo, adopt: Callable[[memoryview], None] | None) -> TierView | None:
    """The cache's pinned tier. None if it has none whose blocks are in one piece, or if it cannot be mapped: it is
    on another host or in another PID namespace, or the token may not map it."""

    def mapped(memory: memoryview) -> None:
        fill_ahead(client, cache.name, memory)
        if adopt is not None:
            adopt(memory)

    if "pinned" in cache.tiers and cache.tiers["pinned"].layout == "fully_contiguous":
        with contextlib.suppress(CairnError):
            return TierView(client, cache.name, "pinned", on_map=mapped)
    return None


class GroupStore:
    """A cache with KV groups: a store for each of them."""

    def __init__(self, client: Client, cache: str, groups: Sequence[Store]) -> None:
        """groups: in the order of their numbers."""
        self._client = client
        self._cache = cache
        self._of = groups

    def of(self, group: int) -> Store:
        return self._of[group]

    def has(self, keys: Sequence[bytes]) -> int:
        return self._client.match(self._cache, keys, lease_ms=0).matched

    def read(self, keys: Sequence[bytes], limit_s: float = math.inf) -> ReadRows:
        raise TypeError("blocks of a cache with KV groups are read group by group")

    def write(self, count: int) -> WriteRows:
        raise TypeError("blocks of a cache with KV groups are written group by group")


def open_group_store(
    client: Client,
    cache: str,
    config: CacheConfig | None,
    wait_ms: int,
    groups: Sequence[KvGroup],
    key_tokens: int,
    adopt: Callable[[memoryview], None] | None = None,
) -> Store:
    """Like `open_store`, for a cache with KV groups. Raises CacheExists if the cache has another configuration,
    and WrongBlocks if it has other groups."""
    info = client.cache_info(cache) if config is None else client.make_cache(cache, config)
    own, its = (
        [(one.name, one.kind, one.window_tokens, one.layout.page_size, one.layout.block_bytes) for one in given]
        for given in (groups, info.kv_groups)
    )
    if own != its or info.block_tokens != key_tokens:
        raise WrongBlocks(
            f"the cache {cache} has {info.block_tokens} tokens a key and the KV groups {its}; "
            f"the engine has {key_tokens} and {own}"
        )
    view = _view_of(client, info, adopt)

    def store_of(group: KvGroup) -> Store:
        http = HttpStore(client, cache, group.layout.block_bytes, group.name)
        return http if view is None else MappedStore(http, view, wait_ms, kv_group=group.name)

    return GroupStore(client, cache, [store_of(group) for group in groups])


def clear_caches(client: Client, caches: Iterable[str]) -> bool:
    """Drops every block. Returns whether all are gone. Blocks that are being read or moved cannot be dropped; this
    retries for a while."""
    deadline = time.monotonic() + CLEAR_DEADLINE_S
    gone = True
    for cache in caches:
        try:
            while (left := client.clear(cache).leased) > 0 and time.monotonic() < deadline:
                time.sleep(CLEAR_PAUSE_S)
        except UnknownCache:
            continue
        gone = gone and left == 0
    return gone
