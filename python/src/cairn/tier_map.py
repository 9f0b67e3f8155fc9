"""A tier's memory mapped into this process, and the address of each block in it.

`MappedTier` is the memory, which KV groups share. `TierMap` finds the blocks of one shape in it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any, overload

from cairn.client import Client
from cairn.errors import CairnError
from cairn.model import CacheInfo, Region, Shape, Strides, Tier, TierMemory

# The name of the only group of a cache without `kv_groups`.
DEFAULT_GROUP = "default"


class Rows(Sequence[memoryview]):
    """Blocks of `row_bytes` bytes each, at the given byte offsets in one memory."""

    def __init__(self, memory: memoryview, offsets: Sequence[int], row_bytes: int) -> None:
        self.memory = memory
        self.offsets = offsets
        self.row_bytes = row_bytes

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: int | slice) -> memoryview | Rows:
        if isinstance(index, slice):
            return Rows(self.memory, self.offsets[index], self.row_bytes)
        begin = self.offsets[index]
        return self.memory[begin : begin + self.row_bytes]

    def __iter__(self) -> Iterator[memoryview]:
        return (self.memory[begin : begin + self.row_bytes] for begin in self.offsets)


class MappedTier:
    """A mapped tier. The mapping lives as long as any view of it does, even after the server has ended."""

    def __init__(self, memory: TierMemory, cache: CacheInfo, tier: Tier, file: int) -> None:
        """Maps `file`, which the caller still owns. Raises CairnError if that fails."""
        self.identity = _identity_of(file)
        self.memory_id = memory.memory_id
        self.size_bytes = memory.size_bytes
        try:
            self.memory = memoryview(mmap.mmap(file, memory.size_bytes))
        except (OSError, ValueError) as error:  # ValueError: the file is too short
            raise CairnError(f"{memory.size_bytes} bytes of the tier cannot be mapped: {error}") from error
        regions = [region.offset_bytes for region in memory.regions]
        if memory.strides is None or not regions:
            raise CairnError("the server's export does not say where the blocks are")
        self.has_kv_groups = bool(cache.kv_groups)
        self._groups: dict[str, TierMap] = {}
        if cache.layout is not None:
            num_blocks = cache.tiers[tier].num_blocks or 0
            if len(regions) == 1:
                num_blocks = _room(memory.regions[0], cache.layout, memory.strides)
            self._groups[DEFAULT_GROUP] = TierMap(self.memory, regions, memory.strides, cache.layout, num_blocks)
        for group in cache.kv_groups:
            if group.name not in memory.kv_groups:
                raise CairnError(f"the server's export does not say where the blocks of {group.name} are")
            strides = memory.kv_groups[group.name].strides
            num_blocks = _room(memory.regions[0], group.layout, strides)
            self._groups[group.name] = TierMap(self.memory, regions, strides, group.layout, num_blocks)

    def of(self, kv_group: str | None) -> TierMap:
        """The blocks of a KV group. None means the group `default`."""
        found = self._groups.get(kv_group or DEFAULT_GROUP)
        if found is None:
            groups = ", ".join(self._groups)
            raise CairnError(f"the cache has the KV groups {groups}; name one of them as kv_group")
        return found

    def is_of(self, opened: OpenTier) -> bool:
        """Whether the open tier is this same memory, all of it, still used by the same cache."""
        memory = opened.memory
        return (self.identity, self.memory_id, self.size_bytes) == (
            _identity_of(opened.file),
            memory.memory_id,
            memory.size_bytes,
        )


class TierMap:
    """The blocks of one shape in a mapped tier."""

    def __init__(
        self, memory: memoryview, regions: Sequence[int], strides: Strides, shape: Shape, num_blocks: int
    ) -> None:
        """regions: where they begin in the memory, in bytes: one, or one for each layer."""
        self.memory = memory
        self.shape = shape
        self.num_blocks = num_blocks
        self.strides = strides
        # If each layer has its own region, `layer_bytes` is 0.
        self.layers = [
            regions[layer if len(regions) > 1 else 0] + layer * self.strides.layer_bytes
            for layer in range(shape.num_layers)
        ]

    def offset(self, slot: int, layer: int, outer: int) -> int:
        """The byte offset of one piece of a block."""
        return self.layers[layer] + slot * self.strides.block_bytes + outer * self.strides.outer_bytes

    def pieces(self, slot: int) -> Iterator[memoryview]:
        """A block's pieces in canonical order, [layer][outer]."""
        for layer in range(self.shape.num_layers):
            for outer in range(self.shape.outer_dim):
                begin = self.offset(slot, layer, outer)
                yield self.memory[begin : begin + self.shape.piece_bytes]

    def row(self, slot: int) -> memoryview:
        """A block as one piece. Raises CairnError if the tier's layout splits it."""
        return self.rows([slot])[0]

    def rows(self, slots: Sequence[int]) -> Rows:
        """Blocks as one piece each. Raises CairnError if the tier's layout splits them."""
        shape, strides = self.shape, self.strides
        in_order = shape.outer_dim == 1 or strides.outer_bytes == shape.piece_bytes
        layer_bytes = shape.outer_dim * shape.piece_bytes
        if not in_order or any(b - a != layer_bytes for a, b in zip(self.layers, self.layers[1:], strict=False)):
            raise CairnError("the tier's layout splits each block into several pieces")
        first, step = self.layers[0], strides.block_bytes
        return Rows(self.memory, [first + slot * step for slot in slots], shape.block_bytes)

    def spread(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The whole tier as one array [block][layer][outer][page][inner]: the offset of its first byte, its shape,
        and its strides in bytes."""
        shape, strides = self.shape, self.strides
        steps = {b - a for a, b in zip(self.layers, self.layers[1:], strict=False)}
        if len(steps) > 1:
            raise CairnError("the tier's layers are not evenly spaced, so they are not one array")
        layer_bytes = steps.pop() if steps else strides.block_bytes
        token_bytes = shape.inner_dim * shape.dtype_width_bytes
        return (
            self.layers[0],
            (self.num_blocks, shape.num_layers, shape.outer_dim, shape.page_size, shape.inner_dim),
            (strides.block_bytes, layer_bytes, strides.outer_bytes, token_bytes, shape.dtype_width_bytes),
        )

    def numpy(self, dtype: Any) -> Any:
        """The whole tier as a numpy array. `dtype` must have the width of the cache's values."""
        import numpy

        offset, shape, strides = self.spread()
        self._check_width(numpy.dtype(dtype).itemsize)
        return numpy.ndarray(shape, dtype, self.memory, offset, strides)

    def torch(self, dtype: Any) -> Any:
        """The whole tier as a torch tensor on the CPU. `dtype` must have the width of the cache's values."""
        import torch

        offset, shape, strides = self.spread()
        width = dtype.itemsize
        self._check_width(width)
        if any(stride % width for stride in (offset, *strides)):
            raise CairnError("the tier's strides are not multiples of its values' width")
        flat = torch.frombuffer(self.memory, dtype=dtype, count=len(self.memory) // width)
        return flat.as_strided(shape, [stride // width for stride in strides], offset // width)

    def _check_width(self, width_bytes: int) -> None:
        if width_bytes != self.shape.dtype_width_bytes:
            raise CairnError(
                f"the dtype has {width_bytes} bytes, but the cache's values have {self.shape.dtype_width_bytes}"
            )


def _room(region: Region, shape: Shape, strides: Strides) -> int:
    """How many slots can begin a block. A block may cover the slots after its own, so the last slots have none."""
    return (region.size_bytes - shape.block_bytes) // strides.block_bytes + 1


def _identity_of(file: int) -> tuple[int, int]:
    """The kernel gives no other memory this identity as long as this one is mapped."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino


class OpenTier:
    """The open file of a tier, requested from the server. Leave the `with` to close it."""

    def __init__(self, client: Client, cache: str, tier: Tier) -> None:
        self.memory, self._files = client.export(cache, tier)
        try:
            self.file = self._pick()
        except BaseException:
            self.close()
            raise

    def _pick(self) -> int:
        memory = self.memory
        if memory.kind != "shm":
            raise CairnError(f"the tier is {memory.kind} memory; only shared memory (shm) can be mapped")
        if memory.descriptor is not None:
            if memory.descriptor >= len(self._files):
                raise CairnError("the server did not send the tier's open file")
            return self._files[memory.descriptor]
        assert memory.path is not None
        # The path is in /proc of the server: another host has no such path, or a different file there.
        try:
            file = os.open(memory.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CairnError(f"the server's memory cannot be opened from this process: {error}") from error
        self._files.append(file)
        status = os.fstat(file)
        if status.st_size < memory.size_bytes or memory.inode not in (None, status.st_ino):
            raise CairnError(f"{memory.path} is not the exported memory: the server has another PID namespace")
        return file

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []

    def __enter__(self) -> OpenTier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
