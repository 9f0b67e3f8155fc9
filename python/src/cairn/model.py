"""The API's requests and answers as dataclasses, with the contract's field names.

Sizes are in bytes, durations in milliseconds, times in Unix milliseconds. Keys are bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from cairn.errors import WrongArgument
from cairn.leased import Leased

Tier = Literal["device", "pinned", "disk", "shared"]
TIERS: tuple[Tier, ...] = ("device", "pinned", "disk", "shared")  # a packed answer names a tier by its index here

# If the key exists: report `duplicate` and keep the first block, or refuse.
IfExists = Literal["duplicate", "error"]


class Within(TypedDict):
    within_ms: int


# When the blocks will be used next: `never` (the conversation has ended), `soon` (within two minutes), `later`, or
# within a number of milliseconds. It only changes the order of eviction.
Reuse = Literal["never", "soon", "later"] | Within


class _EphemeralControl(TypedDict):
    type: Literal["ephemeral"]


class CacheControl(_EphemeralControl, total=False):
    """Pins the blocks of a request for `ttl` (5 minutes if left out); each match of one of them restarts the time."""

    ttl: Literal["5m", "1h"]


# A key has 1 to 64 bytes and is given as bytes or as hex.
Key = bytes | str


MAX_KEY_BYTES = 64
MAX_CONTAINED_KEYS = 131_072  # of one `contains`
# The most keys of one request at the server's default setting. `match` and `read` send only this many of a longer
# prefix.
MAX_KEYS = 65_536


def key_bytes(key: Key) -> bytes:
    """Raises WrongArgument for anything that is not a key. A number is refused too, because `bytes(n)` would be n
    zeros."""
    if isinstance(key, str):
        try:
            made = bytes.fromhex(key)
        except ValueError:
            made = b""
        if len(made) * 2 != len(key):  # `fromhex` ignores blanks, which a key may not have
            raise WrongArgument(f"a key is bytes or an even number of hex digits, not {key[:80]!r}")
    elif isinstance(key, (bytes, bytearray, memoryview)):
        made = bytes(key)
    else:
        raise WrongArgument(f"a key is bytes or hex digits; this one has type {type(key).__name__}")
    if not 1 <= len(made) <= MAX_KEY_BYTES:
        raise WrongArgument(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(made)}")
    return made


def key_hex(key: Key) -> str:
    """Like `key_bytes`, but returns hex. A key given as hex is returned unchanged."""
    made = key_bytes(key)
    return key if isinstance(key, str) else made.hex()


def key_list(keys: Iterable[Key], most: int | None = None) -> list[Key]:
    """The first `most` keys, unchecked. Raises WrongArgument for a single key, whose letters or bytes would be
    taken for keys."""
    if isinstance(keys, (str, bytes, bytearray, memoryview)):
        raise WrongArgument(f"keys must be a list of keys, not the single key {str(keys)[:80]!r}")
    return list(itertools.islice(keys, most))


def keys_hex(keys: Iterable[Key]) -> list[str]:
    """Like `key_hex`, for each of a list of keys."""
    return [key_hex(key) for key in key_list(keys)]


@dataclass(frozen=True)
class Shape:
    """The shape of a block. Block strides are padded to a multiple of `alignment` bytes. `shards` divides
    `outer_dim`."""

    num_layers: int
    outer_dim: int
    page_size: int
    inner_dim: int
    dtype_width_bytes: int
    alignment: int | None = None
    shards: int | None = None  # equal parts of a block that are stored and loaded apart

    @property
    def piece_bytes(self) -> int:
        """The size of one layer's keys or values."""
        return self.page_size * self.inner_dim * self.dtype_width_bytes

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.outer_dim * self.piece_bytes


@dataclass(frozen=True)
class KvGroup:
    """Layers of a model that need the same earlier blocks, and the shape of their blocks.

    kind: `full`, for layers that need all earlier blocks; `window`, for layers that need those of the last
    `window_tokens` - 1 tokens; `state`, for layers that need only the state after the last token.
    """

    name: str
    kind: str
    layout: Shape
    window_tokens: int | None = None


@dataclass(frozen=True)
class Region:
    size_bytes: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class Strides:
    block_bytes: int
    layer_bytes: int
    outer_bytes: int


