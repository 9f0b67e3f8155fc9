"""A worker's store: a mapped tier of a server on this host, or a server over HTTP.

Both provide rows: the memory of one block each, in canonical order, to copy from or to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from cairn.client import Client
from cairn.engine.hints import NO_HINT, Hint
from cairn.engine.page_tables import fill_ahead
from cairn.errors import CairnError, UnknownCache
from cairn.model import CacheConfig, KvGroup
from cairn.tier_map import Rows
from cairn.tier_view import ReadBlocks, TierView, WriteBlocks

Row = memoryview

# While a cache is cleared: how long to wait for blocks that are being read or written to disk.
CLEAR_DEADLINE_S = 2.0
CLEAR_PAUSE_S = 0.02


class WrongBlocks(CairnError):
    """A cache whose block size is not the engine's."""

    code = "wrong_blocks"


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

    def read(self, keys: Sequence[bytes]) -> ReadRows:
        """The longest prefix that exists."""

    def write(self, count: int) -> WriteRows: ...


class HttpStore:
    """Copies blocks over HTTP, for servers on other hosts."""

    def __init__(self, client: Client, cache: str, block_bytes: int, kv_group: str | None = None) -> None:
        self._client = client
        self._cache = cache
        self._block_bytes = block_bytes
        self._kv_group = kv_group

    def of(self, group: int) -> Store:
        return self

    def has(self, keys: Sequence[bytes]) -> int:
        return self._client.match(self._cache, keys, lease_ms=0).matched

    def read(self, keys: Sequence[bytes]) -> ReadRows:
        read = self._client.read(self._cache, keys, kv_group=self._kv_group)
        if len(read.data) != read.matched * self._block_bytes:
            raise CairnError(f"{len(read.data)} bytes for {read.matched} blocks of {self._block_bytes}")
        return _HttpRead(Rows(read.data, range(0, len(read.data), self._block_bytes), self._block_bytes))

    def write(self, count: int) -> WriteRows:
        data = bytearray(count * self._block_bytes)
        return _HttpWrite(self._client, self._cache, data, count, self._kv_group)


class _HttpRead:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def end(self) -> None:
        """What was received over HTTP is always valid."""

    def release(self) -> None:
        self.rows = []


class _HttpWrite:
    def __init__(
        self, client: Client, cache: str, data: bytearray, count: int, kv_group: str | None = None
    ) -> None:
        size = len(data) // count
        self.rows: Sequence[Row] = Rows(memoryview(data), range(0, len(data), size), size)
        self._client = client
        self._cache = cache
        self._kv_group = kv_group

    def commit(self, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint = NO_HINT) -> int:
        answer = self._client.write(
            self._cache,
            keys,
            list(self.rows),
            parents=parents,
            reuse=hint.reuse,
            session=hint.session,
            kv_group=self._kv_group,
        )
        return sum(one.status == "committed" for one in answer.blocks)

    def release(self) -> None:
        self.rows = []


class MappedStore:
    """Uses the mapped tier in place. Blocks that do not reach that tier in time are read over HTTP."""

    def __init__(self, client: Client, cache: str, view: TierView, wait_ms: int) -> None:
        self._http = HttpStore(client, cache, view.block_bytes)
        self._view = view
        self._wait_ms = wait_ms

    def of(self, group: int) -> Store:
        return self

    def has(self, keys: Sequence[bytes]) -> int:
        return self._http.has(keys)

    def read(self, keys: Sequence[bytes]) -> ReadRows:
        held = self._view.read(keys, wait_ms=self._wait_ms)
        try:
            rows: Sequence[Row] = held.rows()
            if len(rows) < len(keys) and (more := self._http.read(keys[len(rows) :]).rows):
                rows = [*rows, *more]
        except BaseException:
            held.release()
            raise
        return _MappedRead(held, rows)

    def write(self, count: int) -> WriteRows:
        return _MappedWrite(self._view.write(count))


class _MappedRead:
    def __init__(self, held: ReadBlocks, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._held = held

    def end(self) -> None:
        self._held.end()

    def release(self) -> None:
        self._held.release()


class _MappedWrite:
    def __init__(self, slots: WriteBlocks) -> None:
        self._slots = slots

    @property
    def rows(self) -> Sequence[Row]:
        """Raises LeaseLost if the server may have reused the slots."""
        return self._slots.rows()

    def commit(self, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint = NO_HINT) -> int:
        done = self._slots.commit(keys, parents=parents, reuse=hint.reuse, session=hint.session)
        return sum(one.status == "committed" for one in done)

    def release(self) -> None:
        self._slots.release()


def open_store(
    client: Client,
    cache: str,
    config: CacheConfig | None,
    wait_ms: int,
    block_bytes: int,
    adopt: Callable[[memoryview], None] | None = None,
) -> Store:
    """Makes the cache, or without a `config` uses an existing one. Maps its pinned tier if that is on this host
    and holds each block in one piece; otherwise blocks go over HTTP.

    wait_ms: how long reads wait for blocks that come up from lower tiers.
    adopt: called with the tier's memory each time it is mapped.

    Raises CacheExists if the cache has another configuration, and WrongBlocks if its blocks do not have
    `block_bytes`.
    """
    info = client.cache(cache) if config is None else client.make_cache(cache, config)
    if info.block_bytes != block_bytes:
        raise WrongBlocks(
            f"a block of the cache {cache} has {info.block_bytes} bytes, a block of the engine {block_bytes}"
        )

    def mapped(memory: memoryview) -> None:
        fill_ahead(client, cache, memory)
        if adopt is not None:
            adopt(memory)

    if "pinned" in info.tiers and info.tiers["pinned"].layout == "fully_contiguous":
        try:
            view = TierView(client, cache, "pinned", on_map=mapped)
        except CairnError:
            pass  # another host, another PID namespace, or a token that may not map: use HTTP
        else:
            return MappedStore(client, cache, view, wait_ms)
    return HttpStore(client, cache, info.block_bytes)


class GroupStore:
    """A cache with KV groups, over HTTP: the server does not export such memory."""

    def __init__(self, client: Client, cache: str, block_bytes: Mapping[str, int]) -> None:
        """block_bytes: by the groups' names, in the order of their numbers."""
        self._client = client
        self._cache = cache
        self._of = [HttpStore(client, cache, size, name) for name, size in block_bytes.items()]

    def of(self, group: int) -> Store:
        return self._of[group]

    def has(self, keys: Sequence[bytes]) -> int:
        return self._client.match(self._cache, keys, lease_ms=0).matched

    def read(self, keys: Sequence[bytes]) -> ReadRows:
        raise TypeError("blocks of a cache with KV groups are read group by group")

    def write(self, count: int) -> WriteRows:
        raise TypeError("blocks of a cache with KV groups are written group by group")


def open_group_store(
    client: Client, cache: str, config: CacheConfig | None, groups: Sequence[KvGroup], key_tokens: int
) -> Store:
    """Makes the cache, or without a `config` uses an existing one. Raises CacheExists if the cache has another
    configuration, and WrongBlocks if it has other groups."""
    info = client.cache(cache) if config is None else client.make_cache(cache, config)
    own, its = (
        [(one.name, one.kind, one.window_tokens, one.layout.page_size, one.layout.block_bytes) for one in given]
        for given in (groups, info.kv_groups)
    )
    if own != its or info.block_tokens != key_tokens:
        raise WrongBlocks(
            f"the cache {cache} has {info.block_tokens} tokens a key and the KV groups {its}; "
            f"the engine has {key_tokens} and {own}"
        )
    return GroupStore(client, cache, {group.name: group.layout.block_bytes for group in groups})


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
