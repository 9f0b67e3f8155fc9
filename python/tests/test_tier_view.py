"""A mapped tier: the bytes read and written in place are the server's."""

import array
import dataclasses
import os
import tempfile
import threading
import time
import unittest
from unittest import mock

from cairn import Client, LeaseLost, Shape, TierView
from cairn.errors import (
    CairnError,
    NoAnswer,
    NoCapacity,
    Refused,
    TooMany,
    Unavailable,
    UnknownLease,
    WrongArgument,
)
from cairn.leases import KeptLease, LeaseKeeper
from cairn.model import CacheChange
from server import PATIENCE_S, SHAPE, ServerCase, block, key


class Mapped(ServerCase):
    def view(self, lease_ms: int = 60_000) -> TierView:
        return TierView(self.client, self.name, lease_ms=lease_ms)

    def put(self, *numbers: int) -> None:
        self.client.write(self.name, [key(n) for n in numbers], [block(n) for n in numbers])

    def copies(self, view: TierView, *numbers: int) -> list[bytes]:
        copies = []
        with view.read([key(n) for n in numbers], wait_ms=30_000) as held:
            for one in held:
                copy = bytearray(view.block_bytes)
                one.copy_to(copy)
                copies.append(bytes(copy))
        return copies

    def test_blocks_written_over_http_are_read_in_place(self) -> None:
        for layout in ("fully_contiguous", "layer_separate"):
            with self.subTest(layout):
                self.name = f"read-{layout}"
                self.make(layout=layout)
                self.put(1, 2)
                self.assertEqual(self.copies(self.view(), 1, 2, 3), [block(1), block(2)])

    def test_blocks_written_in_place_are_read_over_http(self) -> None:
        for layout in ("fully_contiguous", "layer_separate"):
            with self.subTest(layout):
                self.name = f"write-{layout}"
                self.make(layout=layout)
                with self.view().write(2) as slots:
                    for number, slot in enumerate(slots):
                        slot.copy_from(block(number))
                    committed = slots.commit([key(0), key(1)])
                self.assertEqual([one.status for one in committed], ["committed", "committed"])
                self.assertEqual(bytes(self.client.read(self.name, [key(0), key(1)]).data), block(0) + block(1))
                self.assertEqual(self.client.cache_info(self.name).leases, 0)

    def test_padded_blocks_are_found(self) -> None:
        self.make(shape=Shape(3, 1, 4, 6, 2, alignment=4096))
        small = Shape(3, 1, 4, 6, 2)
        self.client.put(self.name, key(1), block(1, small))
        with self.view().read([key(1)]) as held:
            pieces = [bytes(piece) for piece in held[0].pieces()]
        self.assertEqual(b"".join(pieces), block(1, small))
        self.assertEqual(len(pieces), 3)

    def test_a_tier_that_grows_is_mapped_again(self) -> None:
        self.make(blocks=4, shape=Shape(2, 2, 4, 8, 2, alignment=4096))
        view = self.view()
        self.client.change_cache(self.name, CacheChange(num_blocks={"pinned": 9}))
        with view.write(9) as slots:
            for number, slot in enumerate(slots):
                slot.copy_from(block(number))
            slots.commit([key(number) for number in range(9)])
        self.assertEqual(bytes(self.client.read(self.name, [key(8)]).data), block(8))
        self.assertEqual(self.copies(view, *range(9)), [block(number) for number in range(9)])

    def test_a_commit_ends_its_lease_in_one_request(self) -> None:
        self.make()
        with self.view().write(1) as slots:
            slots[0].copy_from(block(1))
            with mock.patch.object(Client, "release", side_effect=AssertionError("one request too many")):
                slots.commit([key(1)])
                self.assertEqual(self.client.leases(self.name).leases, [])

    def test_uncommitted_slots_are_released(self) -> None:
        self.make(blocks=2)
        view = self.view()
        with view.write(2), self.assertRaises(NoCapacity):
            view.write(1)
        with view.write(2) as slots:
            self.assertEqual(len(slots), 2)

    def test_committed_blocks_cannot_be_written(self) -> None:
        self.make()
        self.put(1)
        with self.view().read([key(1)]) as held:
            with self.assertRaises(CairnError):
                held[0].copy_from(block(2))
            with self.assertRaises(TypeError):
                next(held[0].pieces())[0] = 1
        self.assertEqual(self.client.get(self.name, key(1)), block(1))

    def test_wrong_buffers_are_refused_with_the_reason(self) -> None:
        self.make()
        size = SHAPE.block_bytes
        with self.view().write(1) as slots:
            for data, why in (
                (memoryview(bytes(2 * size))[::2], "not C-contiguous"),
                ("x" * size, "type str"),
                (size, "type int"),
                (bytes(size - 1), f"{size - 1} bytes for a block of {size}"),
                (array.array("H", bytes(size + 2)), f"{size + 2} bytes for a block of {size}"),
            ):
                with self.subTest(why), self.assertRaisesRegex(CairnError, why):
                    slots[0].copy_from(data)  # type: ignore[arg-type]
            slots[0].copy_from(memoryview(array.array("H", block(1))))
            slots.commit([key(1)])
        with self.view().read([key(1)]) as held:
            for room, why in (
                (memoryview(bytearray(2 * size))[::2], "not C-contiguous"),
                (bytes(size), "read-only bytes"),
            ):
                with self.subTest(why), self.assertRaisesRegex(WrongArgument, why):
                    held[0].copy_to(room)  # type: ignore[arg-type]
            values = array.array("H", bytes(size))
            held[0].copy_to(values)  # type: ignore[arg-type]
            self.assertEqual(values.tobytes(), block(1))

    def test_blocks_on_disk_are_moved_up(self) -> None:
        self.make(disk=16)
        self.put(1, 2)
        moved = self.client.transfer(self.name, [key(1), key(2)], "disk", mode="move", wait_ms=30_000)
        self.assertEqual(moved.state, "done")
        self.assertEqual(self.copies(self.view(), 1, 2), [block(1), block(2)])

    def test_a_lease_that_ended_invalidates_the_read(self) -> None:
        self.make()
        self.put(1)
        with self.assertRaises(LeaseLost), self.view().read([key(1)]) as held:
            lease = held._lease
            assert lease is not None
            self.client.release(lease.lease)  # as if its time were over
            held[0].copy_to(bytearray(SHAPE.block_bytes))

    def test_a_lease_is_renewed_while_it_is_needed(self) -> None:
        self.make()
        self.put(1)
        lease_ms = 1500
        with self.view(lease_ms).read([key(1)]) as held:
            # Twice the lease's time, so it must be renewed.
            end = time.monotonic() + 2 * lease_ms / 1000
            while time.monotonic() < end:
                time.sleep(0.05)
                held.check()
            held[0].copy_to(bytearray(SHAPE.block_bytes))

    def test_dropped_blocks_are_not_held_without_end(self) -> None:
        self.make()
        self.put(1, 2)
        view = self.view(lease_ms=1000)
        with self.assertWarnsRegex(ResourceWarning, "2 blocks were never released"):
            for one in view.read([key(1), key(2)]):
                one.copy_to(bytearray(SHAPE.block_bytes))
            del one
        first = view.read([key(1)])[0]
        while len(self.client.leases(self.name).leases) > 1:
            time.sleep(0.02)  # until the first lease ends
        (used,) = self.client.leases(self.name).leases
        while self.client.leases(self.name).leases == [used]:
            time.sleep(0.02)  # until the other is renewed
        self.assertEqual(b"".join(first.pieces()), block(1))
        with self.assertWarns(ResourceWarning):
            del first
        while self.client.leases(self.name).leases:
            time.sleep(0.02)

    def test_after_a_restart_the_new_memory_is_mapped(self) -> None:
        self.make()
        self.put(1)
        view = self.view()
        self.assertEqual(self.copies(view, 1), [block(1)])
        self.server.kill()
        self.server.start()
        self.make()
        # Puts another block in the slot that holds block 1 in the old memory.
        self.put(2)
        self.assertEqual(self.copies(view, 1), [])
        self.assertEqual(self.copies(view, 2), [block(2)])

    def test_a_recreated_cache_is_mapped_again(self) -> None:
        self.make()
        self.put(1)
        view = self.view()
        self.assertEqual(self.copies(view, 1), [block(1)])
        self.client.drop_cache(self.name)
        self.make()
        self.put(2)
        self.assertEqual(self.copies(view, 2), [block(2)])

    def test_the_mapping_is_requested_once(self) -> None:
        self.make()
        view = self.view()
        with mock.patch.object(self.client, "export", side_effect=AssertionError("one request too many")):
            with view.write(1) as slots:
                slots[0].copy_from(block(1))
                slots.commit([key(1)])
            self.assertEqual(self.copies(view, 1), [block(1)])

    def test_slots_of_a_lost_cache_are_not_used_in_the_next_one(self) -> None:
        """The cache was dropped, or the server killed, between the allocation and the export."""
        self.make()
        view = self.view()
        self.client.drop_cache(self.name)
        self.make()
        allocated = self.client.allocate(self.name, 1, tier="pinned", lease_ms=60_000)
        self.client.drop_cache(self.name, force=True)
        self.make()
        with mock.patch.object(self.client, "allocate", return_value=allocated), self.assertRaises(LeaseLost):
            view.write(1)

    def test_without_a_memory_id_the_mapping_is_requested_each_time(self) -> None:
        self.make()
        self.put(1)
        with mock.patch("cairn.http.Response.memory_id", None):
            view = self.view()
            with mock.patch.object(self.client, "export", wraps=self.client.export) as export:
                self.assertEqual(self.copies(view, 1), [block(1)])
                self.client.drop_cache(self.name)
                self.make()
                self.put(2)
                self.assertEqual(self.copies(view, 2), [block(2)])
            self.assertEqual(export.call_count, 2)

    def test_over_tcp_the_tier_is_mapped_by_path(self) -> None:
        self.make()
        self.put(1)
        with Client(self.server.http, timeout=PATIENCE_S) as client:
            view = TierView(client, self.name)
            with view.read([key(1)]) as held:
                self.assertEqual(b"".join(held[0].pieces()), block(1))

    def test_memory_of_another_file_is_not_mapped(self) -> None:
        self.make()
        with Client(self.server.http, timeout=PATIENCE_S) as client, tempfile.NamedTemporaryFile() as other:
            memory, files = client.export(self.name, "pinned")
            self.assertEqual((memory.layout, memory.generation, memory.device_uuid), ("fully_contiguous", 1, None))
            assert memory.shape is not None
            self.assertEqual(memory.shape.block_bytes, client.cache_info(self.name).block_bytes)
            self.assertEqual(files, [])
            inode, shorter = os.fstat(other.fileno()).st_ino, memory.size_bytes - 1
            for path, number, size in (
                ("/proc/1/fd/99999", memory.inode, 0),
                (other.name, memory.inode, memory.size_bytes),  # another file
                (other.name, inode, shorter),  # another file that has the same inode number by chance
            ):
                os.truncate(other.name, size)
                exported = dataclasses.replace(memory, path=path, inode=number)
                with (
                    self.subTest(path=path, inode=number),
                    mock.patch.object(client, "export", return_value=(exported, [])),
                    self.assertRaises(CairnError),
                ):
                    TierView(client, self.name)

    def test_a_disk_tier_is_not_mapped(self) -> None:
        self.make(disk=8)
        with self.assertRaises(CairnError):
            TierView(self.client, self.name, tier="disk")

    def test_numpy_arrays_are_in_place(self) -> None:
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        for layout in ("fully_contiguous", "layer_separate"):
            with self.subTest(layout):
                self.name = f"numpy-{layout}"
                self.make(layout=layout)
                view = self.view()
                expected = numpy.frombuffer(block(5), "u2").reshape(2, 2, 4, 8)
                with view.write(1) as slots:
                    slots[0].numpy("u2")[...] = expected
                    slots.commit([key(5)])
                self.assertEqual(self.client.get(self.name, key(5)), block(5))
                with view.read([key(5)]) as held:
                    array = held[0].numpy("u2")
                    self.assertTrue((array == expected).all())
                    self.assertFalse(array.flags.writeable)
                    with self.assertRaises(CairnError):
                        held[0].numpy("u4")

    def test_torch_tensors_are_in_place(self) -> None:
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        self.make(layout="layer_separate")
        view = self.view()
        expected = torch.frombuffer(bytearray(block(5)), dtype=torch.int16).reshape(2, 2, 4, 8)
        with view.write(1) as slots:
            slots.tier_torch(torch.int16)[slots.slots[0]] = expected
            slots.commit([key(5)])
        self.assertEqual(self.client.get(self.name, key(5)), block(5))
        with view.read([key(5)]) as held:
            self.assertTrue(torch.equal(held[0].torch(torch.int16), expected))


