"""A tier of a server on this host, mapped: reads and writes blocks in place instead of copying them over HTTP.

    view = cairn.TierView(client, "llama")
    with view.read(keys) as held:                 # the longest prefix in the tier, pinned
        for block in held:
            block.copy_to(buffer)                 # or block.numpy("uint16"), block.torch(torch.bfloat16)
    # The `with` raises LeaseLost unless the blocks were valid the whole time.

    with view.write(len(new)) as slots:           # slots that only this process sees
        for slot, data in zip(slots, new):
            slot.copy_from(data)
        slots.commit(new_keys, parent=last_key)   # visible from here on

In a cache with KV groups, `read` and `write` take the name of one as `kv_group`: they then read the longest run of
`keys` that this group has, each key one block. What a prompt needs of each group is what `Client.match` lists.

This module keeps the rules of mapped memory. Blocks are read under a lease, which is renewed and must still be
held at the end. Only allocated slots are written, and never close to the end of their lease. After a server's
restart its memory is another one, so each lease is used with the mapping of the memory it refers to.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cairn._forks import in_each_child
from cairn.client import Client
from cairn.errors import CairnError, LeaseLost, WrongArgument
from cairn.http import flat
from cairn.leases import KeptLease, LeaseKeeper
from cairn.model import Committed, Handle, Key, Match, NewBlock, Reuse, Shape, Tier
from cairn.packed import first_in, slots_of
from cairn.tier_map import DEFAULT_GROUP, MappedTier, OpenTier, Rows, TierMap

DEFAULT_LEASE_MS = 30_000


class BlockView:
    """One block in place. Use it only inside the `with` that it comes from."""

    def __init__(self, held: _LeasedBlocks, tier: TierMap, slot: int, *, writable: bool) -> None:
        self.slot = slot
        self._held = held  # keeps the lease renewed while this view exists
        self._tier = tier
        self._writable = writable

    def pieces(self) -> Iterator[memoryview]:
        """The block's pieces in canonical order, [layer][outer], in the tier's own memory."""
        for piece in self._tier.pieces(self.slot):
            yield piece if self._writable else piece.toreadonly()

    def row(self) -> memoryview:
        """The whole block in canonical order, as one piece. Raises CairnError if the tier's layout splits it;
        `fully_contiguous` does not."""
        row = self._tier.row(self.slot)
        return row if self._writable else row.toreadonly()

    def copy_to(self, buffer: bytearray | memoryview) -> None:
        """Copies the block, in canonical order, into a buffer of `block_bytes` bytes."""
        at = 0
        room = flat(buffer, "the buffer")
        if room.readonly:
            raise WrongArgument(f"the buffer is a read-only {type(buffer).__name__}; it must be writable")
        self._check_length(len(room))
        for piece in self._tier.pieces(self.slot):
            room[at : at + len(piece)] = piece
            at += len(piece)

    def copy_from(self, data: bytes | bytearray | memoryview) -> None:
        """Fills the block with `block_bytes` bytes in canonical order."""
        at = 0
        source = flat(data)
        self._check_length(len(source))
        if not self._writable:
            raise CairnError("a block that has a key cannot be written again")
        for piece in self._tier.pieces(self.slot):
            piece[:] = source[at : at + len(piece)]
            at += len(piece)

    def numpy(self, dtype: Any) -> Any:
        """The block as a numpy array [layer][outer][page][inner], in place."""
        array = self._tier.numpy(dtype)[self.slot]
        array.flags.writeable = self._writable
        return array

    def torch(self, dtype: Any) -> Any:
        """The block as a torch tensor [layer][outer][page][inner], in place. Torch has no read-only tensors: do
        not write to one that comes from `read`."""
        return self._tier.torch(dtype)[self.slot]

    def _check_length(self, given_bytes: int) -> None:
        if given_bytes != self._tier.shape.block_bytes:
            raise CairnError(f"{given_bytes} bytes for a block of {self._tier.shape.block_bytes} bytes")


class _LeasedBlocks:
    """Blocks under a lease, in order. If the object is dropped without a release, the lease is no longer renewed
    and ends with its time."""

    def __init__(
        self, keeper: LeaseKeeper, lease: KeptLease | None, tier: TierMap, blocks: Sequence[Handle]
    ) -> None:
        self.handles = blocks
        self._keeper = keeper
        self._lease = lease
        self._tier = tier
        self._writable = False

    def __del__(self) -> None:
        if self._lease is not None and self._lease.is_own:
            self._lease.lose()
            warnings.warn(f"{len(self)} blocks were never released: use `with`", ResourceWarning, stacklevel=2)

    def __len__(self) -> int:
        return len(self.handles)

    def __getitem__(self, index: int) -> BlockView:
        """Raises LeaseLost if the lease has ended or is about to end."""
        self.check()
        return BlockView(self, self._tier, self.handles[index].slot, writable=self._writable)

    def __iter__(self) -> Iterator[BlockView]:
        return (self[index] for index in range(len(self)))

    @property
    def slots(self) -> list[int]:
        return slots_of(self.handles)

    def rows(self) -> Rows:
        """The blocks in canonical order, as one piece each. Raises CairnError if the tier's layout splits them;
        `fully_contiguous` does not."""
        self.check()
        rows = self._tier.rows(self.slots)
        return rows if self._writable else Rows(rows.memory.toreadonly(), rows.offsets, rows.row_bytes)

    def tier_torch(self, dtype: Any) -> Any:
        """The whole tier as a tensor [block][layer][outer][page][inner], for batched copies. Touch only the blocks
        in `slots`."""
        self.check()
        return self._tier.torch(dtype)

    def check(self) -> None:
        """Raises LeaseLost if the server may have reused the blocks."""
        if self._lease is not None:
            self._keeper.check(self._lease)

    def release(self) -> None:
        """Gives the blocks up. Does not raise if the lease was lost."""
        lease, self._lease = self._lease, None
        self.handles = []
        if lease is not None:
            self._keeper.drop(lease)


class ReadBlocks(_LeasedBlocks):
    """The longest prefix of the requested keys that is in the tier."""

    def end(self) -> None:
        """Gives the blocks up. Raises LeaseLost if they were not held the whole time: discard what was read."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._keeper.end(lease)

    def __enter__(self) -> ReadBlocks:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.end()
        else:
            self.release()


