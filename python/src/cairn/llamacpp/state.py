"""State files of llama.cpp's slots: read, cut into blocks of tokens, and made from such blocks.

A file is little-endian: u32 magic, u32 version, u32 count, then `count` i32 that name the tokens, then the state of
the model's memory. The memory of a model whose layers all attend to everything is, for each stream (an array of
cells; a sequence lies in one):

- u32 cells; a stream without cells ends here
- for each cell i32 position, u32 sequences, and an i32 for each of them
- u32 whether values are transposed; u32 layers; since version 4 the u32 sizes of the rotations of keys and of values
- each layer's keys: i32 type, u64 bytes of a cell, the cells
- each layer's values, likewise; transposed ones are i32 type, u32 bytes of an element, u32 elements of a cell, then
  for each element those of all cells
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAGIC = 0x67677371
# The known versions, each with the number of its rotations. llama.cpp raises the version when it changes the form.
VERSIONS = {2: 0, 3: 0, 4: 2}
# The first word of a token list that carries more than tokens, and the version of that form.
PACKED_TOKENS, PACKED_VERSION = -1, 1
# Magic and version of checkpoints, and more of them than a slot has.
CHECKPOINTS = b"SCKP" + struct.pack("<I", 1)
MAX_CHECKPOINTS = 4096
# More than any model has. They bound the work on a file that is not what it seems.
MAX_STREAMS, MAX_LAYERS, MAX_SEQUENCES = 256, 4096, 256


class StateRefused(ValueError):
    """A state file that is not used. Its text says why."""


class UnknownVersion(StateRefused):
    """A state file of a version that this package does not know."""


class NotSliceable(StateRefused):
    """The memory is not one run of cells: a model with windows or recurrent states, or a damaged file."""


@dataclass(frozen=True)
class Rows:
    """The form of one layer's keys or values. `element_bytes` is 0 unless they are transposed."""

    type: int
    cell_bytes: int
    element_bytes: int = 0


@dataclass(frozen=True)
class Form:
    """The form of the state files of one llama-server. `sequences` is the number of sequence ids with each cell."""

    version: int
    packed: bool
    streams: int
    sequences: int
    transposed: bool
    rotations: tuple[int, ...]
    keys: tuple[Rows, ...]
    values: tuple[Rows, ...]

    @property
    def cell_bytes(self) -> int:
        """The bytes of one token, in all layers."""
        return sum(rows.cell_bytes for rows in self.rows)

    @property
    def rows(self) -> tuple[Rows, ...]:
        return self.keys + self.values

    def identity(self) -> str:
        """Two forms have the same identity if a block of one is a block of the other."""
        rows = [(rows.type, rows.cell_bytes, rows.element_bytes) for rows in self.rows]
        return repr((self.version, self.transposed, self.rotations, len(self.keys), rows))


@dataclass(frozen=True)
class State:
    """A state that was read. `order` has the cell of each token; `begins` the place of each layer's keys, then of
    each layer's values. Both refer to `data`."""

    form: Form
    tokens: Sequence[int]
    order: Sequence[int]
    begins: Sequence[int]
    data: memoryview

    def block(self, number: int, block_tokens: int) -> bytes:
        """Keys and values of the tokens of one block: of each layer the keys, then of each layer the values."""
        cells = self.order[number * block_tokens : (number + 1) * block_tokens]
        if len(cells) != block_tokens:
            raise IndexError(f"block {number} of a state with {len(self.tokens)} tokens")
        runs = _runs(cells)
        pieces: list[memoryview] = []
        for rows, begin in zip(self.form.rows, self.begins, strict=True):
            size = rows.element_bytes or rows.cell_bytes
            end = begin + rows.cell_bytes * len(self.order)
            for at in range(begin, end, size * len(self.order)) if size else ():
                pieces += [self.data[at + first * size : at + last * size] for first, last in runs]
        return b"".join(pieces)


def tokens_of(data: memoryview) -> list[int]:
    """The tokens of a state file. Raises StateRefused if the version is unknown or if there are not only tokens."""
    return _Reader(data).head()[2]


