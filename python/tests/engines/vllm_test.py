"""vLLM on the CPU with the connector, against a real server. Its answers must equal those without the
connector."""

from __future__ import annotations

import random
import threading
import time
import unittest
from pathlib import Path
from typing import Any

from rig import BLOCK_TOKENS, Engine, EngineCase, full_blocks, is_long, prompt

from cairn import Client
from server import PATIENCE_S


class VllmOnTheCpu(EngineCase):
    def test_tokens_of_shared_prefixes_equal_those_without_cairn(self) -> None:
        requests, at_once = (200, 20) if is_long() else (60, 12)
        values = random.Random(1)
        prefixes = [prompt(seed, values.randrange(200, 900)) for seed in range(8)]
        prompts = [
            [*values.choice(prefixes)[: values.randrange(100, 900)], *prompt(1000 + one, values.randrange(1, 120))]
            for one in range(requests)
        ]
        # Long answers exceed the engine's memory, so requests are preempted.
        right = self.right(prompts, max_tokens=48)
        self.assertGreater(len({tuple(tokens) for tokens in right}), requests * 9 // 10)
        # Memory for two or three of them: blocks are dropped, and prompts computed in pieces.
        engine = self.engine(num_gpu_blocks_override=72, max_num_batched_tokens=256, max_model_len=2048)
        answers = [
            engine.generate(*prompts[at : at + at_once], max_tokens=48) for at in range(0, requests, at_once)
        ]
        self.assertEqual([tokens for answer in answers for tokens in answer["tokens"]], right)
        counts = answers[-1]["counts"]
        self.assertGreater(counts["loaded_blocks"], requests)
        self.assertEqual(counts.get("load_failed_blocks", 0), 0)
        self.assertGreater(counts["preemptions"], 0)
        print(f"{requests} requests, {counts}")

    def test_a_wrong_block_would_be_seen(self) -> None:
        # The tokens that the other tests compare depend on every block.
        one = prompt(1, 900)
        begins = range(0, 864, 3 * BLOCK_TOKENS)
        others = [[*one[:at], *prompt(2 + at, BLOCK_TOKENS), *one[at + BLOCK_TOKENS :]] for at in begins]
        right, *changed = self.right([one, *others])
        for tokens in changed:
            self.assertNotEqual(tokens, right)

    def test_blocks_outlive_a_killed_engine_and_the_disk_a_killed_server(self) -> None:
        prompts = [prompt(1, 900), prompt(2, 700)]
        lengths = [len(one) for one in prompts]
        right = self.right(prompts)
        first = self.engine()
        cold = [first.generate(one) for one in prompts]
        self.assertEqual([one["cached"] for one in cold], [[0], [0]])
        stored = sum((length + 7) // BLOCK_TOKENS for length in lengths)
        self.until_stored(stored)
        first.kill()

        second = self.engine()
        warm = [second.generate(one) for one in prompts]
        self.is_right_and_warm(warm, right, lengths)
        second.kill()
        self.until_stored(stored, "disk")
        self.server.kill()
        self.server.start()

        third = self.engine()
        from_disk = [third.generate(one) for one in prompts]
        self.is_right_and_warm(from_disk, right, lengths)
        for name, answers in (("cold", cold), ("in a new process", warm), ("from the disk", from_disk)):
            print(f"{name} {[answer['first_s'][0] for answer in answers]} s to the first token")

    def is_right_and_warm(self, answers: list[dict[str, Any]], right: list[list[int]], lengths: list[int]) -> None:
        self.assertEqual([answer["tokens"][0] for answer in answers], right)
        blocks = [full_blocks(length) for length in lengths]
        self.assertEqual([answer["cached"][0] for answer in answers], [count * BLOCK_TOKENS for count in blocks])
        counts = answers[-1]["counts"]
        self.assertEqual((counts["loaded_blocks"], counts.get("load_failed_blocks", 0)), (sum(blocks), 0))

    def test_forgotten_blocks_are_loaded_again_also_after_the_servers_restart(self) -> None:
        one = prompt(1, 900)
        (right,) = self.right([one])
        engine = self.engine()
        cold = engine.generate(one)
        self.assertEqual((cold["tokens"], cold["cached"]), ([right], [0]))
        self.assertEqual(self.until_cached(engine, one)["tokens"], [right])
        self.until_stored(907 // BLOCK_TOKENS, "disk")
        self.server.kill()
        alone = engine.generate(one, forget=True)
        self.assertEqual((alone["tokens"], alone["cached"], alone["finished"]), ([right], [0], ["length"]))
        self.server.start()
        again = self.until_cached(engine, one)
        self.assertEqual((again["tokens"], again["counts"].get("load_failed_blocks", 0)), ([right], 0))
        salted = engine.generate(one, salt="other")
        self.assertEqual((salted["tokens"], salted["cached"]), ([right], [0]))

    def test_a_server_killed_under_load_changes_no_token(self) -> None:
        kills = 20 if is_long() else 4
        shared = prompt(1, 640)
        prompts = [[*shared, *prompt(100 + one, 200)] for one in range(12)]
        right = self.right(prompts)
        # Too few blocks for all requests, so every round loads and saves again.
        engine = self.engine(num_gpu_blocks_override=72, max_num_batched_tokens=256, max_model_len=2048)
        when = random.Random(2)
        wrong, waits = 0, []
        for _ in range(kills):
            killer = threading.Timer(when.uniform(0, 2), self.server.kill)
            killer.start()
            while killer.is_alive():
                wrong += engine.generate(*prompts)["tokens"] != right
            killer.join()
            wrong += engine.generate(*prompts)["tokens"] != right
            self.server.start()
            began = time.monotonic()
            self.until_cached(engine, prompts[0])
            waits.append(round(time.monotonic() - began, 2))
        self.assertEqual(wrong, 0)
        counts = engine.generate(prompts[0])["counts"]
        print(f"{kills} kills, hits again after {waits} s, {counts}")
        if is_long():
            self.assertLess(max(waits), 5)

    def test_two_engines_at_once_share_blocks(self) -> None:
        prompts = [prompt(seed, 600) for seed in range(6)]
        right = self.right(prompts)
        engines = [self.begin(), self.begin()]
        for engine in engines:
            engine.started()
        own = [prompts[:4], prompts[2:]]  # both engines compute the two in the middle
        first = self.at_once(engines, own)
        self.assertEqual([answer["tokens"] for answer in first], [right[:4], right[2:]])
        self.until_stored(6 * (607 // BLOCK_TOKENS))
        second = self.at_once(engines, own[::-1], forget=True)
        self.assertEqual([answer["tokens"] for answer in second], [right[2:], right[:4]])
        for answer in second:
            self.assertEqual(answer["cached"], [full_blocks(600) * BLOCK_TOKENS] * 4)

    def at_once(self, engines: list[Engine], prompts: list[list[list[int]]], **more: Any) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = [{}, {}]

        def run(number: int) -> None:
            answers[number] = engines[number].generate(*prompts[number], **more)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def test_two_ranks_in_mapped_memory(self) -> None:
        counts = self.two_ranks(self.server.unix)
        self.assertEqual(counts.get("load_failed_blocks", 0), 0)

    def test_two_ranks_over_http(self) -> None:
        self.two_ranks(self.server.http)

    def two_ranks(self, url: str) -> dict[str, Any]:
        """Returns the second engine's counters."""
        parallel = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", "url": url}
        one = prompt(1, 600)
        (right,) = self.right([one])
        first = self.engine(**parallel)
        cold = first.generate(one)
        self.assertEqual((cold["tokens"], cold["cached"]), ([right], [0]))
        self.until_stored(607 // BLOCK_TOKENS)
        first.kill()
        second = self.engine(**parallel)
        warm = second.generate(one)
        self.assertEqual((warm["tokens"], warm["cached"]), ([right], [full_blocks(600) * BLOCK_TOKENS]))
        counts: dict[str, Any] = warm["counts"]
        # Counted once per rank.
        self.assertEqual(counts["loaded_blocks"], 2 * full_blocks(600))
        return counts

    def test_engines_with_other_numbers_of_ranks_share_blocks(self) -> None:
        self.share_between(2, 1, 2)

    def test_four_ranks_load_what_two_have_stored(self) -> None:
        self.share_between(2, 4)

    def share_between(self, *ranks: int) -> None:
        """Each engine loads what the one before it stored, and stores another prompt."""
        prompts = [prompt(20 + seed, 600) for seed in range(len(ranks))]
        right = self.right(prompts)
        stored = 607 // BLOCK_TOKENS
        for number, count in enumerate(ranks):
            parallel = {"tensor_parallel_size": count, "distributed_executor_backend": "mp"} if count > 1 else {}
            engine = self.engine(**parallel)
            if number > 0:
                warm = engine.generate(prompts[number - 1])
                self.assertEqual(warm["tokens"], [right[number - 1]])
                self.assertEqual(warm["cached"], [full_blocks(600) * BLOCK_TOKENS])
                self.assertEqual(warm["counts"].get("load_failed_blocks", 0), 0)
            cold = engine.generate(prompts[number])
            self.assertEqual((cold["tokens"], cold["cached"]), ([right[number]], [0]))
            self.until_stored((number + 1) * stored)
            engine.kill()
        with Client(self.server.unix) as client:
            (cache,) = client.caches()
            here = client.cache_info(cache.name).tiers["pinned"].blocks
            # Stored once, and nothing waits for other parts.
            assert here is not None
            self.assertEqual((here.evictable, here.allocated), (len(ranks) * stored, 0))

    def test_vllms_own_events_report_stored_and_removed_blocks(self) -> None:
        one, endpoint = prompt(1, 200), f"ipc://{self.server.folder}/events"
        engine = self.engine(kv_events_config={"enable_kv_cache_events": True, "endpoint": endpoint})
        blocks = 207 // BLOCK_TOKENS
        events = engine.generate(one)["events"]

        def of(kind: str, locality: str | None, medium: str) -> list[dict[str, Any]]:
            return [
                event
                for event in events
                if (event["type"], event.get("locality"), event.get("medium")) == (kind, locality, medium)
                and "ownership" not in event
            ]

        def until(kind: str) -> None:
            """Each step of the engine reports the changes since the step before."""
            deadline = time.monotonic() + PATIENCE_S
            while any(
                sum(len(event["block_hashes"]) for event in of(kind, "LOCAL", medium)) < blocks
                for medium in ("CPU", "STORAGE")
            ):
                self.assertLess(time.monotonic(), deadline, events)
                events.extend(engine.generate(prompt(99, 4), max_tokens=1)["events"])

        until("BlockStored")
        own = [hash for event in of("BlockStored", None, "GPU") for hash in event["block_hashes"]]
        self.assertEqual(len(own), blocks)
        for medium in ("CPU", "STORAGE"):
            told = {event["block_hashes"][0]: event for event in of("BlockStored", "LOCAL", medium)}
            self.assertEqual(set(told), set(own))
            kinds = {event.get("kv_cache_spec_kind") for event in of("BlockStored", None, "GPU")}
            self.assertEqual({event["kv_cache_spec_kind"] for event in told.values()}, kinds)
            chain = [told[hash] for hash in own]
            self.assertEqual([event["parent_block_hash"] for event in chain], [None, *own[:-1]])
            self.assertEqual([token for event in chain for token in event["token_ids"]][:192], one[:192])
        with Client(self.server.unix) as client:
            client.clear(client.caches()[0].name)
        until("BlockRemoved")

    def test_one_engine_prefills_and_another_decodes(self) -> None:
        one = prompt(1, 600)
        (right,) = self.right([one], max_tokens=40)
        engines = [self.begin(role="kv_producer"), self.begin(role="kv_consumer")]
        producer, consumer = [engine.started() for engine in engines]
        producer.generate(one, max_tokens=1)
        self.until_stored(600 // BLOCK_TOKENS)
        decoded = consumer.generate(one, max_tokens=40)
        self.assertEqual((decoded["tokens"], decoded["cached"]), ([right], [full_blocks(600) * BLOCK_TOKENS]))
        # The consumer does not save generated tokens, and the producer does not load.
        self.assertEqual(decoded["counts"].get("saved_blocks", 0), 0)
        again = producer.generate(one, max_tokens=1, forget=True)
        self.assertEqual(again["cached"], [0])


class VllmWithTiers(EngineCase):
    """CairnTier below vLLM's own CPU tier, in a whole engine."""

    # Chunks of 96 KiB. The two prompts below have 49 chunks.
    CPU_CHUNKS = 40

    def transfer(self, url: str, role: str, options: dict[str, Any]) -> dict[str, Any]:
        tier = {"type": "CairnTier", "module_path": "cairn.vllm", "cairn.url": url, **options}
        extra = {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_copies",
            "cpu_bytes_to_use": self.CPU_CHUNKS * 96 << 10,
            "secondary_tiers": [tier],
        }
        return {"kv_connector": "OffloadingConnector", "kv_role": role, "kv_connector_extra_config": extra}

    def test_spilled_blocks_are_loaded_by_this_engine_and_the_next_also_after_a_restart(self) -> None:
        prompts = [prompt(1, 900), prompt(2, 700)]
        right = self.right(prompts)
        whole = [[full_blocks(len(one)) * BLOCK_TOKENS] for one in prompts]
        first = self.engine()
        for one, tokens in zip(prompts, right, strict=True):
            cold = first.generate(one)
            self.assertEqual((cold["tokens"], cold["cached"]), ([tokens], [0]))
        # Only of the prompts: vLLM does not offload generated tokens.
        self.until_stored(sum(len(one) // BLOCK_TOKENS for one in prompts))
        # The second prompt replaced the first one in the CPU tier.
        again = first.generate(prompts[0], forget=True)
        self.assertEqual((again["tokens"], again["cached"]), ([right[0]], whole[0]))
        first.kill()

        second = self.engine()
        for one, tokens, cached in zip(prompts, right, whole, strict=True):
            warm = second.generate(one)
            self.assertEqual((warm["tokens"], warm["cached"]), ([tokens], cached))
        self.until_stored(sum(len(one) // BLOCK_TOKENS for one in prompts), "disk")
        self.server.kill()
        alone = second.generate(prompt(3, 900), forget=True)
        self.assertEqual(alone["tokens"], self.right([prompt(3, 900)]))
        self.server.start()
        self.assertEqual(self.until_cached(second, prompts[0])["tokens"], [right[0]])


@unittest.skipUnless("amx_tile" in Path("/proc/cpuinfo").read_text(), "vLLM's kernel for MLA wants a CPU with AMX")
class VllmWithALatent(EngineCase):
    """A model whose blocks have one latent vector for each token (MLA)."""

    KIND = ("latent",)
    OPTIONS: dict[str, Any] = {"dtype": "bfloat16"}  # noqa: RUF012

    def test_an_engine_loads_what_another_computed(self) -> None:
        one = prompt(1, 600)
        # Without and with vLLM's own prefix cache: with values of 2 bytes the two may differ.
        (right,), (behind,) = self.right([one]), self.right([one])
        (changed,) = self.right([[*one[:320], *prompt(2, BLOCK_TOKENS), *one[352:]]])
        self.assertNotEqual(behind, changed)  # a wrong block changes the tokens
        first = self.engine()
        cold = first.generate(one)
        self.assertEqual((cold["tokens"], cold["cached"]), ([right], [0]))
        self.until_stored(607 // BLOCK_TOKENS)
        first.kill()
        blocks = full_blocks(600)
        warm = self.engine().generate(one)
        self.assertEqual((warm["tokens"], warm["cached"]), ([behind], [blocks * BLOCK_TOKENS]))
        counts = warm["counts"]
        self.assertEqual((counts["loaded_blocks"], counts.get("load_failed_blocks", 0)), (blocks, 0))
