"""The life of a block: match, allocate, write, commit, renew, release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cairn import packed
from cairn.calls import _parts as parts
from cairn.decode import decode, encode
from cairn.http import Buffer, Call, Request, Response, target
from cairn.model import (
    Allocation,
    Commit,
    Handle,
    Key,
    Lease,
    Match,
    NewBlock,
    Tier,
    key_hex,
)

PACKED = ("Accept", "application/octet-stream")


def match(
    cache: str,
    keys: Sequence[Key],
    *,
    lease_ms: int | None = None,
    onboard: Tier | None = None,
    wait_ms: int | None = None,
    shared: bool | None = None,
) -> Call[Match]:
    """The longest prefix of `keys` that is there, pinned for `lease_ms` (the cache's default where it is left
    out; 0 looks without pinning). With `onboard` the blocks are brought up to that tier first; `wait_ms` bounds
    the wait for it, and for what comes from a shared tier, which is not asked where `shared` is False."""
    path = ("v1", "caches", cache, "match")
    keys = list(keys)  # blocks name them when they are looked at
    together = packed.packed_keys(keys) if onboard is None and not wait_ms else None

    def read(response: Response) -> Match:
        if response.content_type == PACKED[1]:
            return packed.read_match(response.body, keys, response.memory_id)
        return replace(decode(Match, parts.document(response)), memory_id=response.memory_id)

    if together is None:
        names = [key_hex(key) for key in keys]
        body = parts.fields(keys=names, lease_ms=lease_ms, onboard=onboard, wait_ms=wait_ms, shared=shared)
        return parts.post(target(*path), body, read, wait_ms=wait_ms, idempotent=lease_ms == 0)
    length, joined = together
    where = target(*path, query={"key_bytes": length, "lease_ms": lease_ms, "shared": shared})
    return Call(Request("POST", where, (parts.BYTES, PACKED), (joined,), idempotent=lease_ms == 0), read)


def match_tokens(
    cache: str,
    tokens: Sequence[int],
    *,
    salt: str | None = None,
    lease_ms: int | None = None,
    onboard: Tier | None = None,
    wait_ms: int | None = None,
) -> Call[Match]:
    """The same by tokens: the server makes the keys (see `cairn.keys.token_keys`)."""
    body = parts.fields(tokens=tokens, salt=salt, lease_ms=lease_ms, onboard=onboard, wait_ms=wait_ms)
    path = target("v1", "caches", cache, "match")
    return parts.post(path, body, parts.into(Match), wait_ms=wait_ms, idempotent=lease_ms == 0)


def allocate(
    cache: str,
    count: int,
    *,
    tier: Tier | None = None,
    lease_ms: int | None = None,
    priority: int | None = None,
) -> Call[Allocation]:
    """Slots for new blocks, all of them or NoCapacity. Left out, the tier is the cache's highest."""
    body = parts.fields(count=count, tier=tier, lease_ms=lease_ms, priority=priority)

    def read(response: Response) -> Allocation:
        if response.content_type == PACKED[1]:
            return packed.read_allocation(response.body, response.memory_id)
        return replace(decode(Allocation, parts.document(response)), memory_id=response.memory_id)

    return parts.post(target("v1", "caches", cache, "allocate"), body, read, headers=(PACKED,))


def write_slot(
    cache: str,
    handle: Handle,
    lease: str,
    data: Buffer,
    *,
    layer: int | None = None,
    outer: int | None = None,
) -> Call[None]:
    """Writes an allocated slot over HTTP: a whole block in canonical order, or one piece of it."""
    where = target(
        *("v1", "caches", cache, "slots", handle.tier, str(handle.slot), "data"),
        query={"generation": handle.generation, "lease": lease, "layer": layer, "outer": outer},
    )
    return parts.put_bytes(where, data, parts.nothing)


def commit(cache: str, lease: str, blocks: Sequence[NewBlock], *, release: bool = False) -> Call[Commit]:
    """Gives written slots their keys. With `release` the lease ends with it."""
    body: dict[str, Any] = {"lease": lease, "blocks": [_new_block(block) for block in blocks]}
    if release:
        body["release"] = True
    return parts.post(target("v1", "caches", cache, "commit"), body, parts.into(Commit))


def renew(lease: str, lease_ms: int) -> Call[Lease]:
    """The lease now ends `lease_ms` from here."""
    path = target("v1", "leases", lease, "renew")
    return parts.post(path, {"lease_ms": lease_ms}, parts.into(Lease), idempotent=True)


def release(lease: str, blocks: Sequence[Handle] | None = None, *, to_lease: str | None = None) -> Call[int]:
    """Gives blocks up, or with none named the whole lease; how many were given up. With `to_lease` the blocks
    that are named go to that other lease instead."""
    if blocks is None:
        return parts.delete(target("v1", "leases", lease), _released)
    body = parts.fields(blocks=[_handle(block) for block in blocks], to_lease=to_lease)
    return parts.post(target("v1", "leases", lease, "release"), body, _released)


def _handle(handle: Handle) -> dict[str, Any]:
    return {"tier": handle.tier, "slot": handle.slot, "generation": handle.generation}


def _new_block(block: NewBlock) -> dict[str, Any]:
    body = _handle(block.handle)
    body["key"] = key_hex(block.key)
    if block.parent is not None:
        body["parent"] = key_hex(block.parent)
    for name in ("metadata", "ttl_ms", "priority", "if_exists"):
        if (value := getattr(block, name)) is not None:
            body[name] = encode(value)
    return body


def _released(response: Response) -> int:
    return decode(dict[str, int], parts.document(response))["released"]