class WriteBlocks(_LeasedBlocks):
    """Slots that nobody else sees until `commit`."""

    def __init__(
        self, keeper: LeaseKeeper, lease: KeptLease, tier: TierMap, blocks: Sequence[Handle], cache: _Cache
    ) -> None:
        super().__init__(keeper, lease, tier, blocks)
        self._writable = True
        self._cache = cache

    def commit(
        self,
        keys: Sequence[Key],
        *,
        parent: Key | None = None,
        parents: Sequence[Key | None] | None = None,
        reuse: Reuse | None = None,
        session: str | None = None,
        shard: int | None = None,
        shards: int | None = None,
    ) -> list[Committed]:
        """Gives the slots, which must all be written, their keys, and releases the lease. The keys are one prefix
        after `parent`, or each has its own in `parents`. If a key exists, the first block stays and the status is
        `duplicate`. With `shard` and `shards` the slots hold that part of each block, and the others come from other
        writers. `reuse` and `session` are those of `Client.commit`. Raises LeaseLost if the lease has ended or
        the slots were committed before."""
        if len(keys) != len(self):
            raise CairnError(f"{len(keys)} keys for {len(self)} slots")
        self.check()
        lease = self._lease
        if lease is None:
            raise LeaseLost("the slots were already committed or released")
        before = [parent, *keys[:-1]] if parents is None else parents
        blocks = [
            NewBlock(handle, key, parent=last, shard=shard, shards=shards)
            for handle, key, last in zip(self.handles, keys, before, strict=True)
        ]
        committed = self._cache.client.commit(
            self._cache.name, lease.lease, blocks, release=True, reuse=reuse, session=session
        )
        self._keeper.ended(lease)
        self._lease, self.handles = None, []
        return committed.blocks

    def __enter__(self) -> WriteBlocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Cache:
    def __init__(self, client: Client, name: str, tier: Tier) -> None:
        self.client = client
        self.name = name
        self.tier: Tier = tier