@dataclass(frozen=True)
class GroupPlace:
    """How the blocks of a KV group lie in a mapped tier. Block n begins n times `block_bytes` after the region's
    first byte, and may be longer than that: it then covers the slots after its own."""

    strides: Strides
    shape: Shape | None = None


@dataclass(frozen=True)
class TierMemory:
    """How another process maps a tier. `descriptor` is an index into the open files received with the answer.
    `memory_id` equals that of matches and allocations whose blocks are in this memory. `generation` differs after
    each change of the tier's size. `shape` is that of each block; in a cache with KV groups each has its own.
    `block_dim` is for the layout `layer_separate`, and `device_uuid` for a device's memory."""

    kind: str
    size_bytes: int
    descriptor: int | None = None
    path: str | None = None
    inode: int | None = None
    handle: str | None = None
    device_id: int | None = None
    regions: list[Region] = field(default_factory=list)
    strides: Strides | None = None
    layout: str | None = None
    block_dim: str | None = None
    shape: Shape | None = None
    kv_groups: dict[str, GroupPlace] = field(default_factory=dict)
    device_uuid: str | None = None
    generation: int | None = None
    memory_id: str | None = None


@dataclass(frozen=True)
class TierConfig:
    """A tier's size and place. Give `num_blocks`, or `size_bytes` for as many blocks as fit. A cache with KV
    groups takes only `size_bytes`."""

    num_blocks: int | None = None
    layout: str = "fully_contiguous"
    block_dim: str | None = None
    device_id: int | None = None
    numa_aware: bool | None = None
    path: str | None = None
    memory: dict[str, Any] | None = None
    size_bytes: int | None = None
    codec: str | None = None


@dataclass(frozen=True)
class CacheConfig:
    """The settings of a new cache. Give the `layout` of its blocks, or `kv_groups` and `block_tokens`, the number
    of tokens that a key names."""

    layout: Shape | None = None
    tiers: dict[str, TierConfig] = field(default_factory=dict)
    eviction: str | None = None
    offload: str | None = None
    default_lease_ms: int | None = None
    pressure: dict[str, Any] | None = None
    quota: dict[str, Any] | None = None
    pins: dict[str, float] | None = None
    shared: dict[str, Any] | list[dict[str, Any]] | None = None  # a store, or two: the near one first
    block_tokens: int | None = None
    kv_groups: Sequence[KvGroup] | None = None


@dataclass(frozen=True)
class CacheChange:
    """What to change of a cache; None leaves a setting as it is. `num_blocks` or `size_bytes` give new sizes by
    tier, for pinned and disk."""

    offload: str | None = None
    eviction: str | None = None
    default_lease_ms: int | None = None
    pressure: dict[str, Any] | None = None
    quota: dict[str, Any] | None = None
    pins: dict[str, float] | None = None
    num_blocks: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BlockCounts:
    free: int
    allocated: int
    committed: int
    evictable: int


@dataclass(frozen=True)
class KvGroupUse:
    """What a tier holds of one KV group."""

    block_bytes: int
    blocks: int
    bytes: int


@dataclass(frozen=True)
class TierInfo:
    """A tier. Counts and pressure are present only in the answer about one cache. In a cache with KV groups, a
    tier has `size_bytes` instead of `num_blocks`, and `kv_groups` counts the blocks of each group by its name."""

    layout: str
    reserved_bytes: int
    strides: Strides
    regions: list[Region]
    num_blocks: int | None = None
    size_bytes: int | None = None
    block_dim: str | None = None
    device_id: int | None = None
    numa_aware: bool | None = None
    path: str | None = None
    memory: dict[str, Any] | None = None
    capacity_blocks: int | None = None
    populated_bytes: int | None = None
    blocks: BlockCounts | None = None
    leased_blocks: int | None = None
    hits: int | None = None
    evictions: int | None = None
    pressure: str | None = None
    kv_groups: dict[str, KvGroupUse] = field(default_factory=dict)


