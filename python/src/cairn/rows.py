"""Blocks of one size in one memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload


class Rows(Sequence[memoryview]):
    """Each a piece of `row_bytes` bytes of the memory, from one of the offsets on."""

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
