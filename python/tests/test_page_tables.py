"""Filling the page tables of a mapped tier before its first use."""

from __future__ import annotations

import mmap
import os
import re
import unittest
from pathlib import Path

from cairn.engine.page_tables import _fill
from cairn.errors import NoAnswer
from cairn.model import Strides, TierInfo

SIZE_BYTES = 10 << 20  # three steps, the last one shorter
NAME = "cairn-page-tables-test"


def tier(populated_bytes: int | None) -> TierInfo:
    strides = Strides(block_bytes=4096, layer_bytes=4096, outer_bytes=4096)
    return TierInfo("fully_contiguous", SIZE_BYTES, strides, [], num_blocks=1, populated_bytes=populated_bytes)


class PageTables(unittest.TestCase):
    def setUp(self) -> None:
        file = os.memfd_create(NAME)
        self.addCleanup(os.close, file)
        os.posix_fallocate(file, 0, SIZE_BYTES)  # the server allocates the pages
        self.memory = memoryview(mmap.mmap(file, SIZE_BYTES))

    def mapped_bytes(self) -> int:
        """How much of the memory is in this process's page tables."""
        found = re.search(NAME + r".*?Rss:\s+(\d+) kB", Path("/proc/self/smaps").read_text(), re.DOTALL)
        assert found is not None
        return int(found[1]) * 1024

    def fill(self, *answers: TierInfo | Exception) -> None:
        left = iter(answers)

        def ask() -> TierInfo:
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            return answer

        _fill(ask, self.memory, 0.0)

    def test_tables_are_filled_once_the_server_has_allocated_every_page(self) -> None:
        self.assertEqual(self.mapped_bytes(), 0)
        self.fill(tier(0), tier(SIZE_BYTES - 1), tier(SIZE_BYTES))
        self.assertEqual(self.mapped_bytes(), SIZE_BYTES)

    def test_tables_stay_empty_if_the_server_allocates_none(self) -> None:
        self.fill(tier(None))
        self.assertEqual(self.mapped_bytes(), 0)

    def test_tables_stay_empty_if_the_server_is_gone(self) -> None:
        self.fill(tier(0), NoAnswer("it is gone"))
        self.assertEqual(self.mapped_bytes(), 0)


if __name__ == "__main__":
    unittest.main()
