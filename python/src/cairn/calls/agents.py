"""Engines whose memory the server copies blocks to and from, and the devices' memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cairn.calls import _parts as parts
from cairn.http import Call, target
from cairn.model import Agent, AgentRegion, DeviceMemory, Key, Shape, Tier, Transfer, key_hex


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
    """Registers memory, or finds it registered and begins its lease anew; AgentExists with other memory.
    With `files`, which regions name by number, it is registered for as long as the connection lasts, so this
    is for a client of its own: see `cairn.AgentMemory`."""
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
    """The token's agents; an administrator's answer has all."""
    return parts.get(target("v1", "agents"), parts.listed("agents", Agent))


def agent(name: str) -> Call[Agent]:
    """One agent."""
    return parts.get(target("v1", "agents", name), parts.into(Agent))


def drop_agent(name: str) -> Call[None]:
    """Ends an agent; answered when its memory is given back."""
    return parts.delete(target("v1", "agents", name), parts.nothing)


def load(
    cache: str, keys: Sequence[Key], agent: str, blocks: Sequence[int], *, wait_ms: int | None = None
) -> Call[Transfer]:
    """Copies blocks into an agent's, one a key, from whichever tier they are in."""
    body = parts.fields(keys=[key_hex(key) for key in keys], agent=agent, blocks=list(blocks), wait_ms=wait_ms)
    return parts.post(target("v1", "caches", cache, "load"), body, parts.into(Transfer), wait_ms=wait_ms)


def store(
    cache: str,
    keys: Sequence[Key],
    agent: str,
    blocks: Sequence[int],
    *,
    parents: Sequence[Key | None] | None = None,
    tier: Tier | None = None,
    wait_ms: int | None = None,
) -> Call[Transfer]:
    """Stores an agent's blocks under keys; without `parents` they are one prefix."""
    body = parts.fields(
        keys=[key_hex(key) for key in keys], agent=agent, blocks=list(blocks), tier=tier, wait_ms=wait_ms
    )
    if parents is not None:
        body["parents"] = [None if parent is None else key_hex(parent) for parent in parents]
    return parts.post(target("v1", "caches", cache, "store"), body, parts.into(Transfer), wait_ms=wait_ms)


def devices() -> Call[list[DeviceMemory]]:
    """What each device's memory has."""
    return parts.get(target("v1", "devices"), parts.listed("devices", DeviceMemory))


def empty_device_cache(device: int) -> Call[DeviceMemory]:
    """Gives memory that is cached on a device back to its driver."""
    return parts.post(target("v1", "devices", str(device), "empty_cache"), None, parts.into(DeviceMemory))


def reset_device_peaks(device: int) -> Call[DeviceMemory]:
    """Makes what a device's allocators have now their peaks."""
    return parts.post(target("v1", "devices", str(device), "reset_peaks"), None, parts.into(DeviceMemory))
