"""The life of a block: match, allocate, write, commit, renew, release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cairn import packed
from cairn.calls import _parts as parts
from cairn.decode import decode, encode
from cairn.http import Buffer, Call, Request, Response, target
from cairn.model import (
    MAX_KEYS,
    Allocation,
    CacheControl,
    CacheInfo,
    Commit,
    Handle,
    Hinted,
    Key,
    Lease,
    Match,
    NewBlock,
    Reuse,
    Tier,
    key_hex,
    key_list,
    keys_hex,
)

# The shortest timeout of a renewal, however short the lease is.
LEAST_RENEWAL_S = 5.0

PACKED = ("Accept", "application/octet-stream")
# Headers of a packed match in a cache with KV groups, and of one with `have`.
MATCHED, FULL_MATCHED, SHARED_MATCHED = "cairn-matched", "cairn-full-matched", "cairn-shared-matched"

# By the memory_id of their answers, which no other cache ever has: caches whose packed matches name KV groups.
_known_caches: dict[str, CacheInfo] = {}
MAX_KNOWN_CACHES = 1024


def match(
    cache: str,
    keys: Sequence[Key],
    *,
    lease_ms: int | None = None,
    onboard: Tier | None = None,
    wait_ms: int | None = None,
    shared: bool | None = None,
    reuse: Reuse | None = None,
    session: str | None = None,
    have: int | None = None,
    kv_group: str | None = None,
) -> Call[Match]:
    """Finds the longest prefix of `keys` that the cache holds, and pins it. Only the first 65,536 keys are sent.
    In a cache with KV groups the answer has the blocks of all groups.

    lease_ms: how long it stays pinned. None: the cache's default. 0: look only, pin nothing.
    onboard: first move the blocks up to this tier.
    wait_ms: the longest wait for that, and for blocks from a shared tier.
    shared: False does not ask the shared tier.
    reuse: when the matched blocks will be used next. session: the conversation they belong to.
    have: the caller has the full groups' blocks of this many leading keys. The cache need not hold them, and the
    answer does not list them. A cache of one group is a full group.
    kv_group: finds the keys in this KV group alone, each as one block of it.
    """
    path = ("v1", "caches", cache, "match")
    keys = key_list(keys, MAX_KEYS)  # the answer's blocks take their keys from this list
    together = packed.packed_keys(keys) if onboard is None and not wait_ms else None

    def read(response: Response) -> Match | Call[Match]:
        if response.content_type == PACKED[1] and kv_group is None and MATCHED in response.headers:
            return _group_match(cache, keys, response, in_json)
        if response.content_type == PACKED[1]:
            return packed.read_match(response.body, keys, response.memory_id, kv_group)
        return replace(decode(Match, parts.document(response)), memory_id=response.memory_id)

    def in_json() -> Call[Match]:
        names = keys_hex(keys)
        body = parts.fields(
            keys=names,
            lease_ms=lease_ms,
            onboard=onboard,
            wait_ms=wait_ms,
            shared=shared,
            reuse=reuse,
            session=session,
            have=have,
            kv_group=kv_group,
        )
        return parts.post(target(*path), body, read, wait_ms=wait_ms, idempotent=lease_ms == 0)

    if together is None:
        return in_json()
    length, joined = together
    query: dict[str, object] = {"key_bytes": length, "lease_ms": lease_ms, "shared": shared}
    query |= parts.hint_query(reuse, session) | {"have": have, "kv_group": kv_group}
    where = target(*path, query=query)
    return Call(Request("POST", where, (parts.BYTES, PACKED), (joined,), idempotent=lease_ms == 0), read)


def match_tokens(
    cache: str,
    tokens: Sequence[int],
    *,
    salt: str | None = None,
    lease_ms: int | None = None,
    onboard: Tier | None = None,
    wait_ms: int | None = None,
    reuse: Reuse | None = None,
    session: str | None = None,
    have: int | None = None,
) -> Call[Match]:
    """Like `match`, but the server computes the keys from the tokens (see `cairn.keys.token_keys`)."""
    body = parts.fields(
        tokens=tokens,
        salt=salt,
        lease_ms=lease_ms,
        onboard=onboard,
        wait_ms=wait_ms,
        reuse=reuse,
        session=session,
        have=have,
    )
    path = target("v1", "caches", cache, "match")
    return parts.post(path, body, parts.into(Match), wait_ms=wait_ms, idempotent=lease_ms == 0)


def allocate(
    cache: str,
    count: int | None = None,
    *,
    counts: Mapping[str, int] | None = None,
    tier: Tier | None = None,
    lease_ms: int | None = None,
    priority: int | None = None,
) -> Call[Allocation]:
    """Allocates `count` slots for new blocks, by default in the cache's highest tier. Raises NoCapacity if there
    is not room for all of them.

    counts: in a cache with KV groups, the number of blocks of each group, by its name, instead of `count`. The
    blocks of the answer are in the order of the cache's groups.
    """
    of_groups = None if counts is None else dict(counts)
    only_group = next(iter(counts)) if counts is not None and len(counts) == 1 else None
    body = parts.fields(count=count, counts=of_groups, tier=tier, lease_ms=lease_ms, priority=priority)

    def read(response: Response) -> Allocation:
        if response.content_type == PACKED[1]:
            return packed.read_allocation(response.body, response.memory_id, only_group)
        return replace(decode(Allocation, parts.document(response)), memory_id=response.memory_id)

    # A packed answer names the groups by number only, so the blocks must all be of one.
    headers = (PACKED,) if counts is None or only_group is not None else ()
    return parts.post(target("v1", "caches", cache, "allocate"), body, read, headers=headers)


def write_slot(
    cache: str,
    handle: Handle,
    lease: str,
    data: Buffer,
    *,
    layer: int | None = None,
    outer: int | None = None,
    shard: int | None = None,
    shards: int | None = None,
) -> Call[None]:
    """Writes an allocated slot over HTTP: a whole block in canonical order, or one piece (`layer`, `outer`) or part
    (`shard` of `shards`) of it."""
    where = target(
        "v1",
        "caches",
        cache,
        "slots",
        handle.tier,
        str(handle.slot),
        "data",
        query={
            "generation": handle.generation,
            "lease": lease,
            "layer": layer,
            "outer": outer,
            "kv_group": handle.kv_group,
            "shard": shard,
            "shards": shards,
        },
    )
    return parts.put_bytes(where, data, parts.nothing)


def commit(
    cache: str,
    lease: str,
    blocks: Sequence[NewBlock],
    *,
    release: bool = False,
    reuse: Reuse | None = None,
    session: str | None = None,
    cache_control: CacheControl | None = None,
) -> Call[Commit]:
    """Gives written slots their keys and makes the blocks visible. With `release` it also ends the lease.

    reuse: when the blocks that the lease holds at its end will be used next. session: the conversation they belong
    to. cache_control: pins the blocks.
    """
    body = parts.fields(
        lease=lease,
        blocks=[_new_block(block) for block in blocks],
        release=release or None,
        reuse=reuse,
        session=session,
        cache_control=cache_control,
    )
    return parts.post(target("v1", "caches", cache, "commit"), body, parts.into(Commit))


def renew(lease: str, lease_ms: int) -> Call[Lease]:
    """Makes the lease end `lease_ms` from now. The call times out after a quarter of that (at least 5 s), so that
    there is time for another attempt."""
    path = target("v1", "leases", lease, "renew")
    call = parts.post(path, {"lease_ms": lease_ms}, parts.into(Lease), idempotent=True)
    return replace(call, limit_s=max(lease_ms / 4000, LEAST_RENEWAL_S))


def release(
    lease: str,
    blocks: Sequence[Handle] | None = None,
    *,
    to_lease: str | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    reuse: Reuse | None = None,
    session: str | None = None,
    cache_control: CacheControl | None = None,
) -> Call[int]:
    """Gives up the named `blocks`, or the whole lease, and returns how many blocks that was.

    to_lease: moves the named blocks to this lease instead. input_tokens, output_tokens: the token counts of the
    request that has ended.
    reuse: when the released blocks will be used next; with a `session`, this applies to all blocks of that
    conversation. cache_control: pins the released blocks.
    """
    body = parts.fields(
        blocks=None if blocks is None else [_handle(block) for block in blocks],
        to_lease=to_lease,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        reuse=reuse,
        session=session,
        cache_control=cache_control,
    )
    if not body:
        return parts.delete(_lease(lease), _released)
    return parts.post(target("v1", "leases", lease, "release"), body, _released)


def hint(
    cache: str, reuse: Reuse, *, keys: Sequence[Key] | None = None, session: str | None = None
) -> Call[Hinted]:
    """Says when blocks that nobody uses now will be used next: those of `keys`, which are one prefix from its
    first key, or all of a `session`. Unknown keys and sessions are not an error."""
    body = parts.fields(keys=None if keys is None else keys_hex(keys), session=session, reuse=reuse)
    return parts.post(target("v1", "caches", cache, "hints"), body, parts.into(Hinted), idempotent=True)


def _group_match(
    cache: str, keys: Sequence[Key], response: Response, in_json: Callable[[], Call[Match]]
) -> Match | Call[Match]:
    """Decodes a packed match that names KV groups by number. If the cache's groups are not known yet, returns a
    call that asks for them; if that fails, the lease of the match ends with its time. If the answer does not
    determine the blocks' keys, returns calls that release the lease and match again `in_json`."""
    memory_id = response.memory_id
    reach = packed.Reach(parts.number_in(response, MATCHED), parts.number_in(response, FULL_MATCHED))
    shared = parts.number_in(response, SHARED_MATCHED) if SHARED_MATCHED in response.headers else None

    def with_groups(info: CacheInfo) -> Match | Call[Match]:
        match = packed.read_group_match(response.body, keys, reach, info, memory_id, shared)
        if match is not None:
            return match
        lease = packed.lease_of(response.body)
        return in_json() if lease is None else parts.delete(_lease(lease), lambda _: in_json())

    def learn(asked: Response) -> Match | Call[Match]:
        info = decode(CacheInfo, parts.document(asked))
        if memory_id is not None:
            if len(_known_caches) >= MAX_KNOWN_CACHES:
                _known_caches.clear()
            _known_caches[memory_id] = info
        return with_groups(info)

    known = _known_caches.get(memory_id) if memory_id is not None else None
    return parts.get(target("v1", "caches", cache), learn) if known is None else with_groups(known)


def _lease(lease: str) -> str:
    return target("v1", "leases", lease)


def _handle(handle: Handle) -> dict[str, Any]:
    body: dict[str, Any] = {"tier": handle.tier, "slot": handle.slot, "generation": handle.generation}
    return body if handle.kv_group is None else body | {"kv_group": handle.kv_group}


def _new_block(block: NewBlock) -> dict[str, Any]:
    body = _handle(block.handle)
    body["key"] = key_hex(block.key)
    if block.parent is not None:
        body["parent"] = key_hex(block.parent)
    for name in ("metadata", "ttl_ms", "priority", "if_exists", "shard", "shards"):
        if (value := getattr(block, name)) is not None:
            body[name] = encode(value)
    return body


def _released(response: Response) -> int:
    return decode(dict[str, int], parts.document(response))["released"]
