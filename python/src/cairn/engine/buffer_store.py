"""Copies blocks by key between a store and an engine's buffers, for engines that call from their own threads.

Nothing here raises. If the server fails or is too slow, a block counts as not stored or not found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cairn.engine.access import Access
from cairn.engine.copy_helper import CopyHelper
from cairn.engine.hints import NO_HINT, Hint
from cairn.engine.report import Report
from cairn.engine.store import Row, Store, WriteRows
from cairn.errors import CairnError, Refused

T = TypeVar("T")

# One block's memory in the engine, in one or more pieces. The pieces end to end are the block's bytes.
Pieces = Sequence[memoryview]

# The server answers for prefixes only. After a missing block it is asked again for the rest, at most this often.
MAX_GAPS = 8


@dataclass(frozen=True)
class CopiedBlocks:
    """Blocks that the server has room for, but that nobody finds before `commit`."""

    keys: Sequence[bytes]
    commit: Callable[[], bool]  # returns whether they are stored
    release: Callable[[], None]  # gives them up


class BufferStore:
    """Safe from several threads."""

    def __init__(self, access: Access, block_bytes: int, report: Report, group: int = 0) -> None:
        """group: the number of the KV group whose blocks these are."""
        self.block_bytes = block_bytes
        self._access = access
        self._group = group
        self._report = report
        self._helper = CopyHelper()

    def prefix(self, keys: Sequence[bytes]) -> int:
        """How many of the first `keys` exist. They are not pinned."""
        return self._guard("look-up", 0, lambda: self._use(lambda store: store.has(keys))) if keys else 0

    def each(self, keys: Sequence[bytes], max_gaps: int = MAX_GAPS) -> list[bool]:
        """Which keys exist. After `max_gaps` missing ones, the rest count as missing."""
        return over_gaps(len(keys), lambda begin: self.prefix(keys[begin:]), max_gaps)

    def get(self, keys: Sequence[bytes], blocks: Sequence[Pieces]) -> list[bool]:
        """Copies blocks into the engine's memory and returns which of them arrived. The memory of a block that did
        not arrive may be partly overwritten."""
        began = time.monotonic()
        arrived = over_gaps(len(keys), lambda begin: self._get_prefix(keys[begin:], blocks[begin:]))
        self._report.loaded(
            blocks=sum(arrived),
            failed_blocks=len(arrived) - sum(arrived),
            block_bytes=self.block_bytes,
            seconds=time.monotonic() - began,
        )
        return arrived

    def put(
        self,
        keys: Sequence[bytes],
        blocks: Sequence[Pieces],
        parents: Sequence[bytes | None],
        hint: Hint = NO_HINT,
    ) -> bool:
        """Stores blocks, all or none. Returns whether they are stored."""
        copied = self.copy(keys, blocks, parents, hint)
        return copied is not None and copied.commit()

    def copy(
        self,
        keys: Sequence[bytes],
        blocks: Sequence[Pieces],
        parents: Sequence[bytes | None],
        hint: Hint = NO_HINT,
    ) -> CopiedBlocks | None:
        """The first half of `put`: copies blocks out of the engine's memory. None if that failed."""

        def copy() -> WriteRows:
            if not len(keys) == len(blocks) == len(parents):
                raise ValueError(f"{len(keys)} keys for {len(blocks)} blocks and {len(parents)} parents")
            write = self._use(lambda store: store.write(len(keys)))
            try:
                self._copy(_gather, write.rows, blocks)
            except BaseException as error:
                if isinstance(error, CairnError):
                    self._access.failed(error)
                write.release()
                raise
            return write

        write = self._guard("save", None, copy) if keys else None
        if write is None and keys:
            self._report.count("saves_skipped_blocks", len(keys))
            return None

        def commit() -> bool:
            new = 0 if write is None else self._guard("save", -1, lambda: self._commit(write, keys, parents, hint))
            if new < 0:
                self._report.count("saves_skipped_blocks", len(keys))
                return False
            self._report.saved(blocks=new, duplicate_blocks=len(keys) - new, block_bytes=self.block_bytes)
            return True

        def release() -> None:
            if write is not None:
                self._guard("save", None, write.release)

        return CopiedBlocks(keys, commit, release)

    def close(self) -> None:
        """Waits for the copies that run."""
        self._helper.close()

    def _use(self, act: Callable[[Store], T]) -> T:
        return self._access.use(lambda store: act(store.of(self._group)))

    def _commit(
        self, write: WriteRows, keys: Sequence[bytes], parents: Sequence[bytes | None], hint: Hint
    ) -> int:
        try:
            return write.commit(keys, parents, hint)
        except CairnError as error:
            self._access.failed(error)
            raise
        finally:
            write.release()

    def _copy(self, copy: Callable[[Row, Pieces], None], rows: Sequence[Row], blocks: Sequence[Pieces]) -> None:
        self._helper.share(lambda at: copy(rows[at], blocks[at]), len(rows), len(rows) * self.block_bytes)

    def _get_prefix(self, keys: Sequence[bytes], blocks: Sequence[Pieces]) -> int:
        def get() -> int:
            read = self._use(lambda store: store.read(keys))
            try:
                rows = read.rows[: len(keys)]
                self._copy(_scatter, rows, blocks)
                read.end()
            except BaseException:
                read.release()
                raise
            return len(rows)

        return self._guard("load", 0, get)

    def _guard(self, what: str, fallback: T, act: Callable[[], T]) -> T:
        try:
            return act()
        except Refused as error:
            self._report.warn(f"a {what} was refused: {error}")
        except CairnError as error:
            self._report.warn(f"a {what} failed: {error}")
        except Exception:
            self._report.failed(f"a {what} failed")
        return fallback


def over_gaps(count: int, prefix: Callable[[int], int], max_gaps: int = MAX_GAPS) -> list[bool]:
    """Which of `count` blocks exist. `prefix` returns how many exist in a row from an index on; it is called again
    after each missing block, until `max_gaps` are missing."""
    there = [False] * count
    begin = gaps = 0
    while begin < count and gaps < max_gaps:
        end = begin + prefix(begin)
        there[begin:end] = [True] * (end - begin)
        begin, gaps = end + 1, gaps + 1
    return there


def _gather(row: Row, pieces: Pieces) -> None:
    at = 0
    for piece in pieces:
        _copy_bytes(row[at : at + piece.nbytes], piece)
        at += piece.nbytes
    assert at == row.nbytes, "the pieces do not have the size of the block"


def _scatter(row: Row, pieces: Pieces) -> None:
    at = 0
    for piece in pieces:
        _copy_bytes(piece, row[at : at + piece.nbytes])
        at += piece.nbytes
    assert at == row.nbytes, "the pieces do not have the size of the block"


def _copy_bytes(to: memoryview, source: memoryview) -> None:
    try:
        import numpy
    except ImportError:
        to.cast("B")[:] = source.cast("B")
    else:
        # numpy releases the interpreter's lock during the copy; a memoryview does not.
        numpy.copyto(numpy.frombuffer(to, numpy.uint8), numpy.frombuffer(source, numpy.uint8))
