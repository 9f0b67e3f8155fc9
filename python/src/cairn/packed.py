"""The compact binary form of the frequent calls: keys end to end in the request, records of 16 bytes in the
answer. All numbers are little-endian."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from cairn.errors import BadAnswer
from cairn.model import (
    MAX_KEY_BYTES,
    TIERS,
    Allocation,
    CacheInfo,
    Handle,
    Key,
    KvGroup,
    Match,
    MatchedBlock,
    key_bytes,
)

T = TypeVar("T", bound=Handle)

# u32 count, u32 reserved, 16 bytes of lease (all zero: no lease), u64 expires_at_ms
HEAD = struct.Struct("<II16sQ")
# u8 tier, u8 number of the KV group (read apart), 2 bytes zero, u32 slot, u64 generation
RECORD = struct.Struct("<B3xIQ")
GROUP_BYTE = 1
SLOT_WORD, RECORD_WORDS = 1, RECORD.size // 4
TIER_NUMBERS = bytes(range(len(TIERS)))
SHARED = TIERS.index("shared")


class PackedBlocks(Sequence[T]):
    """The records of an answer, decoded only when they are read: an engine wants the slots, hundreds at a time."""

    def __init__(self, records: memoryview, make: Callable[[int, str, int, int], T], begin: int = 0) -> None:
        """make: returns a block, given its index in the answer, its tier, slot and generation."""
        self._records = records
        self._make = make
        self._begin = begin
        self._tiers = records[:: RECORD.size].tobytes()
        if unknown := self._tiers.translate(None, TIER_NUMBERS):
            raise BadAnswer(f"a packed answer names an unknown tier {unknown[0]}")

    @property
    def slots(self) -> list[int]:
        return list(struct.unpack(f"<{len(self) * RECORD_WORDS}I", self._records)[SLOT_WORD::RECORD_WORDS])

    def first_here(self) -> int:
        """How many blocks, from the first on, are on the server's host (not in the shared tier)."""
        at = self._tiers.find(SHARED)
        return len(self) if at < 0 else at

    def first_in(self, tier: str) -> int:
        """How many blocks, from the first on, are in `tier`."""
        return len(self) - len(self._tiers.lstrip(bytes([TIERS.index(tier)])))

    def runs(self) -> list[tuple[str, int]]:
        """The tiers of the blocks, each with the number of consecutive blocks in it."""
        return [(TIERS[tier], sum(1 for _ in run)) for tier, run in itertools.groupby(self._tiers)]

    def __len__(self) -> int:
        return len(self._tiers)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            if step != 1:
                return [self[at] for at in range(begin, end, step)]
            end = max(begin, end)
            piece = self._records[begin * RECORD.size : end * RECORD.size]
            return PackedBlocks(piece, self._make, self._begin + begin)
        at = range(len(self))[index]
        tier, slot, generation = RECORD.unpack_from(self._records, at * RECORD.size)
        return self._make(self._begin + at, TIERS[tier], slot, generation)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # a memoryview cannot be pickled


def packed_keys(keys: Sequence[Key]) -> tuple[int, bytes] | None:
    """Returns the length of each key, and all keys end to end; None if the keys differ in length or type."""
    kinds = set(map(type, keys))
    if kinds != {bytes}:
        keys = [key_bytes(key) for key in keys]
    lengths = set(map(len, keys))
    if len(kinds) != 1 or len(lengths) != 1 or not 1 <= min(lengths) <= MAX_KEY_BYTES:
        return None
    return lengths.pop(), b"".join(keys)  # type: ignore[arg-type]


def read_match(
    body: bytearray, keys: Sequence[Key], memory_id: str | None = None, kv_group: str | None = None
) -> Match:
    """kv_group: that of all blocks."""
    lease, expires_at_ms, records = _open(body)

    def make(at: int, tier: str, slot: int, generation: int) -> MatchedBlock:
        return MatchedBlock(tier, slot, generation, key_bytes(keys[at]), kv_group=kv_group)

    # Blocks of the shared tier come last and are still on their way.
    blocks = PackedBlocks(records, make)
    matched = blocks.first_here()
    shared = len(blocks) - matched or None
    return Match(matched, lease, expires_at_ms, blocks[:matched], shared_matched=shared, memory_id=memory_id)


class Reach(NamedTuple):
    """How far a match reaches, in keys: with all KV groups, and with the full groups alone."""

    matched: int
    full_matched: int