@dataclass(frozen=True)
class CacheInfo:
    """A cache. Counts are present only in the answer about one cache. A cache with KV groups has `block_tokens`
    and `kv_groups` instead of a `layout`; its `block_bytes` is the size of the largest block."""

    name: str
    tiers: dict[str, TierInfo]
    block_bytes: int
    layout: Shape | None = None
    block_tokens: int | None = None
    kv_groups: list[KvGroup] = field(default_factory=list)
    eviction: str | None = None
    offload: str | None = None
    default_lease_ms: int | None = None
    quota: dict[str, Any] | None = None
    pins: dict[str, float] | None = None
    eviction_in_force: str | None = None
    matches: int | None = None
    hits: int | None = None
    misses: int | None = None
    leases: int | None = None
    lease_expirations: int | None = None
    commits: int | None = None
    duplicates: int | None = None
    metadata_bytes: int | None = None
    # Blocks that prefetches named: "used", "late", "wasted", "missing".
    prefetched: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Handle:
    """A slot while it holds one block. The generation changes when the slot is reused. `kv_group` names the
    block's KV group. None means the group `default`, the only one of a cache without `kv_groups`."""

    tier: str
    slot: int
    generation: int
    kv_group: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class MatchedBlock(Handle):
    key: bytes


@dataclass(frozen=True)
class Match(Leased):
    """The longest prefix that the cache holds, pinned until the lease ends. If `lease` is None, it is not
    pinned.

    In a cache with KV groups, `matched` is the number of leading keys that all groups can serve. `blocks` has the
    blocks that they need for this, group by group. `full_matched` is the number of keys that the full groups alone
    can serve. It is None in a cache without `kv_groups`, unless the match had `have`.
    """

    matched: int
    lease: str | None
    expires_at_ms: int
    blocks: Sequence[MatchedBlock]
    transfer: str | None = None
    shared_matched: int | None = None
    memory_id: str | None = None  # the memory that the handles refer to; None if the server does not report it
    full_matched: int | None = None


@dataclass(frozen=True)
class Allocation(Leased):
    lease: str
    expires_at_ms: int
    blocks: Sequence[Handle]
    memory_id: str | None = None


@dataclass(frozen=True)
class NewBlock:
    """An allocated slot whose bytes get a key. `parent` is the previous key of the prefix."""

    handle: Handle
    key: Key
    parent: Key | None = None
    metadata: dict[str, Any] | None = None
    ttl_ms: int | None = None
    priority: int | None = None
    if_exists: IfExists | None = None
    # The part of the block that the slot holds, from 0 on, of `shards` equal ones.
    shard: int | None = None
    shards: int | None = None


@dataclass(frozen=True)
class Hinted:
    blocks: int  # blocks whose place in the order of eviction changed
    shared: int  # blocks left as they are, because others need them too
    missing: int  # keys that the cache does not hold


@dataclass(frozen=True)
class Action:
    """A wish about blocks: those of `keys` or of `tokens` (with the `salt` of their keys), or all of a `session`.

    ttl_ms: pin: how long the blocks stay, 300,000 if None. retain: they are needed again within this time.
    priority: retain: at least this priority, 0 to 100. to: the tier to prefetch or demote to.
    deadline_ms: prefetch: what has not begun by then is dropped.
    refresh_on_hit: pin: a match restarts the time. wait_ms: the longest wait for the transfer.
    """

    type: Literal["pin", "unpin", "retain", "prefetch", "demote", "share"]
    keys: Sequence[Key] | None = None
    tokens: Sequence[int] | None = None
    salt: str | None = None
    session: str | None = None
    id: str | None = None
    ttl_ms: int | None = None
    priority: int | None = None
    to: Tier | None = None
    peer: str | None = None
    max_blocks: int | None = None
    deadline_ms: int | None = None
    refresh_on_hit: bool | None = None
    wait_ms: int | None = None


@dataclass(frozen=True)
class ActionResult:
    """`outcome` is accepted, clipped (for a part of the blocks), deferred (ask again), rejected or missing (none of
    the blocks is stored). `reason` says why it was not done for all."""

    id: str | None
    outcome: str
    blocks: int
    missing: int
    reason: str | None = None
    pin: str | None = None
    transfer: str | None = None


@dataclass(frozen=True)
class PinInfo:
    pin: str
    token: str | None
    blocks: int
    bytes: int
    expires_at_ms: int
    session: str | None = None