def read_state(data: memoryview) -> State:
    """Reads a state file's bytes, to which the result refers. Raises UnknownVersion, NotSliceable, or StateRefused
    for a state that cannot be stored."""
    reader = _Reader(data)
    version, packed, tokens = reader.head()
    streams = reader.u32(MAX_STREAMS)
    form: Form | None = None
    order: list[int] = []
    begins: list[int] = []
    for _ in range(streams):
        cells = reader.u32(len(tokens))
        if cells and form is not None:
            raise NotSliceable("the state has cells in several streams")
        if cells:
            positions, sequences = reader.cells(cells)
            form, begins = reader.layers(cells, version, packed, streams, sequences)
            order = _in_order(positions, len(tokens))
    if reader.at != len(data):
        raise NotSliceable(f"the state goes on after its cells, for {len(data) - reader.at} bytes")
    if form is None:
        raise StateRefused("the slot is empty")
    return State(form, tokens, order, begins, data)


def checkpoints_of(data: memoryview) -> list[int]:
    """After how many tokens a state of a model with windows or recurrent states has checkpoints: llama-server can go on
    from them if a prompt differs later. They are the end of the file: u32 magic, u32 version, u32 count, and for each
    i64 tokens, i32 first and last position, and three parts as u64 bytes and the bytes."""
    raw = bytes(data)
    begin = len(raw)
    while (begin := raw.rfind(CHECKPOINTS, 0, begin)) >= 0:
        found = _checkpoints(raw, begin + len(CHECKPOINTS))
        if found is not None:
            return found
    return []


def _checkpoints(raw: bytes, at: int) -> list[int] | None:
    """The checkpoints that begin here; None if they do not end with the file."""
    found = []
    try:
        (count,) = struct.unpack_from("<I", raw, at)
        at += 4
        for _ in range(min(count, MAX_CHECKPOINTS)):
            (tokens,) = struct.unpack_from("<q", raw, at)
            at += 16
            for _part in range(3):
                (size,) = struct.unpack_from("<Q", raw, at)
                at += 8 + size
            found.append(tokens)
    except struct.error:
        return None
    return found if at == len(raw) else None


def make_state(form: Form, tokens: Sequence[int], blocks: Sequence[memoryview]) -> Iterable[bytes | memoryview]:
    """The pieces of a state file with all `tokens`, from their blocks (those of `State.block`), which are equally
    large. Raises ValueError if the blocks are not those of the tokens."""
    cells = len(tokens)
    size = cells * form.cell_bytes
    if not blocks or cells % len(blocks) or any(len(block) * len(blocks) != size for block in blocks):
        raise ValueError(f"{len(blocks)} blocks are not those of {cells} tokens")
    return _pieces(form, tokens, blocks)


