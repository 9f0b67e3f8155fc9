"""Reads and writes blocks by key, one or many at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cairn.calls import _parts as parts
from cairn.http import Buffer, Call, Request, Response, flat, target
from cairn.model import (
    MAX_KEYS,
    BlocksRead,
    CacheControl,
    Commit,
    IfExists,
    Key,
    Put,
    Reuse,
    Tier,
    key_hex,
    key_list,
    keys_hex,
)


def put(
    cache: str,
    key: Key,
    data: Buffer,
    *,
    parent: Key | None = None,
    tier: Tier | None = None,
    ttl_ms: int | None = None,
    priority: int | None = None,
    metadata: dict[str, Any] | None = None,
    if_exists: IfExists | None = None,
    reuse: Reuse | None = None,
    session: str | None = None,
    cache_control: CacheControl | None = None,
    kv_group: str | None = None,
    shard: int | None = None,
    shards: int | None = None,
) -> Call[Put]:
    """Stores one block, whole and in canonical order, or one of `shards` equal parts of it, from 0 on, as `shard`.
    Until the other parts are there the status is `pending`. If the key exists, the first block stays and the status is
    `duplicate`; with `if_exists="error"` this raises Exists.

    ttl_ms: the block is dropped after this time. priority: higher stays longer.
    reuse: when the block will be used next. session: the conversation it belongs to.
    cache_control: pins the block.
    kv_group: the block's KV group, in a cache that has several.
    """
    query: dict[str, object] = {
        "parent": None if parent is None else key_hex(parent),
        "tier": tier,
        "ttl_ms": ttl_ms,
        "priority": priority,
        "metadata": None if metadata is None else json.dumps(metadata),
        "if_exists": if_exists,
        **parts.hint_query(reuse, session),
        "cache_control": None if cache_control is None else json.dumps(cache_control),
        "kv_group": kv_group,
        "shard": shard,
        "shards": shards,
    }
    return parts.put_bytes(_path(cache, key, query), data, parts.into(Put))


def get(
    cache: str,
    key: Key,
    *,
    layer: int | None = None,
    outer: int | None = None,
    kv_group: str | None = None,
    shard: int | None = None,
    shards: int | None = None,
) -> Call[bytes]:
    """A block's bytes in canonical order, or one piece (`layer`, `outer`) or part (`shard` of `shards`) of it. In a
    cache with KV groups, `kv_group` names the block's. Raises UnknownKey if the cache does not hold it."""
    query: dict[str, object] = {"layer": layer, "outer": outer, "kv_group": kv_group}
    query |= {"shard": shard, "shards": shards}
    return parts.get(_path(cache, key, query), parts.raw)


def has(cache: str, key: Key, *, kv_group: str | None = None) -> Call[bool]:
    """Whether the cache holds a key now. In a cache with KV groups, `kv_group` names the block's. The block is not
    pinned: it may be evicted at any time."""
    # The answer to HEAD has no body, so a 404 may mean the key or the cache.
    request = Request("HEAD", _path(cache, key, {"kv_group": kv_group}), idempotent=True)
    return Call(request, lambda response: response.status == 200)


def delete(cache: str, key: Key, *, kv_group: str | None = None) -> Call[None]:
    """Drops a key from every tier. In a cache with KV groups, drops it from one group, or from all groups that
    have it."""
    return parts.delete(_path(cache, key, {"kv_group": kv_group}), parts.nothing)


def read(
    cache: str,
    keys: Sequence[Key],
    *,
    kv_group: str | None = None,
    shard: int | None = None,
    shards: int | None = None,
    limit_s: float = math.inf,
) -> Call[BlocksRead]:
    """The blocks of the longest prefix of `keys` that the cache holds, or the same part of each (`shard` of
    `shards`). In a cache with KV groups, `kv_group` names theirs, and the other groups do not count. Only the first
    65,536 keys are sent.

    limit_s: raises TimedOut after this time, if it is less than the client's timeout.
    """

    def blocks(response: Response) -> BlocksRead:
        return BlocksRead(parts.number_in(response, "cairn-matched"), memoryview(response.body))

    path = target("v1", "caches", cache, "read", query={"shard": shard, "shards": shards})
    names = keys_hex(key_list(keys, MAX_KEYS))
    call = parts.post(path, parts.fields(keys=names, kv_group=kv_group), blocks, idempotent=True)
    return replace(call, limit_s=limit_s)


def write(
    cache: str,
    keys: Sequence[Key],
    data: Sequence[Buffer],
    *,
    parent: Key | None = None,
    parents: Sequence[Key | None] | None = None,
    tier: Tier | None = None,
    ttl_ms: int | None = None,
    priority: int | None = None,
    metadata: dict[str, Any] | None = None,
    if_exists: IfExists | None = None,
    reuse: Reuse | None = None,
    session: str | None = None,
    cache_control: CacheControl | None = None,
    kv_group: str | None = None,
    shard: int | None = None,
    shards: int | None = None,
) -> Call[Commit]:
    """Stores blocks, all or none. `data` is the blocks' bytes, cut into any pieces, or those of the same part of
    each (`shard` of `shards`). Without `parents` the keys are
    one prefix after `parent`: each is the parent of the next. In `parents`, None means no parent. All other
    options apply to every block, as for `put`."""
    header = parts.fields(
        keys=keys_hex(keys),
        parent=None if parent is None else key_hex(parent),
        parents=None if parents is None else [None if one is None else key_hex(one) for one in parents],
        tier=tier,
        ttl_ms=ttl_ms,
        priority=priority,
        metadata=metadata,
        if_exists=if_exists,
        reuse=reuse,
        session=session,
        cache_control=cache_control,
        kv_group=kv_group,
    )
    text = json.dumps(header).encode()
    pieces = [flat(piece, "a piece of the data") for piece in data]
    body: tuple[Buffer, ...] = (struct.pack("<I", len(text)) + text, *pieces)
    path = target("v1", "caches", cache, "write", query={"shard": shard, "shards": shards})
    return Call(Request("POST", path, (parts.BYTES,), body), parts.into(Commit))


def _path(cache: str, key: Key, query: dict[str, object]) -> str:
    return target("v1", "caches", cache, "keys", key_hex(key), query=query)