@dataclass(frozen=True)
class Session:
    session: str
    token: str | None
    blocks: dict[str, int]  # by the highest tier that has them
    missing: int  # blocks that the conversation used and that are gone
    bytes: int
    last_use_ms: int


@dataclass(frozen=True)
class SessionList:
    sessions: list[Session]
    known: int  # of all tokens


@dataclass(frozen=True)
class PinPage:
    pins: list[PinInfo]
    next_cursor: str | None


@dataclass(frozen=True)
class Committed:
    key: bytes
    # committed; duplicate: the first block, or part of it, stays; pending: the block lacks other parts
    status: str
    shards: list[int] | None = None  # the shards of the layout that a pending block has


@dataclass(frozen=True)
class Commit:
    blocks: list[Committed]


@dataclass(frozen=True)
class Put:
    key: bytes
    status: str
    tier: str | None = None
    slot: int | None = None
    generation: int | None = None
    kv_group: str | None = None
    shards: list[int] | None = None  # the shards of the layout that a pending block has


@dataclass(frozen=True)
class Lease:
    lease: str
    expires_at_ms: int


@dataclass(frozen=True)
class BlocksRead:
    """The blocks of the longest prefix that the cache holds, one after the other in canonical order."""

    matched: int
    data: memoryview

    def __len__(self) -> int:
        return self.matched

    def __iter__(self) -> Iterator[memoryview]:
        return (self.block(index) for index in range(self.matched))

    def block(self, index: int) -> memoryview:
        if not 0 <= index < self.matched:
            raise IndexError(f"block {index} of {self.matched}")
        size = len(self.data) // self.matched
        return self.data[index * size : (index + 1) * size]


@dataclass(frozen=True)
class TransferFailure:
    key: bytes
    code: str
    detail: str


@dataclass(frozen=True)
class Failure:
    code: str
    detail: str


@dataclass(frozen=True)
class Transfer:
    """A transfer of blocks. `state` is queued, running, done (every byte arrived), failed (`failures` names each
    lost key) or cancelled."""

    transfer: str
    state: str
    blocks_done: int
    blocks_total: int
    bytes: int
    failures: list[TransferFailure] = field(default_factory=list)
    agreed_blocks: int | None = None
    values: list[float | None] | None = None  # the result of all_reduce; None if it is not finite
    layers_done: int | None = None  # load and store: layers, from the first, done for all blocks
    error: Failure | None = None

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True)
class TransferPage:
    transfers: list[Transfer]
    next_cursor: str | None


@dataclass(frozen=True)
class LeaseInfo:
    """How many blocks of each tier a lease holds. `token` is the name of the token that holds it."""

    lease: str
    token: str | None
    expires_at_ms: int
    blocks: dict[str, int]


@dataclass(frozen=True)
class LeasePage:
    leases: list[LeaseInfo]
    next_cursor: str | None


@dataclass(frozen=True)
class MissRatio:
    """Estimated hit rates, 0 to 1. Each of `points` has `capacity_blocks`, `lru` and `policy`. `advice` says how
    much one more GiB of each `tier` would gain; `words` is a summary in sentences."""

    requests: int
    capacity_blocks: int
    blocks_per_s: float
    points: list[dict[str, Any]]
    optimum: float
    advice: list[dict[str, Any]]
    words: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PendingPage:
    """Blocks that are moved or copied to another tier, or wait for that. Each has `key`, `from`, `to` and `age_ms`;
    in a cache with KV groups also `kv_group`."""

    pending: list[dict[str, Any]]
    next_cursor: str | None


@dataclass(frozen=True)
class Evicted:
    evicted: int
    offloaded: int
    leased: int
    missing: int


@dataclass(frozen=True)
class BlockInfo(Handle):
    state: str
    key: bytes | None
    parent: bytes | None
    metadata: dict[str, Any] | None
    priority: int
    last_use_ms: int
    epoch: int | None = None


@dataclass(frozen=True)
class BlockPage:
    blocks: list[BlockInfo]
    next_cursor: str | None


@dataclass(frozen=True)
class Snapshot:
    name: str
    bytes: int
    blocks: int
    created_at_ms: int
    compressed: bool
    error: Failure | None = None


@dataclass(frozen=True)
class Group:
    name: str
    rank: int
    world_size: int
    device_id: int
    collective: str
    state: str
    queued_operations: int
    error: Failure | None = None
    unique_id: str | None = None


