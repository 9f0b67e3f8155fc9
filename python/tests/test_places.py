"""Which tiers hold the blocks of an engine, according to the server's events."""

from __future__ import annotations

import logging
import time
import unittest
from collections.abc import Callable

from cairn import CacheConfig, Client, TierConfig
from cairn.engine.places import Follower, Places
from cairn.engine.report import Report
from cairn.errors import NoCapacity
from cairn.model import Tier
from server import PATIENCE_S, SHAPE, Server, block, key

KEYS = [key(number) for number in range(4)]


def places(*caches: str, max_blocks: int = 100) -> Places[int]:
    made: Places[int] = Places(caches or ["a"], ("pinned", "disk"), max_blocks)
    made.track(KEYS, lambda at: at)
    return made


class OfEvents(unittest.TestCase):
    def taken(self, of: Places[int]) -> tuple[list[tuple[Tier, int]], list[tuple[Tier, int]]]:
        changes = of.take()
        return changes.stored, changes.removed

    def test_a_block_is_reported_once_for_each_tier_that_it_enters_or_leaves(self) -> None:
        here = places()
        here.stored("a", "pinned", KEYS[:2])
        here.stored("a", "pinned", KEYS[:1])
        self.assertEqual(self.taken(here), ([("pinned", 0), ("pinned", 1)], []))
        here.stored("a", "disk", KEYS[:1])
        here.removed("a", "pinned", KEYS[:1])
        self.assertEqual(self.taken(here), ([("disk", 0)], [("pinned", 0)]))
        self.assertEqual(self.taken(here), ([], []))

    def test_a_block_counts_once_all_ranks_have_it(self) -> None:
        here = places("a", "b")
        here.stored("a", "pinned", KEYS)
        self.assertEqual(self.taken(here), ([], []))
        here.stored("b", "pinned", KEYS[:1])
        self.assertEqual(self.taken(here), ([("pinned", 0)], []))
        here.removed("a", "pinned", KEYS[:1])
        self.assertEqual(self.taken(here), ([], [("pinned", 0)]))

    def test_a_change_that_was_undone_is_not_reported(self) -> None:
        here = places()
        here.stored("a", "pinned", KEYS)
        here.removed("a", "pinned", KEYS)
        self.assertEqual(self.taken(here), ([], []))

    def test_other_caches_tiers_and_blocks_are_not_reported(self) -> None:
        here = places()
        here.stored("other", "pinned", KEYS)
        here.stored("a", "device", KEYS)
        here.stored("a", "pinned", [key(77)])
        here.removed("other", "pinned", KEYS)
        here.removed("a", "pinned", [key(77)])
        here.cleared("other", None)
        self.assertEqual(self.taken(here), ([], []))

    def test_one_tier_or_all_tiers_are_cleared(self) -> None:
        here = places()
        for tier in ("pinned", "disk"):
            here.stored("a", tier, KEYS[:1])
        here.take()
        here.cleared("a", "disk")
        self.assertEqual(self.taken(here), ([], [("disk", 0)]))
        here.cleared("a", None)
        self.assertEqual(self.taken(here), ([], [("pinned", 0)]))

    def test_a_forgotten_block_is_reported_as_removed(self) -> None:
        here = places(max_blocks=4)
        here.stored("a", "pinned", KEYS)
        here.take()
        here.track([KEYS[0]], lambda at: 99)  # it is tracked already, and is now the newest
        here.track([key(50)], lambda at: 50)
        self.assertEqual(self.taken(here), ([], [("pinned", 1)]))
        here.lost()
        self.assertEqual(self.taken(here), ([], [("pinned", 2), ("pinned", 3), ("pinned", 0)]))


class OfAServer(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)
        self.client = Client(self.server.unix, timeout=PATIENCE_S)
        self.addCleanup(self.client.close)
        self.here = places("a")
        self.reported: set[tuple[Tier, int]] = set()
        log = logging.getLogger("cairn.test.places")
        log.setLevel(logging.CRITICAL)
        follower = Follower(self.client, self.here, Report(log))
        self.addCleanup(follower.close)
        self.make()

    def make(self) -> None:
        tiers = {"pinned": TierConfig(2), "disk": TierConfig(8)}
        self.client.make_cache("a", CacheConfig(SHAPE, tiers, offload="on_commit"))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            changes = self.here.take()
            self.reported = (self.reported | set(changes.stored)) - set(changes.removed)
            if condition():
                return
            assert time.monotonic() < deadline, self.reported
            time.sleep(0.01)

    def put(self, at: int) -> None:
        """Retries: both slots may still be on their way to a slow disk."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.client.put("a", KEYS[at], block(at))
                return
            except NoCapacity:
                assert time.monotonic() < deadline, "there is no room"
                time.sleep(0.01)

    def put_until_followed(self) -> None:
        """Retries: the follower may not run yet when the first block is stored."""

        def reported() -> bool:
            if ("disk", 0) not in self.reported:
                self.client.evict("a", [KEYS[0]])
                self.put(0)
            return ("disk", 0) in self.reported

        self.until(reported)

    def test_blocks_are_followed_from_tier_to_tier_and_out(self) -> None:
        self.put_until_followed()
        for at in (1, 2, 3):
            self.put(at)
        self.until(lambda: {at for tier, at in self.reported if tier == "disk"} == {0, 1, 2, 3})
        self.until(lambda: len([at for tier, at in self.reported if tier == "pinned"]) <= 2)
        self.client.clear("a")
        self.until(lambda: not self.reported)

    def test_a_killed_servers_blocks_are_removed_until_it_is_reached_again(self) -> None:
        self.put_until_followed()
        self.server.kill()
        self.until(lambda: not self.reported)
        self.server.start()
        self.make()
        self.here.track(KEYS, lambda at: at)
        self.put_until_followed()


if __name__ == "__main__":
    unittest.main()
