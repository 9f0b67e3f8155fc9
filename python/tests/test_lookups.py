"""Look-ups on threads beside an engine's loop."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Sequence

from cairn.engine.costs import Advice, Offer
from cairn.engine.lookup import Found, Lookups
from server import PATIENCE_S


class FakeFinder:
    """Finds what the test sets, once the test opens the gate."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.asked: list[tuple[list[bytes], int]] = []
        self.released: list[Found] = []
        self.holds = True
        self.awaited: Advice | None = None
        self.waited: list[Advice] = []

    def find(self, keys: Sequence[bytes], wanted_from: int, session: str | None = None) -> Found:
        self.asked.append((list(keys), wanted_from))
        self.begun.set()
        self.gate.wait(PATIENCE_S)
        found = Found(2, awaited=self.awaited)
        found.leases = ["held"]  # type: ignore[list-item]
        return found

    def find_awaited(self, keys: Sequence[bytes], wanted_from: int, session: str | None, awaited: Advice) -> Found:
        self.waited.append(awaited)
        found = Found(len(keys))
        found.leases = ["held"]  # type: ignore[list-item]
        return found

    def is_held(self, found: Found) -> bool:
        return self.holds

    def release(self, found: Found) -> None:
        self.released.append(found)

    def close(self) -> None: ...


class LookupsBesideTheLoop(unittest.TestCase):
    def setUp(self) -> None:
        self.finder = FakeFinder()
        self.lookups = Lookups(self.finder)  # type: ignore[arg-type]

    def found(self) -> int:
        while (reach := self.lookups.poll("a", [b"1", b"2"], 0)) is None:
            pass
        return reach.matched

    def begin(self) -> None:
        """Begins a look-up, which could be cancelled before."""
        self.assertIsNone(self.lookups.poll("a", [b"1"], 0))
        self.assertTrue(self.finder.begun.wait(PATIENCE_S))

    def end(self) -> None:
        self.lookups.close()

    def test_a_poll_returns_none_until_the_result_is_known(self) -> None:
        self.assertIsNone(self.lookups.poll("a", [b"1", b"2"], 0))
        self.assertIsNone(self.lookups.poll("a", [b"1", b"2"], 0))
        self.finder.gate.set()
        self.assertEqual(self.found(), 2)
        self.assertEqual(self.found(), 2)
        self.assertEqual(self.finder.asked, [([b"1", b"2"], 0)])
        self.end()
        self.assertEqual(len(self.finder.released), 1)

    def test_a_lookup_without_an_answer_is_a_miss(self) -> None:
        self.begin()
        future, _ = self.lookups._under_way["a"]
        self.lookups._under_way["a"] = (future, 0.0)  # with a deadline that has passed
        self.assertEqual(self.lookups.poll("a", [b"1"], 0), (0, 0))
        self.finder.gate.set()  # the answer arrives late and pins nothing
        self.end()
        self.assertEqual(len(self.finder.released), 1)

    def test_taken_leases_are_not_released_by_the_look_ups(self) -> None:
        self.finder.gate.set()
        self.found()
        taken = self.lookups.take("a")
        self.assertEqual(taken.blocks, 2)
        self.end()
        self.assertEqual(self.finder.released, [])

    def test_a_forgotten_look_up_releases_its_result_later(self) -> None:
        self.begin()
        self.lookups.forget("a")
        self.finder.gate.set()
        self.end()
        self.assertEqual(len(self.finder.released), 1)

    def test_a_finished_result_is_released_on_another_thread(self) -> None:
        released_by: list[str] = []
        self.finder.release = lambda found: released_by.append(threading.current_thread().name)  # type: ignore
        self.assertIsNone(self.lookups.poll("a", [b"1"], 0))
        future, _ = self.lookups._under_way["a"]
        self.finder.gate.set()
        future.result(PATIENCE_S)  # the result is here but was not polled
        self.lookups.forget("a")
        self.end()
        self.assertEqual(len(released_by), 1)
        self.assertIn("cairn-lookup", released_by[0])

    def test_blocks_of_the_shared_tier_are_awaited_on_other_threads(self) -> None:
        self.finder.awaited = Advice(Offer(3, {"shared": 1}), 0.5)
        self.finder.gate.set()
        while (reach := self.lookups.poll("a", [b"1", b"2", b"3"], 0)) is None:
            pass
        self.assertEqual(reach.matched, 3)
        self.assertEqual(self.finder.waited, [self.finder.awaited])
        self.end()
        self.assertCountEqual([found.blocks for found in self.finder.released], [2, 3])

    def test_a_lost_lease_starts_a_new_look_up(self) -> None:
        self.finder.gate.set()
        self.found()
        self.finder.holds = False
        self.found()
        self.assertEqual(len(self.finder.asked), 2)
        self.end()


if __name__ == "__main__":
    unittest.main()
