"""What each step of an engine loads and saves of a model with several groups."""

from __future__ import annotations

import unittest

from cairn.engine.groups import Group, Groups
from cairn.engine.keys import KeyChain
from cairn.engine.plan import NO_BLOCK, Computed, Load, Planner, Save
from cairn.packed import Reach
from test_block_keys import TOKENS, keys

FULL = Group("full0", "full", 4)
WINDOW = Group("window1", "window", 4, window_tokens=7)  # two blocks, or a part of a third
STATE = Group("state2", "state", 4)
PROMPT = 42


class Needs(unittest.TestCase):
    def test_a_window_needs_the_blocks_of_the_tokens_before_the_next(self) -> None:
        for block_tokens in (1, 3, 4, 16):
            for window in (2, 4, 5, 17, 40):
                group = Group("window", "window", block_tokens, window)
                for tokens in range(64):
                    # The next token has the position `tokens` and attends to itself and window - 1 before it.
                    attended = [position for position in range(tokens) if tokens - position < window]
                    expected = sorted({position // block_tokens for position in attended})
                    self.assertEqual(list(group.needed(tokens)), expected, (block_tokens, window, tokens))

    def test_a_window_in_chunks_ends_with_its_chunk(self) -> None:
        group = Group("window", "window", 4, window_tokens=8, in_chunks=True)
        self.assertEqual([list(group.needed(tokens)) for tokens in (8, 12, 15, 16)], [[], [2], [2, 3], []])

    def test_full_groups_need_all_and_states_the_last(self) -> None:
        self.assertEqual([list(FULL.needed(tokens)) for tokens in (0, 4, 9)], [[], [0], [0, 1, 2]])
        self.assertEqual([list(STATE.needed(tokens)) for tokens in (0, 4, 8)], [[], [0], [1]])

    def test_keys_are_as_fine_as_the_smallest_common_block(self) -> None:
        groups = Groups.of([Group("full", "full", 12), Group("window", "window", 8, 9)])
        self.assertEqual((groups.key_tokens, groups.unit_tokens, groups.unit_keys), (4, 24, 6))
        self.assertEqual([groups.key_of(0, 1), groups.key_of(1, 1), groups.key_at(24)], [5, 3, 5])


class GroupPlans(unittest.TestCase):
    """Block n of a request is block 100 + n, 200 + n or 300 + n of the engine, by group."""

    def setUp(self) -> None:
        self.tokens = TOKENS[:PROMPT]
        self.keys = keys(self.tokens)
        self.make(FULL, WINDOW, STATE)

    def make(self, *groups: Group) -> None:
        self.planner = Planner(Groups.of(groups))
        self.planner.begin("a", KeyChain(b"r" * 32, self.planner._groups.key_tokens), None)
        self.tables = [[100 * (number + 1) + at for at in range(20)] for number in range(len(groups))]

    def saves(
        self, computed: int, *states: tuple[int, int, int], junctions: tuple[int, ...] = ()
    ) -> dict[int, list[tuple[list[int], list[int]]]]:
        """By group, runs of blocks, each with the numbers of its keys. Checks the parents."""
        step = Computed(computed, PROMPT, junctions, states)
        saved: dict[int, list[tuple[list[int], list[int]]]] = {}
        chain = keys(self.tokens)
        for save in self.planner.computes("a", self.tokens, step, lambda: self.tables):
            at = [chain.index(key) for key in save.keys]
            run = self.planner._groups.groups[save.group].block_tokens // self.planner._groups.key_tokens
            run = 1 if self.planner._groups.groups[save.group].kind == "state" else run
            self.assertEqual(save.parent, chain[at[0] - run] if at[0] >= run else None)
            saved.setdefault(save.group, []).append((at, save.blocks))
        return saved

    def test_windows_are_saved_at_the_end_of_the_prompt(self) -> None:
        self.make(FULL, WINDOW)
        self.assertEqual(self.saves(20), {0: [([0, 1, 2, 3, 4], [100, 101, 102, 103, 104])]})
        # The prompt's last whole block ends after 40 tokens; tokens 34 to 39 are in the blocks 8 and 9.
        self.assertEqual(
            self.saves(PROMPT), {0: [([5, 6, 7, 8, 9], [105, 106, 107, 108, 109])], 1: [([8, 9], [208, 209])]}
        )
        self.assertEqual(self.saves(PROMPT), {})

    def test_a_prompt_that_ends_with_a_block_can_be_repeated_and_continued(self) -> None:
        self.make(FULL, WINDOW)
        self.tokens = TOKENS[:40]
        step = Computed(40, 40)
        windows = [
            save for save in self.planner.computes("a", self.tokens, step, lambda: self.tables) if save.group
        ]
        self.assertEqual([save.blocks for save in windows], [[207, 208, 209]])

    def test_answers_are_saved_as_they_come(self) -> None:
        self.make(FULL, WINDOW)
        self.saves(PROMPT)
        self.tokens = TOKENS[:48]
        self.assertEqual(self.saves(44), {0: [([10], [110])], 1: [([10], [210])]})
        self.assertEqual(self.saves(47), {})

    def test_a_boundary_whose_token_is_not_known_yet_is_saved_later(self) -> None:
        self.make(FULL, WINDOW)
        self.saves(PROMPT)
        self.tokens = TOKENS[:43]
        self.assertEqual(self.saves(44), {})
        self.tokens = TOKENS[:45]
        self.assertEqual(self.saves(45), {0: [([10], [110])], 1: [([10], [210])]})

    def test_windows_are_saved_where_a_look_up_found_more_of_the_full_groups(self) -> None:
        self.make(FULL, WINDOW)
        self.planner.keys("a", self.tokens)
        self.assertEqual(self.planner.found("a", Reach(0, 5), 0), 0)
        self.assertEqual(self.planner.junction("a"), 20)
        # The junction is inside of this chunk.
        self.assertEqual(self.saves(30), {0: [([5, 6], [105, 106])], 1: [([3, 4], [203, 204])]})

    def test_a_window_that_the_engine_has_dropped_is_not_saved(self) -> None:
        self.make(FULL, WINDOW)
        self.tables[1][8] = NO_BLOCK
        self.assertNotIn(1, self.saves(PROMPT))

    def test_states_are_saved_where_the_engine_keeps_them(self) -> None:
        # The table has a block for each position, and none of them counts.
        self.make(FULL, STATE)
        self.assertEqual(list(self.saves(40)), [0])
        self.assertEqual(self.saves(PROMPT, (1, 77, 40)), {1: [([9], [77])]})
        self.assertEqual(self.saves(PROMPT, (1, 78, 40)), {})

    def test_a_state_in_the_middle_of_a_prompt_is_saved_only_at_a_junction(self) -> None:
        self.make(FULL, STATE)
        self.assertEqual(list(self.saves(16, (1, 76, 16))), [0])
        self.assertEqual(self.saves(20, (1, 77, 20), junctions=(20,)), {0: [([4], [104])], 1: [([4], [77])]})
        # One that is not computed yet is left for later.
        self.assertNotIn(1, self.saves(36, (1, 78, 40)))

    def test_a_window_beside_states_is_saved_in_an_answer_only_where_a_state_is(self) -> None:
        self.saves(PROMPT, (2, 77, 40))
        self.tokens = TOKENS[:52]
        self.assertEqual(list(self.saves(44)), [0])
        self.assertEqual(
            self.saves(48, (2, 78, 48)), {0: [([11], [111])], 1: [([10, 11], [210, 211])], 2: [([11], [78])]}
        )

    def test_a_chunked_window_is_saved_whole(self) -> None:
        self.make(FULL, Group("window1", "window", 4, window_tokens=16, in_chunks=True))
        self.assertEqual(self.saves(20)[1], [([0, 1, 2, 3, 4], [200, 201, 202, 203, 204])])
        self.tables[1][:4] = [NO_BLOCK] * 4
        self.assertEqual(self.saves(24)[1], [([5], [205])])

    def test_a_load_brings_what_the_prefix_needs_and_no_more(self) -> None:
        self.planner.keys("a", self.tokens)
        self.assertEqual(self.planner.found("a", Reach(9, 10), 8), 28)
        self.tables[1][:7] = [NO_BLOCK] * 7
        self.tables[2][:8] = [NO_BLOCK] * 8
        self.planner.load("a", self.tables, 28)
        self.assertEqual(
            self.planner.take_loads(),
            [
                Load("a", self.keys[2:9], [102, 103, 104, 105, 106, 107, 108], 0),
                Load("a", self.keys[7:9], [207, 208], 1),
                Load("a", self.keys[8:9], [308], 2),
            ],
        )
        # What was loaded is not saved again; the full group has one block more.
        self.assertEqual(self.saves(37, (2, 308, 36)), {})

    def test_a_load_leaves_the_windows_blocks_that_the_engine_has(self) -> None:
        self.make(FULL, WINDOW)
        self.planner.keys("a", self.tokens)
        self.planner.found("a", Reach(9, 9), 32)
        self.planner.load("a", self.tables, 4)
        self.assertEqual([load.blocks for load in self.planner.take_loads()], [[108], [208]])

    def test_a_load_without_its_blocks_is_refused(self) -> None:
        self.planner.keys("a", self.tokens)
        self.planner.found("a", Reach(9, 9), 0)
        for table in ([NO_BLOCK] * 20, self.tables[1][:8]):
            self.tables[1] = table
            with self.assertRaisesRegex(ValueError, "window1"):
                self.planner.load("a", self.tables, 36)
            self.assertEqual(self.planner.take_loads(), [])
        self.planner.refuse("a")
        self.assertEqual(self.planner.take_loads(), [Load("a", [], [])])

    def test_after_a_failed_load_all_is_computed_and_saved(self) -> None:
        self.make(FULL, WINDOW)
        self.planner.keys("a", self.tokens)
        self.planner.found("a", Reach(10, 10), 8)
        self.planner.load("a", self.tables, 32)
        self.planner.failed("a")
        self.assertEqual(
            self.saves(PROMPT),
            {0: [(list(range(2, 10)), list(range(102, 110)))], 1: [([8, 9], [208, 209])]},
        )
        self.assertEqual(self.planner.found("a", Reach(10, 10), 0), 0)

    def test_groups_of_different_sizes_resume_at_common_boundaries(self) -> None:
        # A key names 4 tokens, a block of the window 8: its key is the second of two.
        self.make(FULL, Group("window1", "window", 8, 9))
        self.assertEqual(len(self.planner.keys("a", TOKENS[:41])), 10)
        self.assertEqual(len(self.planner.keys("a", TOKENS[:40])), 8)
        self.assertEqual(self.saves(PROMPT)[1], [([9], [204])])
        self.planner.found("a", Reach(10, 10), 0)
        self.planner.load("a", self.tables, 40)
        self.assertEqual(self.planner.take_loads()[1], Load("a", [self.keys[9]], [204], 1))

    def test_blocks_that_the_server_lost_are_saved_again(self) -> None:
        # The engine has 16 tokens of its own, the server has lost all but one block.
        self.make(FULL, WINDOW)
        self.planner.keys("a", self.tokens)
        self.planner.found("a", Reach(0, 1), 16)
        self.assertEqual(self.saves(20)[0], [([1, 2, 3, 4], [101, 102, 103, 104])])

    def test_saves_are_equal_to_those_of_a_single_group(self) -> None:
        self.make(FULL)
        step = Computed(8, PROMPT)
        self.assertEqual(
            self.planner.computes("a", self.tokens, step, lambda: self.tables),
            [Save(self.keys[:2], [100, 101], None)],
        )


if __name__ == "__main__":
    unittest.main()
