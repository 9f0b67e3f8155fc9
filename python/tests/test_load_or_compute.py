"""The connector loads what is faster to load than to compute, in small fake engines, against a real server."""

from __future__ import annotations

import logging
import time
import unittest
from collections.abc import Sequence
from unittest import mock

import test_vllm
import test_vllm_groups
from cairn import Client
from cairn.engine.costs import Costs
from cairn.engine.groups import Group, Groups
from cairn.engine.keys import KeyChain
from cairn.engine.lookup import Finder, Found
from cairn.engine.plan import Tables
from cairn.engine.report import Report
from cairn.model import Match, MatchedBlock
from cairn.vllm.scheduler import SchedulerSide
from cairn.vllm.setup import Setup
from fake_engine import BLOCK_TOKENS, Request
from server import PATIENCE_S, key
from test_vllm_groups import FULL, STATE, WINDOW

PROMPT = [number * 7 % 1000 for number in range(90)]
USABLE = 88  # tokens
# What a prompt like this one takes to compute, and a byte of a slow tier to load: so long that no load on a busy
# machine is given up because it takes longer.
COMPUTE_S = PATIENCE_S
FAST, SLOW = 1e-6, COMPUTE_S


def teach(scheduler: SchedulerSide, seconds_a_byte: dict[str, float]) -> Costs:
    return teach_costs(scheduler._costs, seconds_a_byte)


def teach_costs(costs: Costs, seconds_a_byte: dict[str, float]) -> Costs:
    for tokens in (45, 90) * 3:
        costs.computed(0, tokens, tokens / 90 * COMPUTE_S)
        for tier, seconds in seconds_a_byte.items():
            costs.loaded({tier: tokens}, tokens * seconds)
    return costs


def until_on_disk(client: Client, cache: str, blocks: int) -> None:
    """Waits until the blocks are written through to disk."""
    deadline = time.monotonic() + PATIENCE_S
    while (counts := client.cache_info(cache).tiers["disk"].blocks) is None or counts.evictable < blocks:
        assert time.monotonic() < deadline, counts
        time.sleep(0.02)


class OneGroup(test_vllm.EngineCase):
    def on_disk(self) -> Setup:
        setup = self.setup_of(disk=64, load="if_faster")
        self.stored(setup)
        self.name = setup.cache_name(setup.ranks[0])
        return setup

    def evict(self, *, after: int) -> None:
        """Leaves the blocks after so many on disk alone."""
        listed = self.client.blocks(self.name, tier="pinned", limit=100).blocks
        by_parent = {block.parent: block.key for block in listed if block.key is not None}
        chain: list[bytes] = []
        while (key := by_parent.get(chain[-1] if chain else None)) is not None:
            chain.append(key)
        until_on_disk(self.client, self.name, len(chain))
        self.client.evict(self.name, chain[after:], tier="pinned")

    def pinned(self) -> int:
        counts = self.client.cache_info(self.name).tiers["pinned"].blocks
        assert counts is not None
        return counts.committed + counts.evictable

    def test_the_blocks_before_a_slow_tier_are_loaded(self) -> None:
        setup = self.on_disk()
        self.evict(after=10)
        engine = self.engine(setup)
        teach(engine.scheduler, {"pinned": FAST, "disk": SLOW})
        request = Request("again", list(PROMPT))
        engine.run(request)
        self.assertEqual(request.loaded_tokens, 10 * BLOCK_TOKENS)
        self.assertEqual(self.report.take()["slower_blocks"], 12)
        self.assertEqual(self.pinned(), 10)  # nothing else was moved up

    def test_a_slow_tier_is_measured_with_few_blocks(self) -> None:
        setup = self.on_disk()
        self.evict(after=0)
        engine = self.engine(setup)
        teach(engine.scheduler, {"pinned": FAST, "disk": SLOW})
        requests = [Request(name, list(PROMPT)) for name in ("first", "second")]
        engine.run(requests[0])
        self.assertEqual(requests[0].loaded_tokens, BLOCK_TOKENS)
        self.assertEqual(self.report.take()["probes"], 1)
        self.evict(after=0)
        engine.scheduler._costs._probed_at["disk"] = float("inf")  # as if that had just been
        engine.run(requests[1])
        self.assertEqual(requests[1].loaded_tokens, 0)

    def test_a_short_load_is_dropped_if_the_engine_has_computed_more_since(self) -> None:
        setup = self.on_disk()
        self.evict(after=0)
        engine = self.engine(setup)
        teach(engine.scheduler, {"pinned": FAST, "disk": SLOW})
        request = Request("again", list(PROMPT))
        deadline = time.monotonic() + PATIENCE_S
        # A probe of the first block.
        while (tokens := engine.scheduler.matched_tokens(request, 0)) is None:
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(tokens, BLOCK_TOKENS)
        # Another request with the same prefix was computed before this one was admitted.
        self.assertEqual(engine.scheduler.matched_tokens(request, 10 * BLOCK_TOKENS), 0)

    def test_an_engine_measures_what_it_computes_and_loads(self) -> None:
        setup = self.setup_of(load="if_faster")
        engine = self.engine(setup)
        engine.run(Request("first", list(PROMPT), num_prompt_tokens=len(PROMPT)))
        engine.close()
        costs = engine.scheduler._costs
        self.assertGreater(costs.seconds_to_compute(0, 90) or 0, 0)
        self.assertIsNone(costs.seconds_to_load({"pinned": 1}))
        counts = self.report.take()
        self.assertEqual(counts["prompt_tokens"], 90)
        self.assertGreater(counts["prompt_seconds"], 0)
        other = self.engine(setup)
        again = Request("again", list(PROMPT))
        other.run(again)
        self.assertEqual(again.loaded_tokens, USABLE)
        self.assertIsNotNone(other.scheduler._costs.seconds_to_load({"pinned": 1}))

    def test_a_load_that_is_too_slow_is_given_up(self) -> None:
        setup = self.on_disk()
        engine = self.engine(setup)
        costs = teach(engine.scheduler, {"pinned": FAST})
        slow = Request("again", list(PROMPT))
        # The worker gives the load up at once, as if its time had passed.
        load = engine.scheduler._planner.load

        def too_late(name: str, tables: Tables, tokens: int, limit_s: float) -> None:
            load(name, tables, tokens, -PATIENCE_S)

        engine.scheduler._planner.load = too_late  # type: ignore[method-assign,assignment]
        before = costs.seconds_to_load({"pinned": 90})
        engine.run(slow)
        self.assertEqual((slow.loaded_tokens, slow.computed_here), (0, 94))
        self.assertEqual(self.report.take()["given_up_blocks"], 22)
        self.assertEqual(costs.seconds_to_load({"pinned": 90}), before)  # its limit had not passed here


