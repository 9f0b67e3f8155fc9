"""A worker's memory for tests. Its copies are done when the call returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cairn.engine.mover import Copies
from cairn.engine.store import Row


class FakePool:
    num_layers = 1

    def __init__(self, blocks: list[bytearray]) -> None:
        self.blocks = blocks
        self.block_bytes = len(blocks[0])

    def order(self) -> object:
        return None

    def fence(self) -> None: ...

    def close(self) -> None: ...

    def load(self, blocks: Sequence[int], rows: Sequence[Row], after: object) -> Copies:
        for block, row in zip(blocks, rows, strict=True):
            for mine, theirs in self._layers(row):
                self.blocks[block][mine] = row[theirs]
        return self

    def save(self, blocks: Sequence[int], rows: Sequence[Row]) -> Copies:
        for block, row in zip(blocks, rows, strict=True):
            for mine, theirs in self._layers(row):
                row[theirs] = self.blocks[block][mine]
        return self

    def _layers(self, row: Row) -> Iterator[tuple[slice, slice]]:
        """Where each layer is in a block and in a row, in which layers lie at even distances."""
        size = self.block_bytes // self.num_layers
        apart = (row.nbytes - size) // max(self.num_layers - 1, 1)
        for layer in range(self.num_layers):
            yield slice(layer * size, (layer + 1) * size), slice(layer * apart, layer * apart + size)

    def wait(self) -> None: ...