class Keepers(unittest.TestCase):
    def setUp(self) -> None:
        self.client = mock.Mock()
        self.keeper = LeaseKeeper(self.client)

    def test_one_thread_renews_many_leases_one_after_the_other(self) -> None:
        threads = []
        for number in range(20):
            self.keeper.drop(self.keeper.keep(f"l{number}", 30_000, time.monotonic()))
            threads.append(self.keeper._thread)
        self.assertEqual(threads, [threads[0]] * 20)
        assert threads[0] is not None
        self.assertTrue(threads[0].is_alive())
        self.client.renew.assert_not_called()

    def test_a_new_lease_that_is_due_first_is_renewed_in_time(self) -> None:
        self.keeper.keep("later", 3_600_000, time.monotonic())
        while self.keeper._wakes_at == 0.0:  # until the thread waits for this lease
            time.sleep(0.001)
        renewed = threading.Event()
        self.client.renew.side_effect = lambda *_: renewed.set()
        self.keeper.keep("now", 30_000, time.monotonic() - 15)
        self.assertTrue(renewed.wait(PATIENCE_S))
        self.assertEqual(self.client.renew.call_args.args, ("now", 30_000))

    def test_a_failed_renewal_does_not_affect_other_leases(self) -> None:
        renewed = threading.Event()

        def renew(lease: str, _: int) -> None:
            if lease == "bad":
                raise RuntimeError("a bug")
            renewed.set()

        self.client.renew.side_effect = renew
        bad = self.keeper.keep("bad", 30_000, time.monotonic() - 16)
        self.keeper.keep("good", 30_000, time.monotonic() - 15)
        self.assertTrue(renewed.wait(PATIENCE_S))
        self.assertFalse(bad.is_held(time.monotonic()))

    def test_a_temporary_refusal_loses_no_lease(self) -> None:
        refusals = [
            TooMany(429, "too_many", "the token's rate", 0.0),
            Unavailable(503, "unavailable", "it drains"),
        ]
        for error in (*refusals, Refused(502, "refused", "a proxy"), NoAnswer("nobody listens")):
            with self.subTest(str(error)):
                done = threading.Event()
                answers: list[object] = [error, error, mock.DEFAULT]

                def renew(*_: object, answers: list[object] = answers, done: threading.Event = done) -> None:
                    answer = answers.pop(0)
                    if isinstance(answer, Exception):
                        raise answer
                    done.set()

                self.client.renew.side_effect = renew
                lease = self.keeper.keep("l", 3_000, time.monotonic() - 1)
                self.assertTrue(done.wait(PATIENCE_S))
                self.assertTrue(lease.is_held(time.monotonic()))
                self.keeper.drop(lease)

    def test_a_lease_that_the_server_ended_is_lost_at_once(self) -> None:
        asked = threading.Event()

        def renew(*_: object) -> None:
            asked.set()
            raise UnknownLease(404, "unknown_lease", "there is none")

        self.client.renew.side_effect = renew
        lease = self.keeper.keep("l", 3_600_000, time.monotonic() - 1_201)
        self.assertTrue(asked.wait(PATIENCE_S))
        deadline = time.monotonic() + PATIENCE_S
        while lease.is_held(time.monotonic()):
            self.assertLess(time.monotonic(), deadline)
        with self.assertRaises(LeaseLost):
            self.keeper.check(lease)

    def test_a_failing_renewal_does_not_delay_other_leases(self) -> None:
        renewed = threading.Event()

        def renew(lease: str, _: int) -> None:
            if lease == "long":
                raise TooMany(429, "too_many", "not now", 600.0)
            renewed.set()

        self.client.renew.side_effect = renew
        self.keeper.keep("long", 3_600_000, time.monotonic() - 1_300)
        self.keeper.keep("other", 30_000, time.monotonic() - 10)
        self.assertTrue(renewed.wait(PATIENCE_S))

    def test_a_read_counts_if_a_later_attempt_releases_its_lease(self) -> None:
        lease = self.keeper.keep("l", 3_000, time.monotonic())
        self.client.release.side_effect = [TooMany(429, "too_many", "not now", 0.0), 1]
        self.keeper.end(lease)
        self.assertEqual(self.client.release.call_args_list, [mock.call("l")] * 2)
        gone = self.keeper.keep("gone", 3_000, time.monotonic())
        self.client.release.side_effect = [UnknownLease(404, "unknown_lease", "there is none")]
        with self.assertRaises(LeaseLost):
            self.keeper.end(gone)

    def test_the_thread_ends_without_leases_and_starts_again(self) -> None:
        with mock.patch("cairn.leases.LINGER_S", 0.01):
            for _ in range(2):
                # Due at once, so the thread finds no lease when it wakes.
                self.keeper.drop(self.keeper.keep("l", 30_000, time.monotonic() - 9.99))
                thread = self.keeper._thread
                if thread is not None:
                    thread.join(PATIENCE_S)
                self.assertIsNone(self.keeper._thread)


