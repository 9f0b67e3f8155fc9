"""Transfers between tiers and caches, snapshots, and groups of servers.

A `wait_ms` is the longest time the server waits for the end of a transfer before it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cairn.calls import _parts as parts
from cairn.http import Call, target
from cairn.model import Group, Key, Snapshot, Tier, Transfer, TransferPage, keys_hex


def transfer(
    cache: str,
    keys: Sequence[Key],
    to: Tier,
    *,
    mode: Literal["copy", "move"] | None = None,
    from_cache: str | None = None,
    priority: int | None = None,
    wait_ms: int | None = None,
    kv_group: str | None = None,
) -> Call[Transfer]:
    """Copies or moves blocks to the tier `to`, from this cache or from `from_cache`. In a cache with KV groups,
    they are the blocks of one group, or of all groups that have the keys."""
    path, names = target("v1", "caches", cache, "transfers"), keys_hex(keys)
    return parts.transfer(
        path,
        wait_ms,
        keys=names,
        to=to,
        mode=mode,
        from_cache=from_cache,
        priority=priority,
        kv_group=kv_group,
    )


def transfers(
    *, cache: str | None = None, state: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[TransferPage]:
    """The transfers of one cache or of all, in one state or any, one page at a time."""
    query: dict[str, object] = {"cache": cache, "state": state, "limit": limit, "cursor": cursor}
    return parts.get(target("v1", "transfers", query=query), parts.into(TransferPage))


def drain(cache: str, *, to: Tier | None = None, wait_ms: int | None = None) -> Call[Transfer]:
    """A transfer that is done once every block committed before it is in the tier `to`, by default the lowest."""
    return parts.transfer(target("v1", "caches", cache, "drain"), wait_ms, to=to)


def transfer_state(transfer: str, *, wait_ms: int | None = None) -> Call[Transfer]:
    """The state of a transfer. With `wait_ms` it answers when the transfer has ended, or after that time."""
    path = target("v1", "transfers", transfer, query={"wait_ms": wait_ms})
    return parts.get(path, parts.into(Transfer), wait_s=(wait_ms or 0) / 1000)


def cancel_transfer(transfer: str) -> Call[Transfer]:
    """Cancels the parts of a transfer that have not begun."""
    return parts.delete(target("v1", "transfers", transfer), parts.into(Transfer))


def snapshots(cache: str) -> Call[list[Snapshot]]:
    """A cache's snapshots."""
    return parts.get(target("v1", "caches", cache, "snapshots"), parts.listed("snapshots", Snapshot))


def make_snapshot(cache: str, name: str, *, compress: bool = False, wait_ms: int | None = None) -> Call[Transfer]:
    """Saves every block of a cache to a file on the server."""
    return parts.transfer(target("v1", "caches", cache, "snapshots"), wait_ms, name=name, compress=compress)


def restore_snapshot(
    cache: str, name: str, *, partial: bool = False, replace: bool = False, wait_ms: int | None = None
) -> Call[Transfer]:
    """Restores a snapshot's blocks into free slots. With `partial` it restores as many as there is room for. With
    `replace` it first drops all blocks of the cache, unless the file is broken or does not fit, or a lease holds a
    block (`leased`)."""
    path = target("v1", "caches", cache, "snapshots", name, "restore")
    return parts.transfer(path, wait_ms, partial=partial, replace=replace)


def drop_snapshot(cache: str, name: str) -> Call[None]:
    """Deletes a snapshot."""
    return parts.delete(target("v1", "caches", cache, "snapshots", name), parts.nothing)


def join_group(
    name: str, rank: int, world_size: int, *, device_id: int | None = None, unique_id: str | None = None
) -> Call[Group]:
    """Makes the server a rank of a group. Rank 0 gets a `unique_id`, which the other ranks must pass."""
    body = parts.fields(name=name, rank=rank, world_size=world_size, device_id=device_id, unique_id=unique_id)
    return parts.post(target("v1", "groups"), body, parts.into(Group))


def groups() -> Call[list[Group]]:
    """The groups that the server is a member of."""
    return parts.get(target("v1", "groups"), parts.listed("groups", Group))


def group(name: str) -> Call[Group]:
    """One group's state."""
    return parts.get(target("v1", "groups", name), parts.into(Group))


def leave_group(name: str) -> Call[None]:
    """Leaves a group. Its unfinished operations fail on all ranks."""
    return parts.delete(target("v1", "groups", name), parts.nothing)


def send(group: str, cache: str, keys: Sequence[Key], peer: int, *, wait_ms: int | None = None) -> Call[Transfer]:
    """Sends blocks to the rank `peer`, which must call `recv`."""
    return _share(group, "send", cache, keys, wait_ms, peer=peer)


def recv(
    group: str,
    cache: str,
    keys: Sequence[Key],
    peer: int,
    *,
    tier: Tier | None = None,
    wait_ms: int | None = None,
) -> Call[Transfer]:
    """Receives blocks from the rank `peer`, which must call `send`."""
    return _share(group, "recv", cache, keys, wait_ms, peer=peer, tier=tier)


def broadcast(
    group: str,
    cache: str,
    keys: Sequence[Key],
    root: int,
    *,
    tier: Tier | None = None,
    wait_ms: int | None = None,
) -> Call[Transfer]:
    """Copies the blocks of the rank `root` to every rank."""
    return _share(group, "broadcast", cache, keys, wait_ms, root=root, tier=tier)


def all_gather(
    group: str, cache: str, keys: Sequence[Key], *, tier: Tier | None = None, wait_ms: int | None = None
) -> Call[Transfer]:
    """Copies those of `keys` that any rank holds to every rank."""
    return _share(group, "all_gather", cache, keys, wait_ms, tier=tier)


def agree(group: str, cache: str, keys: Sequence[Key], *, wait_ms: int | None = None) -> Call[Transfer]:
    """Finds the longest prefix that every rank holds; the transfer's `agreed_blocks` is its length."""
    return _share(group, "agree", cache, keys, wait_ms)


def all_reduce(
    group: str,
    values: Sequence[float],
    op: str = "sum",
    *,
    dtype: str | None = None,
    wait_ms: int | None = None,
) -> Call[Transfer]:
    """Combines this rank's numbers with those of the other ranks, position by position; the result is the
    transfer's `values`.

    op: "sum", "prod", "min", "max" or "avg". dtype: "int64" if left out, or another of "int8", "uint8", "int32",
    "uint32", "uint64", "float16", "bfloat16", "float32" and "float64". values: as many on every rank; integers
    between -2**53 and 2**53 unless `dtype` has fractions.
    """
    path = target("v1", "groups", group, "all_reduce")
    return parts.transfer(path, wait_ms, values=list(values), op=op, dtype=dtype)


def _share(
    group: str, verb: str, cache: str, keys: Sequence[Key], wait_ms: int | None, **more: object
) -> Call[Transfer]:
    path, names = target("v1", "groups", group, verb), keys_hex(keys)
    return parts.transfer(path, wait_ms, cache=cache, keys=names, **more)
