"""Copies between an engine's blocks in host memory and rows, many at a time.

A copy a block and layer costs some microseconds in Python, as much as the bytes of a small block. Rows that lie at
even distances, as slots that were allocated together do, are copied a layer at a time instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from cairn.engine.store import Row
from cairn.rows import Rows


class HostBlocks:
    """layers: arrays `[block, ...]` of one shape, in the model's order. A row is a block's layers end to end."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = list(layers)

    def load(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        for wanted, source in self._spans(blocks, rows):
            for number, layer in enumerate(self._layers):
                layer[wanted] = source[:, number]

    def save(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        for wanted, target in self._spans(blocks, rows):
            for number, layer in enumerate(self._layers):
                target[:, number] = layer[wanted]

    def _spans(self, blocks: Sequence[int], rows: Sequence[Row]) -> Iterator[tuple[Any, Any]]:
        """Blocks, and the rows of each as one array `[block, layer, ...]`."""
        if len(blocks) != len(rows):
            raise ValueError(f"{len(rows)} rows for {len(blocks)} blocks")
        if not isinstance(rows, Rows):
            for block, row in zip(blocks, rows, strict=True):
                yield slice(block, block + 1), self._array(row)[numpy.newaxis]
            return
        order = sorted(range(len(rows)), key=rows.offsets.__getitem__)
        places = [rows.offsets[at] for at in order]
        begin = 0
        while begin < len(order):
            count, step = _run(places, begin)
            first = self._array(rows[order[begin]])
            span = numpy.lib.stride_tricks.as_strided(first, (count, *first.shape), (step, *first.strides))
            yield _index([blocks[at] for at in order[begin : begin + count]]), span
            begin += count

    def _array(self, row: Row) -> Any:
        """A row as `[layer, ...]`."""
        layer = self._layers[0]
        return numpy.frombuffer(row, layer.dtype).reshape(len(self._layers), *layer.shape[1:])


def _run(places: Sequence[int], begin: int) -> tuple[int, int]:
    """How many from `begin` on lie at even distances, and at which."""
    if begin + 1 == len(places):
        return 1, 0
    step = places[begin + 1] - places[begin]
    end = begin + 2
    while end < len(places) and places[end] - places[end - 1] == step:
        end += 1
    return end - begin, step


def _index(blocks: Sequence[int]) -> Any:
    """Blocks that follow on one another are a slice, which is the faster index."""
    begin, end = blocks[0], blocks[0] + len(blocks)
    return slice(begin, end) if list(blocks) == list(range(begin, end)) else numpy.array(blocks)