class Leases(unittest.TestCase):
    """With an injected clock."""

    def test_a_lease_counts_from_before_its_request_and_ends_early(self) -> None:
        lease = KeptLease("l", 10_000, asked_at=100.0)
        self.assertTrue(lease.is_held(107.9))
        self.assertFalse(lease.is_held(108.1))

    def test_a_failed_renewal_leaves_time_for_another(self) -> None:
        lease = KeptLease("l", 9_000, asked_at=100.0)
        self.assertEqual(lease.renewal_due_at, 103.0)
        lease.renewed(103.0)
        self.assertEqual(lease.renewal_due_at, 106.0)
        self.assertTrue(lease.is_held(110.0))

    def test_a_refused_renewal_is_due_after_retry_after(self) -> None:
        lease = KeptLease("l", 12_000, asked_at=100.0)  # used until 109.6
        self.assertEqual(lease.put_off(104.0, NoAnswer("nothing")), 1.0)
        self.assertEqual(lease.renewal_due_at, 105.0)
        self.assertEqual(lease.put_off(104.0, TooMany(429, "too_many", "later", 2.0)), 2.0)
        self.assertEqual(lease.renewal_due_at, 106.0)

    def test_a_renewal_is_due_within_the_lease_despite_retry_after(self) -> None:
        lease = KeptLease("l", 12_000, asked_at=100.0)
        now, asked = 104.0, 0
        while lease.is_held(now):
            before, now = now, now + lease.put_off(now, Unavailable(503, "unavailable", "starts", 3_600.0))
            self.assertEqual(lease.renewal_due_at, now)
            self.assertGreater(now, before)
            asked += 1
        self.assertEqual(round(now, 6), 109.6)
        self.assertIn(asked, range(2, 10))

    def test_a_lost_lease_stays_lost(self) -> None:
        lease = KeptLease("l", 10_000, asked_at=100.0)
        lease.lose()
        lease.renewed(101.0)
        self.assertFalse(lease.is_held(101.0))


if __name__ == "__main__":
    unittest.main()
