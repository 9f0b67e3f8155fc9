"""A worker's memory for tests. Its copies are done when the call returns."""

from __future__ import annotations

from collections.abc import Sequence

from cairn.engine.mover import Copies
from cairn.engine.store import Row


class FakePool:
    def __init__(self, blocks: list[bytearray]) -> None:
        self.blocks = blocks
        self.block_bytes = len(blocks[0])

    def order(self) -> object:
        return None

    def fence(self) -> None: ...

    def close(self) -> None: ...

    def load(self, blocks: Sequence[int], rows: Sequence[Row], after: object) -> Copies:
        for block, row in zip(blocks, rows, strict=True):
            self.blocks[block][:] = row
        return self

    def save(self, blocks: Sequence[int], rows: Sequence[Row]) -> Copies:
        for block, row in zip(blocks, rows, strict=True):
            row[:] = self.blocks[block]
        return self

    def wait(self) -> None: ...
