"""Copies many blocks at once between an engine's host memory and rows.

One copy for each block and layer costs some microseconds in Python, as much as copying a small block. So rows at
even distances, as slots that were allocated together are, are copied one layer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from cairn.engine.copy_helper import CopyHelper
from cairn.engine.store import Row
from cairn.tier_map import Rows


class HostBlocks:
    """layers: arrays `[block, ...]` of equal shape, in the model's order. A row is a block's layers one after the
    other, or at even distances with bytes of others between them."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = list(layers)
        self._helper = CopyHelper()

    def load(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        spans = list(self._spans(blocks, rows))

        def copy(number: int) -> None:
            for indices, source in spans:
                self._layers[number][indices] = source[:, number]

        self._helper.share(copy, len(self._layers), _bytes_of(rows))

    def save(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        spans = list(self._spans(blocks, rows))

        def copy(number: int) -> None:
            for indices, target in spans:
                target[:, number] = self._layers[number][indices]

        self._helper.share(copy, len(self._layers), _bytes_of(rows))

    def close(self) -> None:
        self._helper.close()

    def _spans(self, blocks: Sequence[int], rows: Sequence[Row]) -> Iterator[tuple[Any, Any]]:
        """Yields runs of blocks, each with its rows as one array `[block, layer, ...]`."""
        if len(blocks) != len(rows):
            raise ValueError(f"{len(rows)} rows for {len(blocks)} blocks")
        if not isinstance(rows, Rows):
            for block, row in zip(blocks, rows, strict=True):
                yield slice(block, block + 1), self._array(row)[numpy.newaxis]
            return
        unsorted = numpy.asarray(rows.offsets)
        order = numpy.argsort(unsorted)
        offsets, indices = unsorted[order], numpy.asarray(blocks)[order]
        # A run ends where the distance to the next row changes.
        ends = (numpy.flatnonzero(numpy.diff(offsets, 2)) + 2).tolist()
        begin = 0
        for end in [*ends, len(order)]:
            if end == begin + 1 and end < len(order):
                continue  # a single row after a run starts the next run
            first = self._array(rows[int(order[begin])])
            step = int(offsets[begin + 1] - offsets[begin]) if end > begin + 1 else 0
            shape, strides = (end - begin, *first.shape), (step, *first.strides)
            yield _index(indices[begin:end]), numpy.lib.stride_tricks.as_strided(first, shape, strides)
            begin = end

    def _array(self, row: Row) -> Any:
        """A row as `[layer, ...]`. Its layers may lie apart, at even distances."""
        layer, count = self._layers[0], len(self._layers)
        flat = numpy.frombuffer(row, layer.dtype)
        first = flat[: layer[0].size].reshape(layer.shape[1:])
        apart = (row.nbytes - first.nbytes) // max(count - 1, 1)
        return numpy.lib.stride_tricks.as_strided(first, (count, *first.shape), (apart, *first.strides))


def _bytes_of(rows: Sequence[Row]) -> int:
    return len(rows) * rows[0].nbytes if rows else 0


def _index(blocks: Any) -> Any:
    """A slice if the blocks are consecutive, because numpy copies it faster than an index array."""
    if (numpy.diff(blocks) == 1).all():
        return slice(int(blocks[0]), int(blocks[-1]) + 1)
    return blocks
