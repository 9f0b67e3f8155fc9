"""Caches, what is in them, and how a tier is mapped."""

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
)


def make_cache(cache: str, config: CacheConfig) -> Call[CacheInfo]:
    """Makes a cache, or finds it there with the same body; another shape is CacheExists."""
    return parts.put(target("v1", "caches", cache), encode(config), parts.into(CacheInfo))


def caches() -> Call[list[CacheInfo]]:
    """Every cache that the token may touch."""
    return parts.get(target("v1", "caches"), parts.listed("caches", CacheInfo))


def cache(cache: str) -> Call[CacheInfo]:
    """One cache's shape and counts."""
    return parts.get(target("v1", "caches", cache), parts.into(CacheInfo))


def drop_cache(cache: str, *, force: bool = False) -> Call[None]:
    """Drops a cache; Leased while somebody holds blocks of it, unless by force."""
    return parts.delete(target("v1", "caches", cache, query={"force": force or None}), parts.nothing)


def change_cache(cache: str, change: CacheChange) -> Call[CacheInfo]:
    """Changes what may change while a cache is used; of a tier that becomes smaller what still fits stays."""
    body = encode(change)
    sizes = body.pop("num_blocks")
    if sizes:
        body["tiers"] = {tier: {"num_blocks": count} for tier, count in sizes.items()}
    return parts.patch(target("v1", "caches", cache), body, parts.into(CacheInfo))


def leases(cache: str, *, limit: int | None = None, cursor: str | None = None) -> Call[LeasePage]:
    """Who holds blocks of a cache."""
    query: dict[str, object] = {"limit": limit, "cursor": cursor}
    return parts.get(target("v1", "caches", cache, "leases", query=query), parts.into(LeasePage))


def pending(cache: str, *, limit: int | None = None, cursor: str | None = None) -> Call[PendingPage]:
    """Blocks that are in a lower tier soon, and not yet."""
    query: dict[str, object] = {"limit": limit, "cursor": cursor}
    return parts.get(target("v1", "caches", cache, "pending", query=query), parts.into(PendingPage))


def miss_ratio(cache: str, *, capacities: Sequence[int] = ()) -> Call[MissRatio]:
    """What the cache would find with room for so many blocks; without `capacities` at a quarter to four times its
    own."""
    query: dict[str, object] = {"capacities": ",".join(map(str, capacities)) or None}
    return parts.get(target("v1", "caches", cache, "miss_ratio", query=query), parts.into(MissRatio))


def evict(cache: str, keys: Sequence[Key], *, tier: Tier | None = None) -> Call[Evicted]:
    """Drops keys from a tier, or from all."""
    body = parts.fields(keys=[key_hex(key) for key in keys], tier=tier)
    return parts.post(target("v1", "caches", cache, "evict"), body, parts.into(Evicted))


def clear(cache: str, *, tier: Tier | None = None) -> Call[Evicted]:
    """Drops everything that nobody holds."""
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
    """One page of a cache's slots; its `next_cursor` asks for the next one."""
    query: dict[str, object] = {"tier": tier, "state": state, "limit": limit, "cursor": cursor}
    return parts.get(target("v1", "caches", cache, "blocks", query=query), parts.into(BlockPage))


def export(cache: str, tier: Tier) -> Call[tuple[TierMemory, list[int]]]:
    """How this host's processes map a tier, and the open files that came along: the caller's to close. They
    come over a Unix socket only, and to `Client` only."""

    def read(response: Response) -> tuple[TierMemory, list[int]]:
        memory = replace(decode(TierMemory, parts.document(response)), memory_id=response.memory_id)
        taken, response.files = response.files, []
        return memory, taken

    path = target("v1", "caches", cache, "tiers", tier, "export")
    return parts.post(path, None, read, idempotent=True)


def metadata(cache: str, key: Key) -> Call[dict[str, Any]]:
    """A block's metadata."""
    return parts.get(_metadata(cache, key), _object)


def set_metadata(cache: str, key: Key, metadata: dict[str, Any]) -> Call[None]:
    """Replaces a block's metadata: at most 4 KiB as JSON."""
    return parts.put(_metadata(cache, key), metadata, parts.nothing)


def _metadata(cache: str, key: Key) -> str:
    return target("v1", "caches", cache, "keys", key_hex(key), "metadata")


def _object(response: Response) -> dict[str, Any]:
    return decode(dict[str, Any], parts.document(response))