class SeveralGroups(test_vllm_groups.HybridCase):
    def loaded(self, lengths: Sequence[int], pinned_keys: int, seconds_a_byte: dict[str, float]) -> int:
        """How many tokens of the prompt are loaded. lengths: of the prompts computed before, each of which leaves
        its window and state at its end. pinned_keys: how many keys have their blocks in memory."""
        setup = self.setup_of(FULL, WINDOW, STATE, disk=1 << 20, load="if_faster")
        for length in lengths:
            self.run_in_new_engine(setup, test_vllm_groups.request(f"of {length}", PROMPT[:length]))
        name = setup.cache_name(setup.ranks[0])
        until_on_disk(self.client, name, sum(self.blocks(setup).values()))
        engine = self.engine(setup)
        request = test_vllm_groups.request("again")
        keys = self.keys_of(engine.scheduler, request)
        self.client.evict(name, keys[pinned_keys:], tier="pinned")
        teach(engine.scheduler, seconds_a_byte)._probed_at["disk"] = float("inf")
        engine.run(request)
        return request.loaded_tokens

    def keys_of(self, scheduler: SchedulerSide, request: Request) -> list[bytes]:
        return KeyChain(scheduler._setup.identity.root, scheduler._key_tokens).extend(request.all_token_ids)

    def test_everything_is_loaded_from_fast_tiers(self) -> None:
        self.assertEqual(self.loaded([90], 12, {"pinned": FAST, "disk": FAST}), USABLE)

    def test_everything_is_computed_if_the_window_is_in_a_slow_tier(self) -> None:
        self.assertEqual(self.loaded([90], 12, {"pinned": FAST, "disk": SLOW}), 0)

    def test_a_shorter_prefix_in_a_fast_tier_is_loaded_if_it_is_usable(self) -> None:
        self.assertEqual(self.loaded([50, 90], 12, {"pinned": FAST, "disk": SLOW}), 48)


class SharedTier(unittest.TestCase):
    """Three blocks of 30 tokens and 100 bytes: one in memory, two in the shared tier."""

    def setUp(self) -> None:
        self.client = mock.Mock()
        self.client.cache_info.return_value = mock.Mock(block_bytes=100, kv_groups=[])
        self.here = [MatchedBlock("pinned", 0, 1, key(1))]
        self.client.match.return_value = Match(1, "lease", 0, self.here, shared_matched=2)
        self.now = 0.0
        self.costs = Costs("if_faster", lambda: self.now)
        groups = Groups.of([Group("default", "full", 30)])
        report = Report(logging.getLogger("cairn.test"))
        self.finder = Finder(self.client, ["c"], "pinned", report, groups, self.costs)

    def find(self) -> Found:
        return self.finder.find([key(1), key(2), key(3)], 0)

    def test_blocks_of_an_unknown_store_are_awaited(self) -> None:
        found = self.find()
        assert found.awaited is not None and found.awaited.offer is not None
        self.assertEqual((found.blocks, found.awaited.offer.tokens), (1, 90))
        self.assertEqual(found.awaited.offer.sources, {"shared": 200, "pinned": 200})

    def test_blocks_of_a_slow_store_are_awaited_only_to_measure_it(self) -> None:
        teach_costs(self.costs, {"pinned": FAST, "shared": SLOW})
        found = self.find()
        assert found.awaited is not None
        self.assertTrue(found.awaited.is_probe)
        found = self.find()
        self.assertIsNone(found.awaited)
        assert found.advice is not None and found.advice.offer is not None
        self.assertEqual(found.advice.offer.tokens, 30)  # what is here is loaded

    def test_the_wait_ends_when_computing_would(self) -> None:
        teach_costs(self.costs, {"pinned": FAST})
        awaited = self.find().awaited
        assert awaited is not None
        # For the 60 tokens in the store.
        self.assertAlmostEqual(awaited.limit_s, 60 / 90 * COMPUTE_S, delta=COMPUTE_S / 100)
        self.client.match.return_value = Match(3, "lease", 0, self.here * 3)
        found = self.finder.find_awaited([key(1), key(2), key(3)], 0, None, awaited)
        self.assertEqual((found.blocks, found.awaited), (3, None))
        waits = [call.kwargs for call in self.client.match.call_args_list if "wait_ms" in call.kwargs]
        self.assertEqual(len(waits), 1)
        self.assertLessEqual(waits[0]["wait_ms"], 670 * COMPUTE_S)
        self.assertIsNotNone(self.costs.seconds_to_load({"shared": 1}))


if __name__ == "__main__":
    unittest.main()