def read_group_match(
    body: bytearray,
    keys: Sequence[Key],
    reach: Reach,
    cache: CacheInfo,
    memory_id: str | None = None,
    shared_matched: int | None = None,
) -> Match | None:
    """Decodes a match in a cache with KV groups, or one with `have`. The blocks come group by group, in the
    cache's order. The answer has no keys, but each group's blocks are consecutive and reach to the last matched
    key. Returns None if this does not determine all keys: with several full groups, the last block of one may be
    whole or a tail."""
    lease, expires_at_ms, records = _open(body)
    numbers = records[GROUP_BYTE :: RECORD.size].tobytes()
    groups: Sequence[KvGroup | None] = cache.kv_groups or [None]
    counts = [numbers.count(number) for number in range(len(groups))]
    if numbers != b"".join(bytes([number]) * count for number, count in enumerate(counts)):
        raise BadAnswer("a packed answer names an unknown KV group, or does not list the blocks group by group")
    has_one_full = sum(group is None or group.kind == "full" for group in groups) == 1
    places: list[int] = []  # of the blocks' keys in `keys`
    for group, count in zip(groups, counts, strict=True):
        of_group = _places(group, count, reach.matched, cache.block_tokens or 1)
        if of_group and group is not None and group.kind == "full" and of_group[-1] >= reach.full_matched:
            # The full groups together do not reach the end of this block. So it is a tail, which ends with the
            # match, unless only another full group stops here. No block ends beyond the requested keys.
            if of_group[-1] < len(keys) and not has_one_full:
                return None
            of_group[-1] = reach.matched - 1
        places += of_group
    if any(not 0 <= place < len(keys) for place in places):
        raise BadAnswer(f"a packed answer with {reach.matched} matched keys has {len(places)} blocks")

    def make(at: int, tier: str, slot: int, generation: int) -> MatchedBlock:
        name = cache.kv_groups[numbers[at]].name if cache.kv_groups else None
        return MatchedBlock(tier, slot, generation, key_bytes(keys[places[at]]), kv_group=name)

    blocks = PackedBlocks(records, make)
    return Match(
        reach.matched,
        lease,
        expires_at_ms,
        blocks,
        shared_matched=shared_matched,
        memory_id=memory_id,
        full_matched=reach.full_matched,
    )


def _places(group: KvGroup | None, count: int, matched: int, block_tokens: int) -> list[int]:
    """The places of the keys of a group's `count` blocks. A block holds a run of keys and has the last one."""
    run = 1 if group is None else max(group.layout.page_size // block_tokens, 1)
    runs = -(-matched // run)
    return list(range((runs - count + 1) * run - 1, runs * run, run))


def lease_of(body: bytearray) -> str | None:
    return _open(body)[0]


def read_allocation(
    body: bytearray, memory_id: str | None = None, kv_group: str | None = None
) -> Allocation:
    """kv_group: that of all blocks."""
    lease, expires_at_ms, records = _open(body)

    def make(at: int, tier: str, slot: int, generation: int) -> Handle:
        return Handle(tier, slot, generation, kv_group=kv_group)

    return Allocation(lease or "", expires_at_ms, PackedBlocks(records, make), memory_id)


def slots_of(blocks: Sequence[Handle]) -> list[int]:
    return blocks.slots if isinstance(blocks, PackedBlocks) else [block.slot for block in blocks]


def first_in(blocks: Sequence[Handle], tier: str) -> int:
    """How many blocks, from the first on, are in `tier`."""
    if isinstance(blocks, PackedBlocks):
        return blocks.first_in(tier)
    return next((at for at, block in enumerate(blocks) if block.tier != tier), len(blocks))


def tier_runs(blocks: Sequence[Handle]) -> list[tuple[str, int]]:
    """The tiers of the blocks, each with the number of consecutive blocks in it."""
    if isinstance(blocks, PackedBlocks):
        return blocks.runs()
    return [(tier, sum(1 for _ in run)) for tier, run in itertools.groupby(blocks, lambda block: block.tier)]


def _open(body: bytearray) -> tuple[str | None, int, memoryview]:
    if len(body) < HEAD.size:
        raise BadAnswer(f"a packed answer has only {len(body)} bytes")
    count, _, lease, expires_at_ms = HEAD.unpack_from(body)
    if len(body) != HEAD.size + count * RECORD.size:
        raise BadAnswer(f"a packed answer claims {count} blocks but has {len(body)} bytes")
    return (lease.hex() if any(lease) else None), expires_at_ms, memoryview(body)[HEAD.size :]
