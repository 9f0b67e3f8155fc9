"""Load or compute: what the costs advise, with a clock that the tests set."""

from __future__ import annotations

import random
import unittest
from collections.abc import Mapping, Sequence

from cairn.engine.costs import PROBE_EVERY_S, Advice, Costs, Offer

KV_BYTES = 1000  # of a token
RATES = {"pinned": 5e9, "disk": 50e6, "shared": 200e6}
ROUND_TRIP_S = 0.004
TOKEN_S, PAIR_S = 100e-6, 10e-9


class Machine:
    """What computing and loading take on a machine of the tests."""

    def __init__(self) -> None:
        self.rates = dict(RATES)
        self.token_s, self.pair_s = TOKEN_S, PAIR_S

    def compute(self, begin: int, end: int) -> float:
        return (end - begin) * (self.token_s + self.pair_s * (begin + end) / 2)

    def load(self, sources: Mapping[str, int]) -> float:
        return ROUND_TRIP_S + sum(size / self.rates[source] for source, size in sources.items())


class CostCase(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 0.0
        self.machine = Machine()
        self.costs = Costs("if_faster", lambda: self.now)

    def computes(self, *lengths: int, noise: Sequence[float] = (1.0,)) -> None:
        for at, length in enumerate(lengths):
            self.costs.computed(0, length, self.machine.compute(0, length) * noise[at % len(noise)])

    def loads(self, source: str, *lengths: int, kv_bytes: int = KV_BYTES) -> None:
        for length in lengths:
            self.costs.loaded({source: length * kv_bytes}, self.machine.load({source: length * kv_bytes}))

    def advice(self, *runs: tuple[str, int], computed: int = 0, kv_bytes: int = KV_BYTES) -> Advice:
        """For a prefix whose blocks lie in these tiers, one after the other."""
        offers, sources, tokens = [], dict.fromkeys(RATES, 0), 0
        for source, length in runs:
            tokens += length
            sources[source] += length * kv_bytes
            offers.append(Offer(tokens, dict(sources)))
        return self.costs.advise(computed, offers)

    def tokens(self, *runs: tuple[str, int], computed: int = 0, kv_bytes: int = KV_BYTES) -> int:
        given = self.advice(*runs, computed=computed, kv_bytes=kv_bytes).offer
        return 0 if given is None else given.tokens


class Advised(CostCase):
    def test_unknown_rates_count_as_fast(self) -> None:
        self.assertEqual(self.tokens(("disk", 3000)), 3000)
        self.computes(1000)
        self.assertEqual(self.tokens(("disk", 3000)), 3000)
        self.loads("pinned", 1000)
        self.assertEqual(self.tokens(("disk", 3000)), 3000)

    def test_the_ends_of_loaded_prompts_say_nothing_about_whole_ones(self) -> None:
        for begin, end in ((480, 500), (992, 1000), (3968, 4000), (7968, 8000)) * 3:
            self.costs.computed(begin, end, 0.05)
        self.loads("disk", 500, 1000, 4000)
        self.assertIsNone(self.costs.seconds_to_compute(0, 8000))
        self.assertEqual(self.tokens(("disk", 8000)), 8000)

    def prompt_found(self, length: int, kv_bytes: int) -> int:
        """A prompt of which all blocks but the last are on disk. Returns the tokens that were loaded."""
        block = 32
        offers = [Offer(end, {"disk": end * kv_bytes}) for end in range(block, length, block)]
        offer = self.costs.advise(0, offers).offer
        tokens = 0 if offer is None else offer.tokens
        if offer is not None:
            self.costs.loaded(offer.sources, self.machine.load(offer.sources))
        self.costs.computed(tokens, length, self.machine.compute(tokens, length))
        return tokens

    def test_an_engine_that_finds_all_its_prompts_learns_that_its_disk_is_slow(self) -> None:
        for length in (500, 1000, 2000, 4000, 8000) * 2:
            self.prompt_found(length, kv_bytes=100_000)
        for length in (500, 1000, 2000, 4000, 8000):
            self.assertLess(self.prompt_found(length, kv_bytes=100_000), length / 10)

    def test_an_engine_that_finds_all_its_prompts_computes_little_where_its_disk_is_fast(self) -> None:
        lengths = (500, 1000, 2000, 4000, 8000)
        loaded = sum(self.prompt_found(length, kv_bytes=100) for length in lengths)
        self.assertGreater(loaded, sum(lengths) / 2)
        for length in lengths:
            self.assertEqual(self.prompt_found(length, kv_bytes=100), (length - 1) // 32 * 32)

    def test_what_is_slower_to_load_is_computed(self) -> None:
        self.computes(500, 4000)
        self.loads("disk", 500, 4000, kv_bytes=20_000)
        self.now = -PROBE_EVERY_S  # the first probe
        self.advice(("disk", 3000), kv_bytes=20_000)
        self.assertEqual(self.tokens(("disk", 3000), kv_bytes=20_000), 0)
        self.assertEqual(self.tokens(("disk", 3000)), 3000)

    def test_long_prompts_are_loaded_where_attention_makes_computing_slow(self) -> None:
        # 8,000 bytes a token: 160 us to load; to compute 100 us and 5 ns for each token before it.
        self.machine.pair_s = 20e-9
        lengths = (600, 1500, 3000, 8000)
        self.computes(*lengths)
        self.loads("disk", *lengths, kv_bytes=8000)
        self.advice(("disk", 600), kv_bytes=8000)  # the first probe
        for length in (500, 1000, 2000, 4000, 5000, 7000, 9000):
            size = {"disk": length * 8000}
            better = self.machine.load(size) < self.machine.compute(0, length)
            self.assertEqual(self.tokens(("disk", length), kv_bytes=8000), length if better else 0, length)

    def test_the_blocks_before_a_slow_tier_are_loaded(self) -> None:
        self.computes(500, 4000)
        self.loads("disk", 500, 4000, kv_bytes=20_000)
        self.loads("pinned", 500, 4000, kv_bytes=20_000)
        self.assertEqual(self.tokens(("pinned", 1000), ("disk", 2000), kv_bytes=20_000), 1000)
        self.assertEqual(self.tokens(("pinned", 1000), ("disk", 2000), computed=1000, kv_bytes=20_000), 3000)
        self.assertEqual(self.tokens(("pinned", 1000), ("disk", 2000), computed=1000, kv_bytes=20_000), 0)

    def test_a_round_trip_is_too_long_for_a_short_prefix(self) -> None:
        self.machine.token_s = 10e-6
        self.computes(500, 4000)
        self.loads("pinned", 500, 4000, 100)
        self.advice(("pinned", 100))  # the first probe
        self.assertEqual(self.tokens(("pinned", 100)), 0)
        self.assertEqual(self.tokens(("pinned", 4000)), 4000)

    def test_the_limit_is_the_time_to_compute(self) -> None:
        self.assertEqual(self.advice(("disk", 3000)).limit_s, float("inf"))
        self.computes(500, 2000, 4000)
        self.loads("disk", 500, 4000)
        self.assertAlmostEqual(self.advice(("disk", 3000)).limit_s, self.machine.compute(0, 3000), delta=0.03)

    def test_other_ways_ignore_what_was_measured(self) -> None:
        for when, expected in (("always", 3000), ("never", 0)):
            self.costs = Costs(when, lambda: self.now)  # type: ignore[arg-type]
            self.computes(500, 4000)
            self.loads("disk", 500, 4000, kv_bytes=20_000)
            self.assertEqual(self.tokens(("disk", 3000), kv_bytes=20_000), expected)


class Measured(CostCase):
    def test_noise_and_single_outliers_do_not_count(self) -> None:
        noise = random.Random(1)
        for length in (500, 8000, 1000, 4000, 2000, 6000) * 3:
            self.computes(length, noise=[noise.uniform(0.95, 1.05)])
            self.loads("disk", length)
            self.loads("pinned", length)
        self.costs.computed(0, 4000, 30.0)
        self.costs.loaded({"disk": 4000 * KV_BYTES}, 30.0)
        for length in (700, 3000, 7000):
            expected = self.machine.compute(0, length)
            self.assertAlmostEqual((self.costs.seconds_to_compute(0, length) or 0) / expected, 1, delta=0.1)
            expected = self.machine.load({"disk": length * KV_BYTES})
            seconds = self.costs.seconds_to_load({"disk": length * KV_BYTES})
            self.assertAlmostEqual((seconds or 0) / expected, 1, delta=0.1)

    def test_tokens_far_into_a_prompt_cost_more(self) -> None:
        self.computes(500, 1000, 2000, 4000, 8000)
        self.assertAlmostEqual(
            self.costs.seconds_to_compute(6000, 8000) or 0, self.machine.compute(6000, 8000), delta=0.02
        )

    def test_blocks_of_several_tiers_in_one_load_are_told_apart(self) -> None:
        for pinned, disk in ((1000, 3000), (4000, 500), (2000, 2000), (500, 5000), (8000, 100)):
            sources = {"pinned": pinned * KV_BYTES, "disk": disk * KV_BYTES}
            self.costs.loaded(sources, self.machine.load(sources))
        seconds = self.costs.seconds_to_load({"disk": 3_000_000})
        self.assertAlmostEqual(seconds or 0, self.machine.load({"disk": 3_000_000}), delta=0.01)

    def test_two_loads_in_a_row_show_that_a_store_is_slow_now(self) -> None:
        self.computes(500, 4000)
        self.loads("shared", *(500, 4000) * 6)
        self.machine.rates["shared"] /= 100
        self.assertEqual(self.tokens(("shared", 3000)), 3000)
        for _ in range(2):
            given = self.advice(("shared", 3000))
            assert given.offer is not None
            self.costs.gave_up(given.offer.sources, given.limit_s)
        self.advice(("shared", 3000))  # the first probe
        self.assertEqual(self.tokens(("shared", 3000)), 0)

    def test_a_store_that_is_fast_again_is_found(self) -> None:
        self.computes(500, 4000)
        self.loads("disk", *(500, 4000) * 6, kv_bytes=20_000)
        self.machine.rates["disk"] *= 100
        runs = [("disk", length) for length in (16, 16, 32, 64, 128, 256, 512, 1024)]
        given, probes, requests = self.advice(*runs, kv_bytes=20_000), 0, 0
        while given.offer is None or given.offer.tokens < 2048:
            if given.offer is not None:
                probes += given.is_probe
                self.costs.loaded(given.offer.sources, self.machine.load(given.offer.sources))
            self.now += 0.5
            requests += 1
            self.assertLess(requests, 2 * PROBE_EVERY_S / 0.5)
            given = self.advice(*runs, kv_bytes=20_000)
        self.assertIn(probes, range(2, 5))

    def test_probes_of_a_slow_store_are_short_and_rare(self) -> None:
        self.computes(500, 4000)
        self.loads("disk", 500, 4000, kv_bytes=20_000)
        runs = [("disk", length) for length in (16, 16, 32, 64, 128, 256, 512, 1024)]
        lost = 0.0
        for _ in range(1000):
            self.now += 0.5
            given = self.advice(*runs, kv_bytes=20_000)
            if given.offer is not None:
                self.assertTrue(given.is_probe)
                takes = self.machine.load(given.offer.sources)
                self.assertLessEqual(takes, 0.15 * self.machine.compute(0, 2048))
                self.costs.loaded(given.offer.sources, takes)
                lost += takes
        self.assertLess(lost, 0.03 * self.now)


if __name__ == "__main__":
    unittest.main()
