"""What the API takes and answers, field by field as the contract names them.

Sizes are in bytes, durations in milliseconds, times in Unix milliseconds. Keys are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from cairn.errors import WrongArgument

Tier = Literal["device", "pinned", "disk", "shared"]
TIERS: tuple[Tier, ...] = ("device", "pinned", "disk", "shared")  # by the number that packed answers have

# What becomes of a write whose key is there: it is dropped, or refused.
IfExists = Literal["duplicate", "error"]


class Within(TypedDict):
    within_ms: int


# When blocks will be used next: `never` (the conversation has ended), `soon` (within two minutes), `later`, or
# within so many milliseconds. It changes only which blocks go first.
Reuse = Literal["never", "soon", "later"] | Within

# A key of 1 to 64 bytes, as bytes or in hex.
Key = bytes | str


MAX_KEY_BYTES = 64
# Of one request: what a server takes by default. A prefix of more is asked for by its first.
MAX_KEYS = 65_536


def key_bytes(key: Key) -> bytes:
    """WrongArgument for what is no key. To `bytes` a number is so many zeros: it is refused by its type."""
    if isinstance(key, str):
        try:
            made = bytes.fromhex(key)
        except ValueError:
            made = b""
        if len(made) * 2 != len(key):  # blanks are no part of a key
            raise WrongArgument(f"a key is bytes or an even number of hex digits, not {key[:80]!r}")
    elif isinstance(key, (bytes, bytearray, memoryview)):
        made = bytes(key)
    else:
        raise WrongArgument(f"a key is bytes or hex digits, not of the type {type(key).__name__}")
    if not 1 <= len(made) <= MAX_KEY_BYTES:
        raise WrongArgument(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(made)}")
    return made


def key_hex(key: Key) -> str:
    """As `key_bytes`; hex stays as it is."""
    made = key_bytes(key)
    return key if isinstance(key, str) else made.hex()


@dataclass(frozen=True)
class Shape:
    """The shape of a block. `alignment`: block strides are padded to it."""

    num_layers: int
    outer_dim: int
    page_size: int
    inner_dim: int
    dtype_width_bytes: int
    alignment: int | None = None

    @property
    def piece_bytes(self) -> int:
        """One layer's keys or values."""
        return self.page_size * self.inner_dim * self.dtype_width_bytes

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.outer_dim * self.piece_bytes


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
class TierMemory:
    """How another process maps a tier. `descriptor` counts the open files that come along with the answer.
    `memory_id` is that of the matches and allocations whose blocks lie in this memory."""

    kind: str
    size_bytes: int
    descriptor: int | None = None
    path: str | None = None
    inode: int | None = None
    handle: str | None = None
    device_id: int | None = None
    regions: list[Region] = field(default_factory=list)
    strides: Strides | None = None
    memory_id: str | None = None


@dataclass(frozen=True)
class TierConfig:
    num_blocks: int
    layout: str = "fully_contiguous"
    block_dim: str | None = None
    device_id: int | None = None
    numa_aware: bool | None = None
    path: str | None = None
    memory: dict[str, Any] | None = None


@dataclass(frozen=True)
class CacheConfig:
    layout: Shape
    tiers: dict[str, TierConfig]
    eviction: str | None = None
    offload: str | None = None
    default_lease_ms: int | None = None
    pressure: dict[str, Any] | None = None
    quota: dict[str, Any] | None = None
    shared: dict[str, Any] | None = None


@dataclass(frozen=True)
class CacheChange:
    """What of a cache is to be another; what is None stays. `num_blocks` of tiers: pinned or disk."""

    offload: str | None = None
    eviction: str | None = None
    default_lease_ms: int | None = None
    pressure: dict[str, Any] | None = None
    quota: dict[str, Any] | None = None
    num_blocks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BlockCounts:
    free: int
    allocated: int
    committed: int
    evictable: int


@dataclass(frozen=True)
class TierInfo:
    """A tier; counts and pressure where a cache's state was asked for."""

    num_blocks: int
    layout: str
    reserved_bytes: int
    strides: Strides
    regions: list[Region]
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


@dataclass(frozen=True)
class CacheInfo:
    """A cache; counts where its state was asked for."""

    name: str
    layout: Shape
    tiers: dict[str, TierInfo]
    block_bytes: int
    eviction: str | None = None
    offload: str | None = None
    default_lease_ms: int | None = None
    quota: dict[str, Any] | None = None
    eviction_in_force: str | None = None
    matches: int | None = None
    hits: int | None = None
    misses: int | None = None
    leases: int | None = None
    lease_expirations: int | None = None
    commits: int | None = None
    duplicates: int | None = None
    metadata_bytes: int | None = None