@dataclass(frozen=True)
class AgentRegion:
    """A region of an engine's memory. shm: `path`, or `descriptor`, an index into the open files sent along;
    cuda_ipc: `handle`; cuda_vmm_fd: `descriptor`."""

    kind: str
    offset_bytes: int
    size_bytes: int
    path: str | None = None
    descriptor: int | None = None
    handle: str | None = None
    device_uuid: str | None = None


@dataclass(frozen=True)
class AgentDescriptor:
    """Where the server finds a region of an agent."""

    agent: str
    region: int
    kind: str
    device_id: int
    device_uuid: str
    offset_bytes: int
    size_bytes: int
    used_bytes: int
    layout: str
    strides: Strides
    descriptor: int | None = None
    path: str | None = None
    inode: int | None = None
    handle: str | None = None


@dataclass(frozen=True)
class Agent:
    """An engine's memory as the server knows it. `ends_with` says what keeps it registered: its connection, or a
    lease until `expires_at_ms`."""

    name: str
    device_id: int
    device_uuid: str
    num_blocks: int
    layout: str
    shape: Shape
    block_bytes: int
    descriptors: list[AgentDescriptor]
    token: str | None
    ends_with: str
    copies: int
    block_dim: str | None = None
    expires_at_ms: int | None = None


@dataclass(frozen=True)
class Allocator:
    """What one allocator of a device's memory holds. `allocator` is `slots` for tiers; `device0` and so on for
    memory allocated from the driver."""

    allocator: str
    allocated_bytes: int
    reserved_bytes: int
    cached_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    largest_free_bytes: int
    segments: int
    pending_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    retries: int = 0


@dataclass(frozen=True)
class DeviceMemory:
    """A device's memory. `uuid` is the same in every process on the machine. `freed_bytes` is set after emptying a
    device's cache."""

    id: int
    name: str
    uuid: str
    kind: str
    numa_node: int
    total_bytes: int
    reserved_bytes: int
    allocators: list[Allocator]
    freed_bytes: int | None = None


@dataclass(frozen=True)
class Device:
    id: int
    name: str
    total_bytes: int
    numa_node: int


@dataclass(frozen=True)
class LeftOutDevice:
    """A GPU that exists but could not be opened."""

    id: int
    why: str


@dataclass(frozen=True)
class UnmadeCache:
    """A cache that the server had, or is configured with, but could not make."""

    cache: str
    code: str
    detail: str
    awaits_engine: bool  # it is in an engine's memory: that engine makes it again


@dataclass(frozen=True)
class MemoryPool:
    """A pool for memory other than the tiers', with its level at the time of the request."""

    allocator: str
    device: str  # a device's number, or "host"
    allocated_bytes: int
    limit_bytes: int  # 0: no limit
    level: str


@dataclass(frozen=True)
class SystemWarning:
    """A current problem of the server, for example of the kind `shared_node` or `memory`."""

    kind: str
    subject: str  # the device, cache, node, server or group; empty: the server itself
    detail: str


@dataclass(frozen=True)
class System:
    version: str
    build: dict[str, Any]
    state: str
    uptime_ms: int
    runtime: str
    devices: list[Device]
    lost_device: str | None
    memory_visibility: str
    pressure: dict[str, dict[str, str]]
    transfers: dict[str, int]
    runtime_fallback: str | None = None  # why the server uses the host runtime although there is a GPU
    devices_left_out: list[LeftOutDevice] = field(default_factory=list)
    pools: list[MemoryPool] = field(default_factory=list)
    unmade_caches: list[UnmadeCache] = field(default_factory=list)
    shared: dict[str, Any] | None = None  # the state of the shared tier's store, if the server has one
    warnings: list[SystemWarning] = field(default_factory=list)
    # What each part of the server has done since the start: {"pins": {"pins": 3}, ...}. `needs` names what it lacks
    # on a machine without a GPU, a group, a shared store or an engine.
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """An event of a cache: `stored`, `removed`, `cleared` or `gap`. Pass `id` as `after` to resume after it. In a
    cache with KV groups, the `data` of `stored` and `removed` has the `kv_group` of the keys."""

    kind: str
    id: int | None
    data: dict[str, Any]
