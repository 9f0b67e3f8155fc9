"""What each step of an engine loads and saves."""

from __future__ import annotations

import unittest

from cairn.engine.keys import KeyChain
from cairn.engine.plan import Computed, Load, Planner, Save, only
from cairn.packed import Reach
from test_block_keys import TOKENS, keys

BLOCKS = list(range(10, 40))


class Plans(unittest.TestCase):
    """Blocks of 4 tokens; block n of the request is block 10 + n of the engine."""

    def setUp(self) -> None:
        self.planner = Planner(only(4))
        self.tokens = TOKENS[:22]
        self.planner.begin("a", KeyChain(b"r" * 32, 4), None)
        self.keys = keys(self.tokens)

    def save(self, computed: int) -> Save | None:
        saves = self.planner.computes("a", self.tokens, Computed(computed, len(self.tokens)), lambda: [BLOCKS])
        self.assertLessEqual(len(saves), 1)
        return saves[0] if saves else None

    def found(self, blocks: int, computed_tokens: int) -> int:
        return self.planner.found("a", Reach(blocks, blocks), computed_tokens)

    def test_the_last_token_is_always_computed(self) -> None:
        self.assertEqual(self.planner.keys("a", TOKENS[:20]), self.keys[:4])
        self.assertEqual(self.planner.keys("a", TOKENS[:21]), self.keys[:5])
        self.assertEqual(self.planner.keys("a", []), [])

    def test_found_blocks_after_the_computed_ones_are_loaded(self) -> None:
        self.planner.keys("a", self.tokens)
        self.assertEqual(self.found(4, 8), 8)
        self.planner.load("a", [BLOCKS], 8)
        self.assertEqual(self.planner.take_loads(), [Load("a", self.keys[2:4], [12, 13])])
        self.assertEqual(self.planner.take_loads(), [])

    def test_each_block_is_saved_once_it_is_full_and_only_once(self) -> None:
        self.found(0, 0)
        self.assertIsNone(self.save(3))
        self.assertEqual(self.save(10), Save(self.keys[:2], [10, 11], None))
        self.assertIsNone(self.save(10))
        self.assertIsNone(self.save(11))
        self.assertEqual(self.save(20), Save(self.keys[2:5], [12, 13, 14], self.keys[1], 2))

    def test_found_blocks_are_not_saved(self) -> None:
        self.planner.keys("a", self.tokens)
        self.found(4, 0)
        self.planner.load("a", [BLOCKS], 16)
        self.assertEqual(self.save(22), Save(self.keys[4:5], [14], self.keys[3], 4))

    def test_blocks_that_the_server_lost_are_saved_again(self) -> None:
        self.assertEqual(self.found(1, 16), 0)
        self.assertEqual(self.save(20), Save(self.keys[1:5], [11, 12, 13, 14], self.keys[0], 1))

    def test_unknown_tokens_make_no_block(self) -> None:
        self.found(0, 0)
        self.tokens = self.tokens[:7]
        # The engine may compute ahead of the known tokens, with draft tokens or overlapping steps.
        self.assertEqual(self.save(12), Save(self.keys[:1], [10], None))

    def test_a_failed_load_is_not_retried_and_its_blocks_are_saved(self) -> None:
        self.planner.keys("a", self.tokens)
        self.found(5, 0)
        self.planner.load("a", [BLOCKS], 20)
        self.planner.failed("a", {13, 99})
        self.assertEqual(self.save(20), Save(self.keys[3:5], [13, 14], self.keys[2], 3))
        self.assertEqual(self.found(5, 0), 0)

    def test_failed_blocks_of_other_requests_are_ignored(self) -> None:
        self.planner.keys("a", self.tokens)
        self.found(5, 0)
        self.planner.load("a", [BLOCKS], 20)
        self.planner.failed("a", {99})
        self.assertIsNone(self.save(20))

    def test_an_ended_request_is_forgotten(self) -> None:
        self.planner.end("a")
        self.assertFalse(self.planner.knows("a"))
        self.assertIsNone(self.save(20))


if __name__ == "__main__":
    unittest.main()