@dataclass(frozen=True)
class Handle:
    """A slot while it holds one block: the generation changes when it is reused."""

    tier: str
    slot: int
    generation: int


@dataclass(frozen=True)
class MatchedBlock(Handle):
    key: bytes


@dataclass(frozen=True)
class Match:
    """The longest present prefix, pinned until the lease ends; without a lease (None) it is not pinned."""

    matched: int
    lease: str | None
    expires_at_ms: int
    blocks: Sequence[MatchedBlock]
    transfer: str | None = None
    shared_matched: int | None = None
    memory_id: str | None = None  # of the memory that its tiers have; None: the server tells none


@dataclass(frozen=True)
class Allocation:
    lease: str
    expires_at_ms: int
    blocks: Sequence[Handle]
    memory_id: str | None = None


@dataclass(frozen=True)
class NewBlock:
    """An allocated slot whose bytes get a key. `parent` is the key before it in its prefix."""

    handle: Handle
    key: Key
    parent: Key | None = None
    metadata: dict[str, Any] | None = None
    ttl_ms: int | None = None
    priority: int | None = None
    if_exists: IfExists | None = None


@dataclass(frozen=True)
class Hinted:
    blocks: int  # that go earlier or later for it
    shared: int  # that others need too, and are not lowered
    missing: int  # keys that are not there


@dataclass(frozen=True)
class Committed:
    key: bytes
    status: str  # committed, or duplicate: the older block stays


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


@dataclass(frozen=True)
class Lease:
    lease: str
    expires_at_ms: int


@dataclass(frozen=True)
class BlocksRead:
    """The blocks of the longest present prefix, end to end in canonical order."""

    matched: int
    data: memoryview

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
    """A movement. `state`: queued, running, done (every byte arrived), failed (each lost key is named),
    cancelled."""

    transfer: str
    state: str
    blocks_done: int
    blocks_total: int
    bytes: int
    failures: list[TransferFailure] = field(default_factory=list)
    agreed_blocks: int | None = None
    values: list[int] | None = None  # of all_reduce: what came of the ranks' numbers
    layers_done: int | None = None  # of a load or a store: of all its blocks, from the first layer on
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
    """Who holds how many blocks of which tier. `token` is the name of the holder's."""

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
    """Hit rates of 0 to 1: `points` have `capacity_blocks`, `lru` and `policy`; `advice` says what a GiB more of
    each `tier` brings, `words` what follows from it all."""

    requests: int
    capacity_blocks: int
    blocks_per_s: float
    points: list[dict[str, Any]]
    optimum: float
    advice: list[dict[str, Any]]
    words: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PendingPage:
    """Blocks on their way down, each with `key`, `from`, `to` and `age_ms`."""

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
    """Memory of an engine's. shm: `path`, or `descriptor`, the number of an open file that goes along; cuda_ipc:
    `handle`; cuda_vmm_fd: `descriptor`."""

    kind: str
    offset_bytes: int
    size_bytes: int
    path: str | None = None
    descriptor: int | None = None
    handle: str | None = None
    device_uuid: str | None = None


@dataclass(frozen=True)
class AgentDescriptor:
    """Where the server finds a region."""

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
    """An engine's memory as the server knows it. `ends_with`: its connection, or a lease until
    `expires_at_ms`."""

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
    """What an allocator of a device's memory has. `slots`: of tiers; `device0` and so on: had from the driver."""

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
    """`uuid` is the same in every process on the machine. `freed_bytes`: of an emptied cache."""

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
    """A GPU that is there and did not open."""

    id: int
    why: str


@dataclass(frozen=True)
class UnmadeCache:
    """A cache that the server had, or is configured with, and could not make."""

    cache: str
    code: str
    detail: str
    awaits_engine: bool  # it lies in an engine's memory: its engine makes it anew


@dataclass(frozen=True)
class MemoryPool:
    """What memory is had from beside the tiers, as full as it was when the server was asked."""

    allocator: str
    device: str  # a device's number, or "host"
    allocated_bytes: int
    limit_bytes: int  # 0: as much as there is
    level: str


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
    runtime_fallback: str | None = None  # why the host stands in for a GPU that is there
    devices_left_out: list[LeftOutDevice] = field(default_factory=list)
    pools: list[MemoryPool] = field(default_factory=list)
    unmade_caches: list[UnmadeCache] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """`stored`, `removed`, `cleared` or `gap` of a cache. `id` resumes behind it."""

    kind: str
    id: int | None
    data: dict[str, Any]
