"""Storing and loading blocks by key, for engines that call from their own threads."""

from __future__ import annotations

import logging
import unittest
from types import SimpleNamespace
from typing import cast
from unittest import mock

from cairn.client import Client
from cairn.engine.access import Access
from cairn.engine.buffer_store import MAX_GAPS, BufferStore
from cairn.engine.report import Report
from cairn.engine.store import clear_caches
from cairn.errors import LeaseLost, NoAnswer, NoCapacity, UnknownCache
from fake_store import FakeStore


def key(number: int) -> bytes:
    return bytes([number])


def block(number: int) -> bytes:
    return bytes([number] * 8)


class BufferStores(unittest.TestCase):
    def setUp(self) -> None:
        log = logging.getLogger("cairn.test.buffers")
        log.setLevel(logging.CRITICAL)
        self.report = Report(log)
        self.store = FakeStore()
        self.blocks = BufferStore(Access(lambda: self.store, self.report), 8, self.report)

    def put(self, *numbers: int) -> bool:
        keys = [key(number) for number in numbers]
        # The pieces have 3 and 5 bytes.
        blocks = [[memoryview(block(number))[:3], memoryview(block(number))[3:]] for number in numbers]
        return self.blocks.put(keys, blocks, [None, *keys[:-1]])

    def get(self, *numbers: int) -> list[bytes | None]:
        room = [bytearray(8) for _ in numbers]
        came = self.blocks.get(
            [key(number) for number in numbers], [[memoryview(one)[:1], memoryview(one)[1:]] for one in room]
        )
        return [bytes(one) if here else None for one, here in zip(room, came, strict=True)]

    def test_pieces_are_stored_end_to_end_and_loaded_into_others(self) -> None:
        self.assertTrue(self.put(1, 2))
        self.assertEqual(self.store.held, {key(1): block(1), key(2): block(2)})
        self.assertEqual(self.get(1, 2), [block(1), block(2)])
        counts = self.report.take()
        self.assertEqual((counts["saved_blocks"], counts["loaded_blocks"], counts["loaded_bytes"]), (2, 2, 16))

    def test_pieces_are_stored_and_loaded_when_two_threads_share_a_copy(self) -> None:
        with mock.patch("cairn.engine.copy_helper.SHARED_BYTES", 0):
            self.assertTrue(self.put(1, 2, 3))
            self.assertEqual(self.store.held, {key(number): block(number) for number in (1, 2, 3)})
            self.assertEqual(self.get(1, 2, 3, 4), [block(1), block(2), block(3), None])

    def test_blocks_after_a_gap_are_found(self) -> None:
        self.put(1, 2, 4, 6)
        keys = [key(number) for number in range(1, 8)]
        self.assertEqual(self.blocks.prefix(keys), 2)
        self.assertEqual(self.blocks.each(keys), [True, True, False, True, False, True, False])
        self.assertEqual(self.get(1, 3, 6), [block(1), None, block(6)])
        self.assertEqual(self.report.take()["load_failed_blocks"], 1)

    def test_the_number_of_gaps_is_bounded(self) -> None:
        self.put(MAX_GAPS)
        found = self.blocks.each([key(number) for number in range(MAX_GAPS + 1)])
        self.assertEqual(found, [False] * (MAX_GAPS + 1))

    def test_no_error_of_the_server_is_raised(self) -> None:
        self.put(1)
        for error in (NoCapacity(507, "no_capacity", "full"), ValueError("a bug"), NoAnswer("gone")):
            with self.subTest(error):
                self.store.fails = error
                self.assertFalse(self.put(2))
                self.assertEqual(self.get(1), [None])
                self.assertEqual(self.blocks.prefix([key(1)]), 0)

    def test_blocks_read_under_a_lost_lease_did_not_arrive(self) -> None:
        self.put(1)
        self.store.loses_leases = True
        self.assertEqual(self.get(1), [None])

    def test_slots_are_released_after_success_and_failure(self) -> None:
        self.assertTrue(self.put(1))
        self.assertFalse(self.blocks.put([key(2)], [[memoryview(b"short")]], [None]))
        self.assertEqual(self.store.released, 2)

    def test_a_lease_that_is_lost_before_the_commit_stores_nothing(self) -> None:
        self.store.fails_commit = LeaseLost("gone")
        self.assertFalse(self.put(1))
        self.assertEqual(self.report.take()["saves_skipped_blocks"], 1)


class FakeClient:
    """Answers `clear` with given numbers of blocks that are left, for each cache."""

    def __init__(self, left: dict[str, list[int]]) -> None:
        self.left = left

    def clear(self, cache: str) -> SimpleNamespace:
        if cache not in self.left:
            raise UnknownCache(404, "unknown_cache", cache)
        return SimpleNamespace(leased=self.left[cache].pop(0))


class Clearing(unittest.TestCase):
    def clear(self, left: dict[str, list[int]], *caches: str) -> bool:
        with mock.patch("cairn.engine.store.CLEAR_PAUSE_S", 0):
            return clear_caches(cast(Client, FakeClient(left)), caches)

    def test_held_blocks_are_cleared_after_their_release(self) -> None:
        left = {"a": [0], "b": [2, 1, 0]}
        self.assertTrue(self.clear(left, "a", "b", "unknown"))
        self.assertEqual(left, {"a": [], "b": []})

    def test_other_caches_are_cleared_while_one_keeps_a_held_block(self) -> None:
        left = {"a": [1], "b": [0]}
        with mock.patch("cairn.engine.store.CLEAR_DEADLINE_S", 0):
            self.assertFalse(self.clear(left, "a", "b"))
        self.assertEqual(left, {"a": [], "b": []})


if __name__ == "__main__":
    unittest.main()
