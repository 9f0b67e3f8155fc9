"""Caches, their content, and mapping a tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cairn.calls import _parts as parts
from cairn.decode import decode, encode
from cairn.http import Call, Response, target
from cairn.model import (
    BlockPage,
    CacheChange,
    CacheConfig,
    CacheInfo,
    Evicted,
    Key,
    LeasePage,
    MissRatio,
    PendingPage,
    Tier,
    TierMemory,
    key_hex,
    keys_hex,
)


def make_cache(cache: str, config: CacheConfig) -> Call[CacheInfo]:
    """Makes a cache, or returns it if it exists with the same configuration. Raises CacheExists if it differs."""
    return parts.put(target("v1", "caches", cache), encode(config), parts.into(CacheInfo))


def caches() -> Call[list[CacheInfo]]:
    """The caches that this token may use."""
    return parts.get(target("v1", "caches"), parts.listed("caches", CacheInfo))


def cache_info(cache: str) -> Call[CacheInfo]:
    """One cache's shape and counts."""
    return parts.get(target("v1", "caches", cache), parts.into(CacheInfo))


def drop_cache(cache: str, *, force: bool = False) -> Call[None]:
    """Drops a cache. Raises Leased if anyone holds blocks of it, unless `force` is set."""
    return parts.delete(target("v1", "caches", cache, query={"force": force or None}), parts.nothing)


def change_cache(cache: str, change: CacheChange) -> Call[CacheInfo]:
    """Changes settings of a cache while it is in use. A tier that shrinks keeps the blocks that still fit."""
    body = encode(change)
    tiers: dict[str, dict[str, int]] = {}
    for unit in ("num_blocks", "size_bytes"):
        for tier, size in body.pop(unit).items():
            tiers.setdefault(tier, {})[unit] = size
    if tiers:
        body["tiers"] = tiers
    return parts.patch(target("v1", "caches", cache), body, parts.into(CacheInfo))


def leases(cache: str, *, limit: int | None = None, cursor: str | None = None) -> Call[LeasePage]:
    """The leases that hold blocks of a cache, one page at a time."""
    query: dict[str, object] = {"limit": limit, "cursor": cursor}
    return parts.get(target("v1", "caches", cache, "leases", query=query), parts.into(LeasePage))


def pending(cache: str, *, limit: int | None = None, cursor: str | None = None) -> Call[PendingPage]:
    """The blocks that are moved or copied to another tier, or wait for that, one page at a time."""
    query: dict[str, object] = {"limit": limit, "cursor": cursor}
    return parts.get(target("v1", "caches", cache, "pending", query=query), parts.into(PendingPage))


def miss_ratio(cache: str, *, capacities: Sequence[int] = ()) -> Call[MissRatio]:
    """Estimates the cache's hit rate at other sizes: `capacities`, in blocks, by default a quarter to four times
    its own."""
    query: dict[str, object] = {"capacities": ",".join(map(str, capacities)) or None}
    return parts.get(target("v1", "caches", cache, "miss_ratio", query=query), parts.into(MissRatio))


def evict(
    cache: str, keys: Sequence[Key], *, tier: Tier | None = None, kv_group: str | None = None
) -> Call[Evicted]:
    """Drops keys from one tier, or from all tiers. In a cache with KV groups, drops them from one group, or from
    all groups that have them."""
    body = parts.fields(keys=keys_hex(keys), tier=tier, kv_group=kv_group)
    return parts.post(target("v1", "caches", cache, "evict"), body, parts.into(Evicted))


def clear(cache: str, *, tier: Tier | None = None) -> Call[Evicted]:
    """Drops every block that nobody holds, from one tier or from all tiers."""
    path = target("v1", "caches", cache, "clear")
    return parts.post(path, parts.fields(tier=tier), parts.into(Evicted), idempotent=True)


def blocks(
    cache: str,
    *,
    tier: Tier | None = None,
    state: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[BlockPage]:
    """One page of a cache's slots. Pass the answer's `next_cursor` to get the next page."""
    query: dict[str, object] = {"tier": tier, "state": state, "limit": limit, "cursor": cursor}
    return parts.get(target("v1", "caches", cache, "blocks", query=query), parts.into(BlockPage))


def export(cache: str, tier: Tier) -> Call[tuple[TierMemory, list[int]]]:
    """How a process on this host maps a tier, and the open files for it, which the caller must close. Only a
    `Client` over a Unix socket receives open files."""

    def read(response: Response) -> tuple[TierMemory, list[int]]:
        memory = replace(decode(TierMemory, parts.document(response)), memory_id=response.memory_id)
        taken, response.files = response.files, []
        return memory, taken

    path = target("v1", "caches", cache, "tiers", tier, "export")
    return parts.post(path, None, read, idempotent=True)


def metadata(cache: str, key: Key, *, kv_group: str | None = None) -> Call[dict[str, Any]]:
    """A block's metadata. In a cache with KV groups, `kv_group` names the block's."""
    return parts.get(_metadata(cache, key, kv_group), parts.into(dict[str, Any]))


def set_metadata(cache: str, key: Key, metadata: dict[str, Any], *, kv_group: str | None = None) -> Call[None]:
    """Replaces a block's metadata, which may have at most 4 KiB as JSON. In a cache with KV groups, `kv_group`
    names the block's."""
    return parts.put(_metadata(cache, key, kv_group), metadata, parts.nothing)


def _metadata(cache: str, key: Key, kv_group: str | None) -> str:
    return target("v1", "caches", cache, "keys", key_hex(key), "metadata", query={"kv_group": kv_group})
