"""The packed forms of the hot verbs: keys end to end there, records of 16 bytes back. Little-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from cairn.errors import BadAnswer
from cairn.model import TIERS, Allocation, Handle, Match, MatchedBlock

# u32 count, u32 reserved, 16 bytes of lease (zero: none), u64 expires_at_ms
HEAD = struct.Struct("<II16sQ")
# u8 tier, 3 bytes zero, u32 slot, u64 generation
RECORD = struct.Struct("<B3xIQ")


def packed_keys(keys: Sequence[bytes]) -> tuple[int, bytes] | None:
    """How long each key is, and all of them end to end; None where they differ in length."""
    length = len(keys[0]) if keys else 0
    joined = b"".join(keys)
    if length == 0 or any(len(key) != length for key in keys):
        return None
    return length, joined


def read_match(body: bytearray, keys: Sequence[bytes]) -> Match:
    lease, expires_at_ms, records = _open(body)
    blocks = [MatchedBlock(*record, key) for record, key in zip(records, keys, strict=False)]
    return Match(len(blocks), lease, expires_at_ms, blocks)


def read_allocation(body: bytearray) -> Allocation:
    lease, expires_at_ms, records = _open(body)
    return Allocation(lease or "", expires_at_ms, [Handle(*record) for record in records])


def _open(body: bytearray) -> tuple[str | None, int, Iterator[tuple[str, int, int]]]:
    if len(body) < HEAD.size:
        raise BadAnswer(f"a packed answer of {len(body)} bytes")
    count, _, lease, expires_at_ms = HEAD.unpack_from(body)
    if len(body) != HEAD.size + count * RECORD.size:
        raise BadAnswer(f"a packed answer of {count} blocks in {len(body)} bytes")
    records = RECORD.iter_unpack(memoryview(body)[HEAD.size :])
    return (lease.hex() if any(lease) else None), expires_at_ms, map(_handle, records)


def _handle(record: tuple[int, int, int]) -> tuple[str, int, int]:
    tier, slot, generation = record
    if tier >= len(TIERS):
        raise BadAnswer(f"a packed answer names tier {tier}")
    return TIERS[tier], slot, generation
