"""Blocks by their keys, one at a time or many at once."""

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
    """Stores one block, whole and in canonical order. The status of a key that was there is `duplicate`; with
    `if_exists="error"` that is Exists. `reuse` says when the block will be used next, `session` names the
    conversation that it is of."""
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
    """A block's bytes in canonical order, or one piece of them; UnknownKey where it is not there."""
    return parts.get(_path(cache, key, {"layer": layer, "outer": outer}), parts.raw)


def has(cache: str, key: Key) -> Call[bool]:
    """Whether a key is there now. Nothing keeps it there."""
    # A HEAD has no body that could name what is missing: the cache or the key.
    return Call(Request("HEAD", _path(cache, key, {}), idempotent=True), lambda response: response.status == 200)


def delete(cache: str, key: Key) -> Call[None]:
    """Drops a key from every tier."""
    return parts.delete(_path(cache, key, {}), parts.nothing)


def read(cache: str, keys: Sequence[Key]) -> Call[BlocksRead]:
    """The blocks of the longest prefix of `keys` that is there. Of more than 65,536 keys the first 65,536 are
    asked for."""

    def blocks(response: Response) -> BlocksRead:
        matched = response.headers.get("cairn-matched", "")
        if not matched.isdecimal():
            raise BadAnswer("the answer does not say how many blocks it has")
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
    """Stores blocks, all or none; `data` is the blocks' bytes in any pieces. Without `parents` the keys are one
    prefix behind `parent`, each the parent of the next; None is no parent. What else is given holds for all."""
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