class TierView:
    """One tier of one cache, mapped into this process. Safe from several threads. A forked child can use it too,
    with its own leases: blocks that the parent reads or writes at the time of the fork raise LeaseLost in the
    child.

    client: preferably over the server's Unix socket. Over HTTP the server must run in the same PID namespace.
    tier: one in host memory.
    lease_ms: how long blocks stay pinned if this process dies.
    on_map: called with the tier's memory each time it is mapped, also in a child, for example to pin it for a GPU.

    Raises CairnError if the tier cannot be mapped here.
    """

    def __init__(
        self,
        client: Client,
        cache: str,
        tier: Tier = "pinned",
        lease_ms: int = DEFAULT_LEASE_MS,
        on_map: Callable[[memoryview], None] | None = None,
    ) -> None:
        self.lease_ms = lease_ms
        self._on_map = on_map
        self._cache = _Cache(client, cache, tier)
        self._keeper = LeaseKeeper(client)
        self._begin()
        in_each_child(self._begin)
        self._map_now()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._map: MappedTier | None = None

    def __reduce__(self) -> tuple[object, ...]:
        cache = self._cache
        return TierView, (cache.client, cache.name, cache.tier, self.lease_ms, self._on_map)

    @property
    def shape(self) -> Shape:
        """The shape of the cache's blocks. Raises CairnError if it has KV groups: see `shape_of`."""
        return self.shape_of(None)

    def shape_of(self, kv_group: str | None) -> Shape:
        """The shape of a KV group's blocks."""
        return self._current_or_last(kv_group).shape

    @property
    def block_bytes(self) -> int:
        return self.shape.block_bytes

    def read(self, keys: Sequence[Key], *, wait_ms: int = 0, kv_group: str | None = None) -> ReadBlocks:
        """Pins the longest prefix of `keys` that is in this tier. Blocks of lower tiers are moved up first; that
        is waited for at most `wait_ms`. In a cache with KV groups, `kv_group` names the one whose blocks are read.
        """
        client, name, tier = self._cache.client, self._cache.name, self._cache.tier
        kv_group = self._group_of(kv_group)

        def find(onboard: Tier | None = None, wait_ms: int | None = None) -> Match:
            return client.match(
                name, keys, lease_ms=self.lease_ms, onboard=onboard, wait_ms=wait_ms, kv_group=kv_group
            )

        asked_at = time.monotonic()
        match = find()
        if match.lease is None:
            return ReadBlocks(self._keeper, None, self._current_or_last(kv_group), [])
        lease = self._keeper.keep(match.lease, self.lease_ms, asked_at)
        try:
            here = first_in(match.blocks, tier)
            if here < match.matched:
                asked_at = time.monotonic()
                match = find(onboard=tier, wait_ms=wait_ms)
                self._keeper.drop(lease)
                if match.lease is None:
                    return ReadBlocks(self._keeper, None, self._current_or_last(kv_group), [])
                lease = self._keeper.keep(match.lease, self.lease_ms, asked_at)
                here = first_in(match.blocks, tier)
        except BaseException:
            self._keeper.drop(lease)
            raise
        blocks = match.blocks[:here]
        return ReadBlocks(self._keeper, lease, self._holding(lease, match.memory_id, kv_group, blocks), blocks)

    def write(
        self, count: int, *, priority: int | None = None, kv_group: str | None = None
    ) -> WriteBlocks:
        """Allocates `count` slots. Raises NoCapacity if there is not room for all of them. In a cache with KV
        groups, `kv_group` names that of the blocks."""
        kv_group = self._group_of(kv_group)
        asked_at = time.monotonic()
        slots = self._cache.client.allocate(
            self._cache.name,
            count if kv_group is None else None,
            counts=None if kv_group is None else {kv_group: count},
            tier=self._cache.tier,
            lease_ms=self.lease_ms,
            priority=priority,
        )
        lease = self._keeper.keep(slots.lease, self.lease_ms, asked_at)
        tier = self._holding(lease, slots.memory_id, kv_group, slots.blocks)
        return WriteBlocks(self._keeper, lease, tier, slots.blocks, self._cache)

    def _group_of(self, kv_group: str | None) -> str | None:
        """The group to name in requests. None: the cache has no KV groups."""
        with self._lock:
            last = self._map
        tier = self._map_now() if last is None else last
        tier.of(kv_group)
        return (kv_group or DEFAULT_GROUP) if tier.has_kv_groups else None

    def _current_or_last(self, kv_group: str | None) -> TierMap:
        with self._lock:
            last = self._map
        return (self._map_now() if last is None else last).of(kv_group)

    def _holding(
        self, lease: KeptLease, memory_id: str | None, kv_group: str | None, blocks: Sequence[Handle]
    ) -> TierMap:
        """The mapping that has the blocks of the lease, which is dropped if that fails."""
        try:
            tier = self._map_now(memory_id).of(kv_group)
            if any(slot >= tier.num_blocks for slot in slots_of(blocks)):  # the tier has grown
                tier = self._map_now(memory_id, again=True).of(kv_group)
            return tier
        except BaseException:
            self._keeper.drop(lease)
            raise

    def _map_now(self, memory_id: str | None = None, *, again: bool = False) -> MappedTier:
        """The mapping of the server's current memory. It is mapped again if the last mapping is not `memory_id`,
        the memory of the lease's blocks. Raises LeaseLost if the server has other memory by now, which must not be
        written to. A server that reports no memory_id is asked each time, and any server if `again` is set."""
        with self._lock:
            known = self._map
        if known is not None and memory_id is not None and known.memory_id == memory_id and not again:
            return known
        client, name, tier = self._cache.client, self._cache.name, self._cache.tier
        with OpenTier(client, name, tier) as opened:
            if memory_id is not None and opened.memory.memory_id != memory_id:
                raise LeaseLost(f"the server recreated the cache {name} during the request")
            with self._lock:
                if self._map is not None and self._map.is_of(opened):
                    return self._map
            made = MappedTier(opened.memory, client.cache_info(name), tier, opened.file)
        if self._on_map is not None:
            self._on_map(made.memory)
        with self._lock:
            self._map = made
        return made
