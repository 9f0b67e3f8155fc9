"""Blocks by key between a store and an engine's buffers, for engines that call from threads of their own.

Nothing here raises: what the server does not do, or not in time, is a block that was not stored or did not come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cairn.engine.access import Access
from cairn.engine.helper import Helper
from cairn.engine.hints import NO_HINT, Hint
from cairn.engine.report import Report
from cairn.engine.store import Row
from cairn.errors import CairnError, Refused

T = TypeVar("T")

# The memory of one block, in as many pieces as the engine has it in; the pieces' bytes in order are the block's.
Pieces = Sequence[memoryview]

# A server is asked for prefixes. Behind a block that is missing it is asked again, for so many of them.
MAX_GAPS = 8


class Shelf:
    """Safe from several threads."""

    def __init__(self, access: Access, block_bytes: int, report: Report) -> None:
        self.block_bytes = block_bytes
        self._access = access
        self._report = report
        self._helper = Helper()

    def prefix(self, keys: Sequence[bytes]) -> int:
        """How many of the first `keys` are there. Nothing keeps them there."""
        return self._soft("look-up", 0, lambda: self._access.use(lambda store: store.has(keys))) if keys else 0

    def each(self, keys: Sequence[bytes], max_gaps: int = MAX_GAPS) -> list[bool]:
        """Which are there. Behind `max_gaps` that are not, none is found."""
        return self._over_gaps(keys, lambda begin: self.prefix(keys[begin:]), max_gaps)

    def get(self, keys: Sequence[bytes], blocks: Sequence[Pieces]) -> list[bool]:
        """Copies blocks into the engine's memory; which of them came. What did not come may have been written to
        in part."""
        began = time.monotonic()
        came = self._over_gaps(keys, lambda begin: self._get_prefix(keys[begin:], blocks[begin:]))
        self._report.count("loaded_blocks", sum(came))
        self._report.count("loaded_bytes", sum(came) * self.block_bytes)
        self._report.count("load_seconds", time.monotonic() - began)
        self._report.count("load_failed_blocks", len(came) - sum(came))
        return came

    def put(
        self,
        keys: Sequence[bytes],
        blocks: Sequence[Pieces],
        parents: Sequence[bytes | None],
        hint: Hint = NO_HINT,
    ) -> bool:
        """Stores blocks, all or none of them."""

        def put() -> int:
            if not len(keys) == len(blocks) == len(parents):
                raise ValueError(f"{len(keys)} keys for {len(blocks)} blocks and {len(parents)} parents")
            write = self._access.use(lambda store: store.write(len(keys)))
            try:
                self._copy(_gather, write.rows, blocks)
                return write.commit(keys, parents, hint)
            except CairnError as error:
                self._access.failed(error)
                raise
            finally:
                write.release()

        new = self._soft("save", -1, put) if keys else 0
        if new < 0:
            self._report.count("saves_skipped_blocks", len(keys))
            return False
        self._report.count("saved_blocks", new)
        self._report.count("saved_bytes", new * self.block_bytes)
        self._report.count("saves_duplicate_blocks", len(keys) - new)
        return True

    def close(self) -> None:
        """Nothing is copied any more."""
        self._helper.close()

    def _copy(self, copy: Callable[[Row, Pieces], None], rows: Sequence[Row], blocks: Sequence[Pieces]) -> None:
        self._helper.share(lambda at: copy(rows[at], blocks[at]), len(rows), len(rows) * self.block_bytes)

    def _get_prefix(self, keys: Sequence[bytes], blocks: Sequence[Pieces]) -> int:
        def get() -> int:
            read = self._access.use(lambda store: store.read(keys))
            try:
                rows = read.rows[: len(keys)]
                self._copy(_scatter, rows, blocks)
                read.end()
            except BaseException:
                read.release()
                raise
            return len(rows)

        return self._soft("load", 0, get)

    def _over_gaps(
        self, keys: Sequence[bytes], prefix: Callable[[int], int], max_gaps: int = MAX_GAPS
    ) -> list[bool]:
        """`prefix` says how many from an index on are there."""
        there = [False] * len(keys)
        begin = gaps = 0
        while begin < len(keys) and gaps < max_gaps:
            end = begin + prefix(begin)
            there[begin:end] = [True] * (end - begin)
            begin, gaps = end + 1, gaps + 1
        return there

    def _soft(self, what: str, otherwise: T, act: Callable[[], T]) -> T:
        try:
            return act()
        except Refused as error:
            self._report.warn(f"a {what} was refused: {error}")
        except CairnError as error:
            self._report.warn(f"a {what} failed: {error}")
        except Exception:
            self._report.failed(f"a {what} failed")
        return otherwise


def _gather(row: Row, pieces: Pieces) -> None:
    at = 0
    for piece in pieces:
        _copy(row[at : at + piece.nbytes], piece)
        at += piece.nbytes
    assert at == row.nbytes, "the pieces of a block are not the block"


def _scatter(row: Row, pieces: Pieces) -> None:
    at = 0
    for piece in pieces:
        _copy(piece, row[at : at + piece.nbytes])
        at += piece.nbytes
    assert at == row.nbytes, "the pieces of a block are not the block"


def _copy(to: memoryview, source: memoryview) -> None:
    try:
        import numpy
    except ImportError:
        to.cast("B")[:] = source.cast("B")
    else:
        # Other threads run meanwhile, which a memoryview's own copy does not let them.
        numpy.copyto(numpy.frombuffer(to, numpy.uint8), numpy.frombuffer(source, numpy.uint8))