def _pieces(form: Form, tokens: Sequence[int], blocks: Sequence[memoryview]) -> Iterable[bytes | memoryview]:
    cells = len(tokens)
    named = [PACKED_TOKENS, PACKED_VERSION, cells, *tokens, 0] if form.packed else list(tokens)
    yield struct.pack("<III", MAGIC, form.version, len(named)) + _words(named)
    yield struct.pack("<II", form.streams, cells)
    one = [1, *[0] * form.sequences] if form.sequences else [0]
    yield _words([word for position in range(cells) for word in (position, *one)])
    yield _words([form.transposed, len(form.keys), *form.rotations])
    block_cells = cells // len(blocks)
    begin = 0  # of the rows in each block
    for rows in form.rows:
        if rows.element_bytes:
            yield struct.pack("<iII", rows.type, rows.element_bytes, rows.cell_bytes // rows.element_bytes)
        else:
            yield struct.pack("<iQ", rows.type, rows.cell_bytes)
        size = (rows.element_bytes or rows.cell_bytes) * block_cells
        end = begin + rows.cell_bytes * block_cells
        for at in range(begin, end, size) if size else ():
            for block in blocks:
                yield block[at : at + size]
        begin = end
    yield bytes(4 * (form.streams - 1))


class _Reader:
    """Reads a file from its begin on. Raises NotSliceable if the bytes cannot be what is read."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0

    def head(self) -> tuple[int, bool, list[int]]:
        """The version, whether the token list is packed, and the tokens."""
        if len(self._data) < 12:
            raise StateRefused(f"a state file has only {len(self._data)} bytes")
        magic, version, count = self._take("<III")
        if magic != MAGIC:
            raise StateRefused(f"the file is no state of a slot: it begins with {magic:#x}")
        if version not in VERSIONS:
            known = ", ".join(map(str, sorted(VERSIONS)))
            raise UnknownVersion(f"state files of version {version} are unknown; known: {known}")
        named = self._words(count)
        if not named or named[0] != PACKED_TOKENS:
            return version, False, named
        if len(named) < 4 or named[1] != PACKED_VERSION:
            raise UnknownVersion(f"the token list has the unknown form {named[1:2]}")
        if len(named) != 4 + named[2] or named[-1] != 0:
            raise StateRefused("the prompt has other parts than text")
        return version, True, named[3:-1]

    def u32(self, most: int) -> int:
        value: int = self._take("<I")[0]
        if value > most:
            raise NotSliceable(f"{value} is more than {most}")
        return value

    def cells(self, count: int) -> tuple[list[int], int]:
        """The cells' positions, and the number of sequences of each, which is 0 or 1."""
        sequences = int.from_bytes(self._data[self.at + 4 : self.at + 8], "little")
        if sequences > 1:
            raise NotSliceable(f"a cell is part of {sequences} sequences")
        words = self._words(count * (2 + sequences))
        if any(word != sequences for word in words[1 :: 2 + sequences]):
            raise NotSliceable("the cells differ in their sequences")
        return words[:: 2 + sequences], sequences

    def layers(self, cells: int, version: int, packed: bool, streams: int, sequences: int) -> tuple[Form, list[int]]:
        transposed = self.u32(1)
        layers = self.u32(MAX_LAYERS)
        rotations = tuple(self._words(VERSIONS[version]))
        keys, begins = [], []
        for _ in range(layers):
            kind, cell_bytes = self._take("<iQ")
            keys.append(Rows(kind, cell_bytes))
            begins.append(self._skip(cell_bytes * cells))
        values = []
        for _ in range(layers if self.at < len(self._data) else 0):
            if transposed:
                kind, element_bytes, elements = self._take("<iII")
                if not element_bytes:
                    raise NotSliceable("values have elements of 0 bytes")
                rows = Rows(kind, element_bytes * elements, element_bytes)
            else:
                rows = Rows(*self._take("<iQ"))
            values.append(rows)
            begins.append(self._skip(rows.cell_bytes * cells))
        form = Form(version, packed, streams, sequences, bool(transposed), rotations, tuple(keys), tuple(values))
        return form, begins

    def _take(self, form: str) -> tuple[int, ...]:
        begin = self._skip(struct.calcsize(form))
        return struct.unpack_from(form, self._data, begin)

    def _skip(self, size: int) -> int:
        begin, end = self.at, self.at + size
        if end > len(self._data):
            raise NotSliceable(f"the file ends {end - len(self._data)} bytes too early")
        self.at = end
        return begin

    def _words(self, count: int) -> list[int]:
        begin = self._skip(4 * count)
        words = array.array("i", bytes(self._data[begin : self.at]))
        if sys.byteorder != "little":
            words.byteswap()
        return words.tolist()


def _in_order(positions: Sequence[int], tokens: int) -> list[int]:
    """The cell of each position."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    if len(positions) != tokens or any(positions[cell] != at for at, cell in enumerate(order)):
        raise StateRefused("the cells are not the tokens from the first on; was the context shifted?")
    return order


def _runs(cells: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive cells as runs, each with its first cell and its end."""
    runs: list[tuple[int, int]] = []
    for cell in cells:
        if runs and runs[-1][1] == cell:
            runs[-1] = (runs[-1][0], cell + 1)
        else:
            runs.append((cell, cell + 1))
    return runs


def _words(values: Sequence[int]) -> bytes:
    words = array.array("i", values)
    if sys.byteorder != "little":
        words.byteswap()
    return words.tobytes()
