"""Agents (engines whose memory the server copies blocks to and from) and the memory of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cairn.calls import _parts as parts
from cairn.http import Call, target
from cairn.model import Agent, AgentRegion, DeviceMemory, Key, Shape, Tier, Transfer, key_hex, keys_hex


def put_agent(
    name: str,
    shape: Shape,
    num_blocks: int,
    regions: Sequence[AgentRegion],
    *,
    layout: str = "layer_separate",
    block_dim: str | None = None,
    device_id: int | None = None,
    lease_ms: int | None = None,
    files: Sequence[int] = (),
) -> Call[Agent]:
    """Registers memory as an agent. If the agent is registered with the same memory, this renews its lease; with
    other memory it raises AgentExists.

    files: regions refer to these open files by index. The agent then lasts as long as the connection, so use a
    separate client: see `cairn.AgentMemory`. Without files it lasts `lease_ms`.
    """
    body = parts.fields(
        device_id=device_id,
        num_blocks=num_blocks,
        layout=layout,
        block_dim=block_dim,
        shape=replace(shape, alignment=None),
        regions=list(regions),
        lease_ms=lease_ms,
    )
    call = parts.put(target("v1", "agents", name), body, parts.into(Agent))
    return replace(call, request=replace(call.request, files=tuple(files)))


def agents() -> Call[list[Agent]]:
    """The agents of this token; an administrator gets all agents."""
    return parts.get(target("v1", "agents"), parts.listed("agents", Agent))


def agent(name: str) -> Call[Agent]:
    """One agent. Raises UnknownAgent if there is none of that name."""
    return parts.get(target("v1", "agents", name), parts.into(Agent))


def drop_agent(name: str) -> Call[None]:
    """Ends an agent. Returns once the server no longer uses its memory."""
    return parts.delete(target("v1", "agents", name), parts.nothing)


def load(
    cache: str,
    keys: Sequence[Key],
    agent: str,
    blocks: Sequence[int],
    *,
    wait_ms: int | None = None,
    kv_group: str | None = None,
    shard: int | None = None,
    shards: int | None = None,
) -> Call[Transfer]:
    """Copies the blocks of `keys`, from any tier, into an agent's `blocks` (one index for each key). Waits at most
    `wait_ms` for the end; `transfer_state` reports what happens after that. In a cache with KV groups, `kv_group`
    names that of the blocks; the agent has its shape. With `shard` and `shards` the agent's blocks are that part of
    the cache's."""
    path = target("v1", "caches", cache, "load", query={"shard": shard, "shards": shards})
    names = keys_hex(keys)
    return parts.transfer(path, wait_ms, keys=names, agent=agent, blocks=list(blocks), kv_group=kv_group)


def store(
    cache: str,
    keys: Sequence[Key],
    agent: str,
    blocks: Sequence[int],
    *,
    parents: Sequence[Key | None] | None = None,
    tier: Tier | None = None,
    wait_ms: int | None = None,
    kv_group: str | None = None,
    shard: int | None = None,
    shards: int | None = None,
) -> Call[Transfer]:
    """Stores an agent's `blocks` (indices) under `keys`. Without `parents` the keys are one prefix. Waits at most
    `wait_ms` for the end. In a cache with KV groups, `kv_group` names that of the blocks; the agent has its
    shape. With `shard` and `shards` the agent's blocks are that part of the cache's."""
    path = target("v1", "caches", cache, "store", query={"shard": shard, "shards": shards})
    names = keys_hex(keys)
    before = None if parents is None else [None if one is None else key_hex(one) for one in parents]
    return parts.transfer(
        path,
        wait_ms,
        keys=names,
        parents=before,
        agent=agent,
        blocks=list(blocks),
        tier=tier,
        kv_group=kv_group,
    )


def devices() -> Call[list[DeviceMemory]]:
    """The devices and the use of their memory."""
    return parts.get(target("v1", "devices"), parts.listed("devices", DeviceMemory))


def empty_device_cache(device: int) -> Call[DeviceMemory]:
    """Returns memory that the server caches on a device to the driver."""
    return parts.post(target("v1", "devices", str(device), "empty_cache"), None, parts.into(DeviceMemory))


def reset_device_peaks(device: int) -> Call[DeviceMemory]:
    """Resets the peak counts of a device's allocators to the current values."""
    return parts.post(target("v1", "devices", str(device), "reset_peaks"), None, parts.into(DeviceMemory))
