"""Reads and writes blocks by key, one or many at a time."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence
from typing import Any

from cairn.calls import _parts as parts
from cairn.errors import BadAnswer
from cairn.http import Buffer, Call, Request, Response, flat, target
from cairn.model import MAX_KEYS, BlocksRead, Commit, IfExists, Key, Put, Reuse, Tier, key_hex


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
) -> Call[Put]:
    """Stores one block, whole and in canonical order. If the key exists, the first block stays and the status is
    `duplicate`; with `if_exists="error"` this raises Exists.

    ttl_ms: the block is dropped after this time. priority: higher stays longer.
    reuse: when the block will be used next. session: the conversation it belongs to.
    """
    query: dict[str, object] = {
        "parent": None if parent is None else key_hex(parent),
        "tier": tier,
        "ttl_ms": ttl_ms,
        "priority": priority,
        "metadata": None if metadata is None else json.dumps(metadata),
        "if_exists": if_exists,
        **parts.hint_query(reuse, session),
    }
    return parts.put_bytes(_path(cache, key, query), data, parts.into(Put))


def get(cache: str, key: Key, *, layer: int | None = None, outer: int | None = None) -> Call[bytes]:
    """A block's bytes in canonical order, or one piece of it (`layer`, `outer`). Raises UnknownKey if the cache
    does not hold it."""
    return parts.get(_path(cache, key, {"layer": layer, "outer": outer}), parts.raw)


def has(cache: str, key: Key) -> Call[bool]:
    """Whether the cache holds a key now. The block is not pinned: it may be evicted at any time."""
    # The answer to HEAD has no body, so a 404 may mean the key or the cache.
    return Call(Request("HEAD", _path(cache, key, {}), idempotent=True), lambda response: response.status == 200)


def delete(cache: str, key: Key) -> Call[None]:
    """Drops a key from every tier."""
    return parts.delete(_path(cache, key, {}), parts.nothing)


def read(cache: str, keys: Sequence[Key]) -> Call[BlocksRead]:
    """The blocks of the longest prefix of `keys` that the cache holds. Only the first 65,536 keys are sent."""

    def blocks(response: Response) -> BlocksRead:
        matched = response.headers.get("cairn-matched", "")
        if not matched.isdecimal():
            raise BadAnswer("the answer does not say how many blocks it contains")
        return BlocksRead(int(matched), memoryview(response.body))

    path = target("v1", "caches", cache, "read")
    names = [key_hex(key) for key in itertools.islice(keys, MAX_KEYS)]
    return parts.post(path, {"keys": names}, blocks, idempotent=True)


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
) -> Call[Commit]:
    """Stores blocks, all or none. `data` is the blocks' bytes, cut into any pieces. Without `parents` the keys are
    one prefix after `parent`: each is the parent of the next. In `parents`, None means no parent. All other
    options apply to every block, as for `put`."""
    header = parts.fields(
        keys=[key_hex(key) for key in keys],
        parent=None if parent is None else key_hex(parent),
        parents=None if parents is None else [None if one is None else key_hex(one) for one in parents],
        tier=tier,
        ttl_ms=ttl_ms,
        priority=priority,
        metadata=metadata,
        if_exists=if_exists,
        reuse=reuse,
        session=session,
    )
    text = json.dumps(header).encode()
    pieces = [flat(piece, "a piece of the data") for piece in data]
    body: tuple[Buffer, ...] = (struct.pack("<I", len(text)) + text, *pieces)
    return Call(Request("POST", target("v1", "caches", cache, "write"), (parts.BYTES,), body), parts.into(Commit))


def _path(cache: str, key: Key, query: dict[str, object]) -> str:
    return target("v1", "caches", cache, "keys", key_hex(key), query=query)
