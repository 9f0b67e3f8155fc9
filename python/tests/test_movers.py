"""Copies blocks between an engine and a store during the engine's steps."""

from __future__ import annotations

import logging
import threading
import unittest
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from cairn.engine.access import Access
from cairn.engine.mover import MAX_PENDING_SAVES, Copies, Mover
from cairn.engine.plan import Load, Save
from cairn.engine.report import Report
from cairn.engine.store import HttpStore, MappedStore, Store, TooSlow
from cairn.errors import NoAnswer, NoCapacity, Refused, TimedOut, UnknownCache
from cairn.model import BlocksRead
from fake_pool import FakePool
from fake_store import FakeStore
from server import PATIENCE_S, eventually


class Movers(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = FakePool([bytearray([number] * 8) for number in range(64)])
        self.store = FakeStore()
        self.report = Report(logging.getLogger("cairn.test"))
        logging.getLogger("cairn.test").setLevel(logging.CRITICAL)
        self.mover = self.make(lambda: self.store)

    def make(self, open_store: Callable[[], Store]) -> Mover:
        mover = Mover([self.pool], Access(open_store, self.report), self.report)
        self.addCleanup(mover.close)
        return mover

    def save(self, *saves: Save) -> None:
        self.mover.prepare(saves)
        # Wait for the slots before the step ends, because this does not test how long they may take.
        for _, slots in self.mover._prepared:
            slots.exception(PATIENCE_S)
        self.mover.save()
        self.drain()

    def drain(self) -> None:
        """Waits until everything in the queues is done."""
        done = threading.Barrier(3)
        for _ in range(2):
            self.mover._saves.submit(done.wait, PATIENCE_S)
        done.wait(PATIENCE_S)

    def load(self, load: Load) -> set[int]:
        self.mover.load([load])
        self.mover._loads.shutdown(wait=True)
        ((ended, failed),) = self.mover.take_done()
        self.assertIs(ended, load)
        return failed

    def test_blocks_are_saved_and_loaded_into_other_blocks(self) -> None:
        self.save(Save([b"a", b"b"], [3, 4], None), Save([b"c"], [5], b"b"))
        failed = self.load(Load("r", [b"a", b"b", b"c"], [10, 11, 12]))
        self.assertEqual(failed, set())
        self.assertEqual([self.pool.blocks[n][0] for n in (10, 11, 12)], [3, 4, 5])
        counts = self.report.take()
        self.assertEqual((counts["saved_blocks"], counts["loaded_blocks"], counts["loaded_bytes"]), (3, 3, 24))

    def test_a_load_names_missing_blocks(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.assertEqual(self.load(Load("r", [b"a", b"b", b"c"], [10, 11, 12])), {11, 12})

    def test_a_lost_lease_fails_the_whole_load(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.store.loses_leases = True
        self.assertEqual(self.load(Load("r", [b"a"], [10])), {10})

    def test_every_load_ends_and_names_its_failed_blocks(self) -> None:
        for error in (NoAnswer("gone"), NoCapacity(507, "no_capacity", "full"), ValueError("a bug")):
            with self.subTest(error):
                self.store.fails = error
                self.mover = self.make(lambda: self.store)
                self.assertEqual(self.load(Load("r", [b"a"], [10])), {10})

    def test_loads_that_cannot_begin_fail(self) -> None:
        loads = [Load("r", [b"a"], [10]), Load("s", [b"b"], [11])]
        with mock.patch.object(self.pool, "order", side_effect=RuntimeError("a bug")):
            self.mover.load(loads)
        self.assertEqual(self.mover.take_done(PATIENCE_S), [(loads[0], {10}), (loads[1], {11})])
        self.mover._loads.shutdown()  # as if no thread could be started
        self.mover.load(loads)
        self.assertEqual(self.mover.take_done(PATIENCE_S), [(loads[0], {10}), (loads[1], {11})])

    def test_a_load_that_waited_too_long_fails(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.mover._load(Load("r", [b"a"], [10]), None, deadline=0.0)
        self.assertEqual(self.mover.take_done()[0][1], {10})
        self.assertEqual(self.pool.blocks[10][0], 10)

    def test_a_load_is_given_up_at_its_limit(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.store.fails = TooSlow("not in time")
        self.assertEqual(self.load(Load("r", [b"a"], [10], limit_s=1e-6)), {10})
        self.assertEqual(self.report.take()["given_up_blocks"], 1)
        # The server is well: it is asked for the next load.
        self.store.fails = None
        self.mover = self.make(lambda: self.store)
        self.assertEqual(self.load(Load("r", [b"a"], [10], limit_s=PATIENCE_S)), set())
        self.assertNotIn("given_up_blocks", self.report.take())
        self.assertLessEqual(self.store.limits[-1], PATIENCE_S)

    def test_the_blocks_that_came_before_the_limit_are_used(self) -> None:
        client = mock.Mock(timeout=5.0)
        client.read.side_effect = TimedOut("not in time")
        with self.assertRaises(TooSlow):
            HttpStore(client, "c", 8).read([b"a"], limit_s=0.0)
        with self.assertRaises(TimedOut):  # the client's own timeout: the server may be gone
            HttpStore(client, "c", 8).read([b"a"], limit_s=PATIENCE_S)
        client.read.side_effect = [BlocksRead(1, memoryview(bytes(8))), TimedOut("not in time")]
        with mock.patch("cairn.engine.store.READ_BYTES", 8):
            self.assertEqual(len(HttpStore(client, "c", 8).read([b"a", b"b"], limit_s=1.0).rows), 1)
        client.read.side_effect = TimedOut("not in time")
        view = mock.Mock()
        view.read.return_value.rows.return_value = [memoryview(bytes(8))]
        read = MappedStore(HttpStore(client, "c", 8), view, 5000).read([b"a", b"b"], limit_s=1e-3)
        self.assertEqual(len(read.rows), 1)
        self.assertEqual(view.read.call_args.kwargs["wait_ms"], 1)

    def test_waiting_for_loads_returns_as_soon_as_one_ends(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.assertEqual(self.mover.take_done(PATIENCE_S), [])  # no load is running
        ends, load = threading.Event(), self.pool.load

        def waits(blocks: Sequence[int], *rest: Any) -> Copies:
            if blocks == [11]:
                ends.wait(PATIENCE_S)
            return load(blocks, *rest)

        with mock.patch.object(self.pool, "load", waits):
            self.mover.load([Load("late", [b"a"], [11]), Load("soon", [b"a"], [10])])
            self.assertEqual([done.request for done, _ in self.mover.take_done(PATIENCE_S)], ["soon"])
            self.assertEqual(self.mover.take_done(0.001), [])  # waits no longer than that
            ends.set()
            self.assertEqual([done.request for done, _ in self.mover.take_done(PATIENCE_S)], ["late"])

    def test_a_save_without_room_is_skipped_and_the_next_succeeds(self) -> None:
        self.store.room = 1
        self.save(Save([b"a", b"b"], [3, 4], None), Save([b"c"], [5], None))
        self.assertEqual(set(self.store.held), {b"c"})
        self.assertEqual(self.report.take()["saves_skipped_blocks"], 2)

    def test_a_save_to_a_busy_server_is_skipped_and_the_next_is_tried(self) -> None:
        self.store.fails = Refused(429, "too_many_transfers", "busy")
        self.save(Save([b"a"], [3], None))
        self.store.fails, self.store.fails_commit = None, Refused(429, "too_many_transfers", "busy")
        self.save(Save([b"b"], [3], None))
        self.store.fails_commit = None
        self.save(Save([b"c"], [3], None))
        self.assertEqual(set(self.store.held), {b"c"})
        self.assertEqual(self.report.take()["saves_skipped_blocks"], 2)

    def test_slots_are_released_if_the_copy_fails(self) -> None:
        self.mover.prepare([Save([b"a"], [99], None)])  # the engine has no such block
        for _, slots in self.mover._prepared:
            slots.exception(PATIENCE_S)
        self.mover.save()
        self.drain()
        self.assertEqual((self.store.held, self.store.released, self.mover._pending_saves), ({}, 1, 0))

    def test_a_silent_server_does_not_block_a_step(self) -> None:
        self.store.gate.clear()
        self.mover.prepare([Save([b"a"], [3], None)])
        ((_, slots),) = self.mover._prepared
        eventually(slots.running)  # it could be cancelled before
        self.mover.save()  # returns at once
        self.assertEqual(self.report.take()["saves_skipped_blocks"], 1)
        self.store.gate.set()
        eventually(lambda: self.store.released == 1)  # the slots came late
        self.assertEqual(self.store.held, {})

    def test_a_slow_server_gets_no_more_saves(self) -> None:
        self.store.gate.clear()
        self.mover._pending_saves = MAX_PENDING_SAVES
        self.mover.prepare([Save([b"a"], [3], None)])
        self.assertEqual(self.mover._prepared, [])
        self.assertEqual(self.mover._pending_saves, MAX_PENDING_SAVES)
        self.store.gate.set()

    def test_each_finished_save_makes_room_for_another(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.store.room = 0
        self.save(Save([b"b"], [3], None))
        self.store.room, self.store.fails = 64, NoAnswer("gone")
        self.save(Save([b"c"], [3], None))
        self.assertEqual(self.mover._pending_saves, 0)

    def test_a_lost_cache_is_made_again(self) -> None:
        gone = FakeStore()
        gone.fails = UnknownCache(404, "unknown_cache", "gone")
        stores = [gone, self.store]
        self.mover = self.make(lambda: stores.pop(0))
        self.save(Save([b"a"], [3], None))
        self.assertEqual(set(self.store.held), {b"a"})


if __name__ == "__main__":
    unittest.main()
