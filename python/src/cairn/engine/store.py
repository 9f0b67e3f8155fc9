"""Where a worker's blocks go: a mapped tier of a server on this host, or a server over HTTP.

Both give rows: the memory of one block each, in the block's canonical order, that an engine copies from or to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cairn.client import Client
from cairn.engine.hints import NO_HINT, Hint
from cairn.engine.page_tables import fill_ahead
from cairn.errors import CairnError, UnknownCache
from cairn.model import CacheConfig
from cairn.tier_map import Rows
from cairn.tier_view import ReadBlocks, TierView, WriteBlocks

Row = memoryview

# How long blocks that are read, or written to the disk, are waited for where a cache is cleared.
CLEAR_DEADLINE_S = 2.0
CLEAR_PAUSE_S = 0.02


class WrongBlocks(CairnError):
    """A cache whose blocks are not the engine's."""

    code = "wrong_blocks"


class ReadRows(Protocol):
    @property
    def rows(self) -> Sequence[Row]: ...

    def end(self) -> None:
        """LeaseLost where what was read does not count."""

    def release(self) -> None: ...


class WriteRows(Protocol):
    @property
    def rows(self) -> Sequence[Row]: ...

    def commit(self, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint = NO_HINT) -> int:
        """How many were new."""

    def release(self) -> None: ...


class Store(Protocol):
    """Every call may raise a CairnError, and ends within the client's time-out."""

    def has(self, keys: Sequence[bytes]) -> int:
        """How long the longest prefix that is there is now. Nothing keeps it there."""

    def read(self, keys: Sequence[bytes]) -> ReadRows:
        """The longest prefix that is there."""

    def write(self, count: int) -> WriteRows: ...


class HttpStore:
    """Over HTTP, for servers that are elsewhere."""

    def __init__(self, client: Client, cache: str, block_bytes: int) -> None:
        self._client = client
        self._cache = cache
        self._block_bytes = block_bytes

    def has(self, keys: Sequence[bytes]) -> int:
        return self._client.match(self._cache, keys, lease_ms=0).matched

    def read(self, keys: Sequence[bytes]) -> ReadRows:
        read = self._client.read(self._cache, keys)
        if len(read.data) != read.matched * self._block_bytes:
            raise CairnError(f"{len(read.data)} bytes for {read.matched} blocks of {self._block_bytes}")
        return _HttpRead(Rows(read.data, range(0, len(read.data), self._block_bytes), self._block_bytes))

    def write(self, count: int) -> WriteRows:
        return _HttpWrite(self._client, self._cache, bytearray(count * self._block_bytes), count)


class _HttpRead:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def end(self) -> None:
        """Bytes that came over HTTP are whole."""

    def release(self) -> None:
        self.rows = []


class _HttpWrite:
    def __init__(self, client: Client, cache: str, data: bytearray, count: int) -> None:
        size = len(data) // count
        self.rows: Sequence[Row] = Rows(memoryview(data), range(0, len(data), size), size)
        self._client = client
        self._cache = cache

    def commit(self, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint = NO_HINT) -> int:
        answer = self._client.write(
            *(self._cache, keys, list(self.rows)), parents=parents, reuse=hint.reuse, session=hint.session
        )
        return sum(one.status == "committed" for one in answer.blocks)

    def release(self) -> None:
        self.rows = []


class MappedStore:
    """In place. What does not lie in the mapped tier in time is read over HTTP."""

    def __init__(self, client: Client, cache: str, view: TierView, wait_ms: int) -> None:
        self._http = HttpStore(client, cache, view.block_bytes)
        self._view = view
        self._wait_ms = wait_ms

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
        """LeaseLost where the slots may be somebody else's by now."""
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
    """Makes the cache, or with no `config` takes the one that is there; maps its pinned tier where this host has
    it, block by block in one piece, and tells `adopt` of that memory. CacheExists where there is one of another
    shape."""
    info = client.cache(cache) if config is None else client.make_cache(cache, config)
    if info.block_bytes != block_bytes:
        raise WrongBlocks(f"the cache {cache} has blocks of {info.block_bytes} bytes, the engine of {block_bytes}")

    def mapped(memory: memoryview) -> None:
        fill_ahead(client, cache, memory)
        if adopt is not None:
            adopt(memory)

    if "pinned" in info.tiers and info.tiers["pinned"].layout == "fully_contiguous":
        try:
            view = TierView(client, cache, "pinned", on_map=mapped)
        except CairnError:
            pass  # another host, another PID namespace, or a token that may not map: over HTTP it goes too
        else:
            return MappedStore(client, cache, view, wait_ms)
    return HttpStore(client, cache, info.block_bytes)


def clear_caches(client: Client, caches: Iterable[str]) -> bool:
    """Drops every block; whether all are gone. Blocks that are read or moved stay, and are tried for a while."""
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
