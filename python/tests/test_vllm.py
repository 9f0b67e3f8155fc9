"""The connector's parts in a small fake engine, against a real server."""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import unittest
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cairn import Client
from cairn.engine.groups import Group
from cairn.engine.keys import Identity, Rank, all_ranks
from cairn.engine.options import Options, Unsupported
from cairn.engine.report import Report
from cairn.engine.store import Part
from cairn.errors import CairnError
from cairn.model import KvGroup, Shape, Tier
from cairn.vllm.scheduler import SchedulerSide, extra_of_block, extra_of_request, may_be_shared
from cairn.vllm.setup import BlockShape, LayerGroup, Setup
from cairn.vllm.worker import WorkerSide
from fake_engine import BLOCK_BYTES, BLOCK_TOKENS, HEADS, FakeEngine, Request, content
from server import PATIENCE_S, Server, ServerCase, eventually

PROMPT = [number * 7 % 1000 for number in range(90)]


class EngineCase(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        # Long timeouts, because a loaded machine is slow. Other tests cover the timeouts.
        for name in (
            "cairn.engine.lookup.DEADLINE_S",
            "cairn.engine.mover.SLOTS_WAIT_S",
            "cairn.vllm.scheduler.LOOKUP_TIMEOUT_S",
            "cairn.vllm.worker.TIMEOUT_S",
        ):
            patched = mock.patch(name, PATIENCE_S)
            patched.start()
            self.addCleanup(patched.stop)
        self.log = logging.getLogger("cairn.test.vllm")
        self.log.setLevel(logging.CRITICAL)

    def setup_of(
        self, ranks: int = 1, pinned: int = 64, disk: int = 0, cache: str | None = None, **more: Any
    ) -> Setup:
        """Sizes are in blocks of one rank."""
        sizes: dict[str, Any] = {
            "pinned_bytes": pinned * ranks * BLOCK_BYTES,
            "disk_bytes": disk * ranks * BLOCK_BYTES,
        }
        url, load = more.pop("url", self.server.unix), more.pop("load", "always")
        return Setup(
            options=Options(
                url, more.pop("token", None), cache=cache, ca=more.pop("ca", None), load=load, **sizes
            ),
            identity=Identity("m", {"test": self.id()}),
            layer_groups=[LayerGroup(0, Group("full0", "full", BLOCK_TOKENS), "full_attention", [])],
            left_out=[],
            ranks=all_ranks(ranks, 1),
            replicas=1,
            num_blocks=256,
            loads=more.pop("loads", True),
            saves=more.pop("saves", True),
            steps_alone=more.pop("steps_alone", True),
            publishes_events=more.pop("publishes_events", False),
        )

    def engine(self, setup: Setup, **more: Any) -> FakeEngine:
        self.report = Report(self.log)
        workers = [WorkerSide(setup, rank, saves=setup.saves, report=self.report) for rank in setup.ranks]
        engine = FakeEngine(SchedulerSide(setup, self.report), workers, **more)
        self.addCleanup(engine.close)
        return engine

    def stored(self, setup: Setup) -> None:
        """Stores the blocks of PROMPT. Closing the engine waits for its saves."""
        self.engine_of_stored = self.engine(setup)
        self.engine_of_stored.run(Request("first", list(PROMPT)))
        self.engine_of_stored.close()


class Engines(EngineCase):
    def test_an_engine_loads_what_another_computed(self) -> None:
        setup = self.setup_of()
        self.stored(setup)
        counts = self.report.take()
        # 90 tokens and 4 generated ones make 23 full blocks.
        self.assertEqual((counts["saved_blocks"], counts.get("saves_skipped_blocks", 0)), (23, 0))
        engine = self.engine(setup)
        again = Request("again", list(PROMPT))
        engine.run(again)
        self.assertEqual((again.loaded_tokens, again.computed_here), (88, 6))
        counts = self.report.take()
        self.assertEqual((counts["loaded_blocks"], counts["hit_blocks"]), (22, 22))
        self.assertEqual(counts.get("saved_blocks", 0), 0)

    def test_engines_with_other_numbers_of_ranks_load_it(self) -> None:
        self.share_heads(self.server.unix, (2, 1, 4, 2))

    def test_engines_with_other_numbers_of_ranks_load_it_over_http(self) -> None:
        with mock.patch("cairn.engine.store.TierView", side_effect=CairnError("another host")):
            self.share_heads(self.server.http, (1, 2, 4))

    def share_heads(self, url: str, ranks: Sequence[int]) -> None:
        """Each engine loads what the one before it stored, and stores a longer prompt."""
        prompt = list(PROMPT)
        stored = 0
        for count in ranks:
            setup = dataclasses.replace(self.setup_of(url=url), heads=HEADS, head_ranks=count)
            self.report = Report(self.log)
            workers = [
                WorkerSide(setup, setup.rank(rank, 0), saves=True, report=self.report, part=setup.part(rank))
                for rank in range(count)
            ]
            engine = FakeEngine(SchedulerSide(setup, self.report), workers, share_heads=count > 1)
            request = Request("one", list(prompt))
            engine.run(request)
            engine.close()
            self.assertEqual(request.loaded_tokens, stored * BLOCK_TOKENS)
            counts = self.report.take()
            self.assertEqual(counts.get("load_failed_blocks", 0), 0)
            self.assertEqual(counts.get("saves_skipped_blocks", 0), 0)
            all_blocks = (len(prompt) + 4) // BLOCK_TOKENS
            self.assertEqual(counts["saved_blocks"], count * (all_blocks - stored))
            # Stored once, and nothing waits for other parts.
            cache = self.client.cache_info(setup.cache_name(Rank()))
            blocks = cache.tiers["pinned"].blocks
            assert blocks is not None
            self.assertEqual((blocks.evictable, blocks.allocated, cache.leases), (all_blocks, 0, 0))
            # The next prompt goes on after this answer.
            prompt = [*request.all_token_ids, *range(600, 622)]
            stored = all_blocks

    def test_layers_in_another_order_are_refused(self) -> None:
        setup = dataclasses.replace(self.setup_of(), heads=2 * HEADS)
        with self.assertRaisesRegex(Unsupported, "ordered by KV heads"):
            self.engine(setup)

    def test_a_longer_prompt_saves_only_what_is_new(self) -> None:
        setup = self.setup_of()
        self.stored(setup)
        engine = self.engine(setup)
        longer = Request("longer", [*PROMPT, *range(500, 530)])
        engine.run(longer)
        engine.close()
        self.assertEqual(longer.loaded_tokens, 88)
        self.assertEqual(self.report.take()["saved_blocks"], (120 + 4) // 4 - 22)

    def test_a_requests_hint_is_passed_on(self) -> None:
        setup = self.setup_of(ranks=2)
        caches = [setup.cache_name(rank) for rank in setup.ranks]
        engine = self.engine(setup)
        logs = {"reuse": {"within_ms": 5000}, "session": "chat", "other": 1}
        engine.run(Request("first", list(PROMPT), kv_transfer_params=logs))
        engine.close()
        again = self.engine(setup)
        again.run(Request("again", list(PROMPT), kv_transfer_params={"reuse": "never", "session": "again"}))
        again.close()
        for cache in caches:
            # The blocks that were stored and the blocks that were found.
            self.assertEqual(self.client.hint(cache, "later", session="chat").blocks, 23)
            self.assertEqual(self.client.hint(cache, "soon", session="again").blocks, 22)
        counted = re.findall(r'cairn_hints_total{cache="(.*)",reuse="(.*)"} (\d+)', self.client.metrics())
        self.assertEqual(
            {cache for cache, reuse, count in counted if reuse == "never" and count != "0"}, set(caches)
        )

    def test_a_malformed_hint_does_not_prevent_a_save(self) -> None:
        setup = self.setup_of()
        engine = self.engine(setup)
        engine.run(Request("first", list(PROMPT), kv_transfer_params={"reuse": "often", "session": "chat"}))
        engine.close()
        self.assertEqual(self.report.take()["saved_blocks"], 23)
        self.assertEqual(self.client.hint(setup.cache_name(setup.ranks[0]), "later", session="chat").blocks, 0)

    def test_blocks_go_over_http_to_a_server_elsewhere(self) -> None:
        # This cache has no tier in memory that can be mapped.
        setup = self.setup_of(pinned=0, disk=64)
        self.stored(setup)
        again = Request("again", list(PROMPT))
        self.engine(setup).run(again)
        self.assertEqual(again.loaded_tokens, 88)

    def test_blocks_go_over_http_if_the_memory_cannot_be_mapped(self) -> None:
        # As on another host, or in a container with its own PID namespace.
        for number, error in enumerate((FileNotFoundError(2, "no such process"), PermissionError(1, "not yours"))):
            with self.subTest(error=error), mock.patch("cairn.tier_map.os.open", side_effect=error) as opened:
                setup = self.setup_of(url=self.server.http)
                setup = dataclasses.replace(setup, identity=Identity("m", {"test": self.id(), "number": number}))
                self.stored(setup)
                again = Request("again", list(PROMPT))
                self.engine(setup).run(again)
                self.assertEqual(again.loaded_tokens, 88)
                self.assertGreater(opened.call_count, 0)

    def test_every_rank_has_its_cache_and_all_must_hold_a_block(self) -> None:
        setup = self.setup_of(ranks=2)
        self.stored(setup)
        again = Request("again", list(PROMPT))
        self.engine(setup).run(again)
        self.assertEqual(again.loaded_tokens, 88)
        second = setup.cache_name(setup.ranks[1])
        held = self.client.blocks(second, limit=1000).blocks
        last = [block.key for block in held if block.key is not None and block.parent is not None]
        self.until_released(second)
        self.client.evict(second, last)
        once_more = Request("more", list(PROMPT))
        self.engine(setup).run(once_more)
        self.assertEqual(once_more.loaded_tokens, 4)

    def test_blocks_on_disk_are_loaded(self) -> None:
        setup = self.setup_of(pinned=24, disk=256)
        self.stored(setup)
        other = Request("other", [1, *PROMPT])
        engine = self.engine(setup)
        engine.run(other)
        engine.close()
        again = Request("again", list(PROMPT))
        self.engine(setup).run(again)
        self.assertEqual(again.loaded_tokens, 88)

    def test_engines_survive_a_restart_of_the_server(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        setup = self.setup_of(pinned=64, disk=256, url=server.unix)
        engine = self.engine(setup)
        engine.run(Request("first", list(PROMPT)))
        eventually(lambda: len(self.keys_in(setup, server, tier="disk")) == 23)
        server.kill()
        alone = Request("alone", list(PROMPT))
        engine.run(alone)
        self.assertEqual(alone.computed_here, 94)
        server.start()
        self.wait_for_breakers(engine)
        again = Request("again", list(PROMPT))
        engine.run(again)
        self.assertGreater(again.loaded_tokens, 0)
        engine.close()

    def test_a_cache_lost_in_a_restart_is_made_again(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        setup = self.setup_of(url=server.unix)
        engine = self.engine(setup)
        engine.run(Request("first", list(PROMPT)))
        eventually(lambda: len(self.keys_in(setup, server)) == 23)
        server.kill()
        server.start()
        engine.run(Request("second", list(PROMPT)))
        engine.run(Request("third", list(PROMPT)))
        engine.close()
        self.assertEqual(len(self.keys_in(setup, server)), 23)

    def test_an_engine_that_starts_first_finds_the_server_later(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        server.kill()
        setup = self.setup_of(url=server.unix)
        engine = self.engine(setup)
        engine.run(Request("first", list(PROMPT)))
        server.start()
        self.wait_for_breakers(engine)
        engine.run(Request("second", list(PROMPT)))
        engine.close()
        self.assertEqual(len(self.keys_in(setup, server)), 23)

    def test_blocks_cleared_after_the_look_up_are_computed(self) -> None:
        setup = self.setup_of()
        self.stored(setup)
        engine = self.engine(setup)
        again = Request("again", list(PROMPT))
        while not again.loading:
            engine.waiting = [again]
            engine._admit(again)
        # Ends the look-up's lease, as if its time were over, and drops the blocks.
        for found in engine.scheduler._holding.values():
            engine.scheduler._finder.release(found)
        self.client.clear(setup.cache_name(setup.ranks[0]))
        engine.run()
        self.assertEqual((again.loaded_tokens, again.computed_here), (0, 94))

    def test_aborts_at_any_time_leak_nothing(self) -> None:
        setup = self.setup_of()
        self.stored(setup)
        engine = self.engine(setup)
        free = len(engine._free)
        for steps in range(6):
            doomed = Request(f"doomed{steps}", list(PROMPT), new_tokens=1000)
            engine.waiting.append(doomed)
            for _ in range(steps):
                engine.step()
            engine.abort(doomed)
            engine.run()
        self.assertEqual(len(engine._free), free)
        engine.close()
        self.assertEqual(self.client.cache_info(setup.cache_name(setup.ranks[0])).leases, 0)

    def test_other_requests_continue_during_a_load(self) -> None:
        setup = self.setup_of()
        self.stored(setup)
        engine = self.engine(setup)
        goes_on, load = threading.Event(), engine.pools[0].load

        def waits(*args: Any) -> Any:
            goes_on.wait(PATIENCE_S)
            return load(*args)

        again, other = Request("again", list(PROMPT)), Request("other", [1, *PROMPT])
        with mock.patch.object(engine.pools[0], "load", waits):
            engine.waiting.append(again)
            while not again.loading:
                engine.step()
            engine.waiting.append(other)
            while other in [*engine.waiting, *engine.running]:
                engine.step()
            self.assertTrue(again.loading)
            goes_on.set()
            engine.run()
        self.assertEqual((again.loaded_tokens, other.computed_here), (88, 95))

    def test_a_block_corrupted_on_disk_is_computed(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        setup = self.setup_of(pinned=64, disk=64, url=server.unix)
        self.stored(setup)
        eventually(lambda: len(self.keys_in(setup, server, tier="disk")) == 23)
        server.kill()
        # Corrupts the fifth block, which a later prompt shares: `content` returns what it should hold.
        rotten = content(PROMPT[: 5 * BLOCK_TOKENS], rank=0)
        files = [file for file in (server.folder / "data").rglob("*") if file.is_file()]
        (file,) = [file for file in files if rotten in file.read_bytes()]
        file.write_bytes(file.read_bytes().replace(rotten, bytes(len(rotten))))
        server.start()
        again = Request("again", list(PROMPT))
        self.engine(setup).run(again)  # this checks every byte
        self.assertLess(again.loaded_tokens, 88)
        self.assertGreater(again.computed_here, 94 - 88)

    def test_loads_continue_if_saves_cannot_be_planned(self) -> None:
        setup = self.setup_of()
        self.stored(setup)
        engine = self.engine(setup)
        again = Request("again", list(PROMPT))
        with mock.patch.object(engine.scheduler._planner, "computes", side_effect=RuntimeError("a bug")):
            engine.run(again)
        self.assertEqual(again.loaded_tokens, 88)

    def test_a_step_waits_for_loads_only_if_nothing_is_computed(self) -> None:
        idle = SimpleNamespace(num_scheduled_tokens={})
        busy = SimpleNamespace(num_scheduled_tokens={"other": 1})
        for steps_alone, output, waits in ((True, idle, True), (True, busy, False), (False, idle, False)):
            side = SchedulerSide(self.setup_of(steps_alone=steps_alone), Report(self.log))
            self.addCleanup(side.close)
            self.assertEqual(side.step(output).may_wait, waits)

    def test_saves_without_any_hit_cause_a_warning(self) -> None:
        setup = self.setup_of(pinned=256, saves=False)
        engine = self.engine(setup)
        with mock.patch("cairn.vllm.scheduler.NEVER_HIT_BLOCKS", 40):
            engine.run(Request("one", list(PROMPT)))
            with self.assertLogs(self.log, "WARNING") as logs:
                engine.run(Request("two", [1, *PROMPT]))
        self.assertIn("44 blocks were looked up and none was there", logs.output[0])

    def test_a_preempted_request_continues_from_saved_blocks(self) -> None:
        setup = self.setup_of()
        engine = self.engine(setup)
        request = Request("a", list(PROMPT))
        engine.waiting.append(request)
        while request.num_computed_tokens < 40:
            engine.step()
        eventually(lambda: len(self.keys_in(setup, self.server)) >= 10)
        engine.preempt(request)
        engine.run()
        self.assertGreater(request.loaded_tokens, 0)

    def test_a_full_server_is_not_an_error(self) -> None:
        setup = self.setup_of(pinned=4)
        self.stored(setup)
        engine = self.engine(setup)
        for number in range(4):
            engine.run(Request(f"r{number}", [number, *PROMPT]))

    def test_producers_save_and_consumers_load(self) -> None:
        self.stored(self.setup_of(loads=False))
        producer = Request("again", list(PROMPT))
        self.engine(self.setup_of(loads=False)).run(producer)
        self.assertEqual(producer.loaded_tokens, 0)
        consumer = Request("longer", [*PROMPT, *range(40)])
        engine = self.engine(self.setup_of(saves=False))
        engine.run(consumer)
        engine.close()
        self.assertEqual(consumer.loaded_tokens, 88)
        self.assertEqual(self.report.take().get("saved_blocks", 0), 0)

    def test_a_cache_of_another_size_is_refused(self) -> None:
        setup = self.setup_of(pinned=64)
        self.stored(setup)
        with self.assertRaisesRegex(Unsupported, setup.cache_name(setup.ranks[0])):
            self.engine(self.setup_of(pinned=65))

    def test_an_existing_cache_is_used_if_its_blocks_fit(self) -> None:
        self.make(shape=Shape(3, 1, 4, 8, 2))
        setup = self.setup_of(cache=self.name)
        self.stored(setup)
        again = Request("again", list(PROMPT))
        self.engine(setup).run(again)
        self.assertGreater(again.loaded_tokens, 0)
        self.name = f"{self.name}-2"[-64:]
        self.make()
        with self.assertRaisesRegex(Unsupported, "192"):
            self.engine(self.setup_of(cache=self.name))

    def test_different_salts_and_loras_share_nothing(self) -> None:
        setup = self.setup_of(pinned=256)
        self.stored(setup)
        engine = self.engine(setup)
        for request in (
            Request("salt", list(PROMPT), cache_salt="s"),
            Request("lora", list(PROMPT), lora_request=SimpleNamespace(lora_name="l", lora_path="/l")),
            Request("other", list(PROMPT), lora_request=SimpleNamespace(lora_name="l", lora_path="/m")),
            Request("image", list(PROMPT), mm_features=[feature(2, 9, "a")]),
            Request("image2", list(PROMPT), mm_features=[feature(2, 9, "b")]),
        ):
            engine.run(request)
            self.assertEqual(request.loaded_tokens, 0, request.request_id)

    def wait_for_breakers(self, engine: FakeEngine) -> None:
        """Ends the pause after a failure."""
        engine.scheduler._finder._breaker.answered()
        for worker in engine.workers:
            assert worker._mover is not None
            worker._mover._access._breaker.answered()

    def keys_in(self, setup: Setup, server: Server, tier: Tier = "pinned") -> set[bytes]:
        with Client(server.unix) as client:
            blocks = client.blocks(setup.cache_name(setup.ranks[0]), tier=tier, limit=1000).blocks
        return {block.key for block in blocks if block.key is not None}


def feature(offset: int, length: int, identifier: str) -> SimpleNamespace:
    return SimpleNamespace(mm_position=SimpleNamespace(offset=offset, length=length), identifier=identifier)


class Requests(unittest.TestCase):
    def test_images_belong_to_the_blocks_that_contain_them(self) -> None:
        extra = extra_of_block(Request("r", [], mm_features=[feature(6, 4, "a"), feature(12, 1, "b")]))
        assert extra is not None
        inside = [extra(begin, begin + 4) for begin in range(0, 20, 4)]
        self.assertEqual(inside, [None, [["a", 2]], [["a", -2]], [["b", 0]], None])
        self.assertIsNone(extra_of_block(Request("r", [])))

    def test_embeddings_are_not_shared(self) -> None:
        self.assertTrue(may_be_shared(Request("r", [])))
        self.assertFalse(may_be_shared(SimpleNamespace(prompt_embeds=object())))

    def test_a_request_without_salt_and_lora_has_no_extra(self) -> None:
        self.assertIsNone(extra_of_request(Request("r", [])))


class FullAttentionSpec(SimpleNamespace):
    """The configuration recognises it by its name."""


class MLAAttentionSpec(FullAttentionSpec):
    pass


class RSWASpec(FullAttentionSpec):
    """Drops blocks of generated tokens."""


class SlidingWindowSpec(SimpleNamespace):
    pass


class ChunkedLocalAttentionSpec(SimpleNamespace):
    pass


class CircularBufferSpec(SimpleNamespace):
    pass


class MambaSpec(SimpleNamespace):
    pass


def configuration(**more: Any) -> tuple[Any, Any]:
    """The parts of vLLM's configuration that `Setup.of` reads."""
    spec = FullAttentionSpec(block_size=16, dtype="torch.bfloat16")
    model = SimpleNamespace(
        model="/models/tiny",
        revision=None,
        dtype="torch.bfloat16",
        quantization=None,
        use_mla=more.pop("mla", False),
        hf_config=SimpleNamespace(to_dict=lambda: {"hidden_size": 64, "_name_or_path": "/somewhere"}),
        get_total_num_kv_heads=lambda total=more.pop("total_heads", 8): total,  # noqa: B008
    )
    parallel = SimpleNamespace(
        tensor_parallel_size=more.pop("tensor", 1),
        pipeline_parallel_size=more.pop("pipeline", 1),
        data_parallel_size=more.pop("data", 1),
        decode_context_parallel_size=more.pop("dcp", 1),
        prefill_context_parallel_size=1,
    )
    transfer = SimpleNamespace(
        kv_role=more.pop("role", "kv_both"), kv_connector_extra_config=more.pop("extra", {})
    )
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=["a", "b"]) for spec in more.pop("specs", [spec])]
    cache = SimpleNamespace(kv_cache_groups=groups, num_blocks=100, kv_tp_replicas=more.pop("replicas", 1))
    events = SimpleNamespace(enable_kv_cache_events=True) if more.pop("publishes_events", False) else None
    prefix_caching = more.pop("prefix_caching", True)
    assert not more
    return SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        kv_transfer_config=transfer,
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=prefix_caching),
        kv_events_config=events,
        speculative_config=None,
    ), cache


class Setups(unittest.TestCase):
    def test_layers_that_cairn_does_not_know_are_refused(self) -> None:
        full = FullAttentionSpec(block_size=16)
        for specs in ([RSWASpec(block_size=16)], [full, RSWASpec(block_size=16)]):
            with self.assertRaisesRegex(Unsupported, "RSWASpec"):
                Setup.of(*configuration(specs=specs))
        window = SlidingWindowSpec(block_size=16, sliding_window=32)
        with self.assertRaisesRegex(Unsupported, "has none"):
            Setup.of(*configuration(specs=[window, window]))
        with self.assertRaisesRegex(Unsupported, "mamba_cache_mode=align; here it is none"):
            Setup.of(*configuration(specs=[full, MambaSpec(block_size=16, mamba_cache_mode="none")]))
        with self.assertRaisesRegex(Unsupported, "16 KV cache groups; this model has 17"):
            Setup.of(*configuration(specs=[full] * 17))
        with self.assertRaisesRegex(Unsupported, "pipeline_parallel_size=2 with 2"):
            Setup.of(*configuration(specs=[full, window], pipeline=2))
        draft = SlidingWindowSpec(block_size=16, sliding_window=32, extra_retained_tokens=2)
        with self.assertRaisesRegex(Unsupported, "draft layers"):
            Setup.of(*configuration(specs=[full, draft]))

    def test_groups_that_vllm_does_not_share_are_left_out(self) -> None:
        ring = CircularBufferSpec(block_size=24, prefix_cacheable=False)
        full, window = FullAttentionSpec(block_size=16), SlidingWindowSpec(block_size=16, sliding_window=32)
        setup = Setup.of(*configuration(specs=[ring, full, window]))
        self.assertEqual(setup.left_out, ["0 (CircularBufferSpec of a)"])
        self.assertEqual([one.number for one in setup.layer_groups], [1, 2])
        self.assertEqual(setup.groups.key_tokens, 16)

    def test_a_model_with_several_groups_has_a_cache_with_kv_groups(self) -> None:
        specs = [
            SlidingWindowSpec(block_size=32, sliding_window=100, dtype="torch.bfloat16"),
            FullAttentionSpec(block_size=16, dtype="torch.bfloat16"),
            MambaSpec(block_size=16, mamba_cache_mode="align", shapes=((2, 8),)),
            ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=64),
        ]
        setup = Setup.of(*configuration(specs=specs, tensor=2, extra={"cairn.pinned_bytes": 1 << 20}))
        shapes = [BlockShape(3, 32 * 8, 2), BlockShape(3, 16 * 8, 2), BlockShape(2, 50, 1), BlockShape(1, 16, 2)]
        groups = setup.kv_groups(shapes)
        self.assertEqual(
            groups,
            [
                KvGroup("window0", "window", Shape(3, 1, 32, 8, 2), 100),
                KvGroup("full1", "full", Shape(3, 1, 16, 8, 2)),
                KvGroup("state2", "state", Shape(2, 1, 1, 50, 1)),
                KvGroup("window3", "window", Shape(1, 1, 16, 1, 2), 64),
            ],
        )
        config = setup.group_cache_config(groups)
        assert config is not None
        self.assertEqual((config.block_tokens, config.tiers["pinned"].size_bytes), (16, 1 << 19))
        self.assertTrue(setup.has_kv_groups)
        self.assertFalse(Setup.of(*configuration()).has_kv_groups)
        self.assertTrue(Setup.of(*configuration(specs=specs[2:3])).has_kv_groups)

    def test_engines_with_other_groups_share_nothing(self) -> None:
        full, window = FullAttentionSpec(block_size=16), SlidingWindowSpec(block_size=16, sliding_window=32)
        other = SlidingWindowSpec(block_size=16, sliding_window=48)
        names = [
            Setup.of(*configuration(specs=specs)).cache_name(Rank())
            for specs in ([full, window], [window, full], [full, other], [full, full])
        ]
        self.assertEqual(len(set(names)), 4)

    def test_the_cache_of_a_single_full_group_keeps_its_name(self) -> None:
        self.assertEqual(Setup.of(*configuration()).cache_name(Rank()), "tiny.87453e3fd7efe3d4.tp0of1.pp0of1")

    def test_a_latent_is_supported(self) -> None:
        spec = MLAAttentionSpec(block_size=16, dtype="torch.bfloat16")
        setup = Setup.of(*configuration(specs=[spec], mla=True, tensor=2, replicas=2))
        # Its ranks hold the same bytes, so there is one cache.
        self.assertEqual([rank.label for rank in setup.ranks], ["tp0of1.pp0of1"])
        config = setup.cache_config(num_layers=3, layer_values=16 * 576, dtype_bytes=2)
        assert config is not None
        self.assertEqual(config.layout, Shape(3, 1, 16, 576, 2))
        self.assertEqual(setup.layer_groups[0].attention, "mla_attention")

    def test_a_latent_without_prefix_caching_is_refused(self) -> None:
        with self.assertRaisesRegex(Unsupported, "MLA .* prefix caching is off"):
            Setup.of(*configuration(mla=True, prefix_caching=False))
        # Other models can compute after a prefix: the user may want this prefix cache instead of vLLM's.
        Setup.of(*configuration(prefix_caching=False))

    def test_context_parallelism_is_refused(self) -> None:
        with self.assertRaisesRegex(Unsupported, "decode_context_parallel_size=2"):
            Setup.of(*configuration(dcp=2))

    def test_ranks_with_the_same_bytes_share_a_cache(self) -> None:
        setup = Setup.of(*configuration(tensor=4, replicas=2, pipeline=2))
        self.assertEqual(
            [rank.label for rank in setup.ranks],
            [
                "tp0of2.pp0of2",
                "tp1of2.pp0of2",
                "tp0of2.pp1of2",
                "tp1of2.pp1of2",
            ],
        )
        self.assertEqual(setup.rank(3, 1), Rank(1, 2, 1, 2))
        self.assertEqual(setup.rank(2, 1), setup.rank(3, 1))

    def test_ranks_with_the_same_head_store_it_once_though_vllm_does_not_say_so(self) -> None:
        def setup_of(tensor: int) -> Setup:
            spec = FullAttentionSpec(block_size=16, dtype="torch.bfloat16", num_kv_heads=max(2 // tensor, 1))
            return Setup.of(*configuration(specs=[spec], tensor=tensor, total_heads=2))

        two, four = setup_of(2), setup_of(4)
        self.assertEqual(two.cache_name(Rank()), four.cache_name(Rank()))
        self.assertEqual([four.part(tensor) for tensor in range(4)], [Part(half, 2) for half in (0, 0, 1, 1)])
        self.assertEqual((two.replicas, four.replicas), (1, 2))

    def test_the_tensor_ranks_of_a_model_with_heads_share_a_cache(self) -> None:
        def setup_of(tensor: int, replicas: int = 1, **more: Any) -> Setup:
            spec = FullAttentionSpec(block_size=16, dtype="torch.bfloat16", num_kv_heads=8 * replicas // tensor)
            return Setup.of(*configuration(specs=[spec], tensor=tensor, replicas=replicas, **more))

        one, two, many = setup_of(1), setup_of(2), setup_of(16, replicas=2)
        self.assertEqual({setup.cache_name(setup.rank(0, 0)) for setup in (one, two, many)}, {one.cache_name(Rank())})
        self.assertEqual({setup.identity.root for setup in (one, two, many)}, {one.identity.root})
        self.assertTrue(one.cache_name(Rank()).endswith(".kv8.pp0of1"))
        for setup, parts in ((one, 1), (two, 2), (many, 8)):
            config = setup.cache_config(num_layers=3, layer_values=8 // parts * 16 * 64, dtype_bytes=2)
            assert config is not None
            self.assertEqual(config.layout, Shape(3, 8, 16, 64, 2, shards=8))
        self.assertEqual(one.part(0), None)
        self.assertEqual([two.part(tensor) for tensor in range(2)], [Part(0, 2), Part(1, 2)])
        # The second of two workers with the same heads.
        self.assertEqual(many.part(5), Part(2, 8))
        self.assertEqual(len(setup_of(2, pipeline=2).ranks), 2)
        self.assertEqual(setup_of(2, pipeline=2).rank(1, 1), Rank(0, 1, 1, 2))

    def test_a_latent_is_found_whatever_the_number_of_ranks(self) -> None:
        spec = MLAAttentionSpec(block_size=16, dtype="torch.bfloat16", num_kv_heads=1)
        one, two = (
            Setup.of(*configuration(specs=[spec], mla=True, tensor=ranks, replicas=ranks)) for ranks in (1, 2)
        )
        self.assertEqual(one.cache_name(Rank()), two.cache_name(two.rank(1, 0)))
        self.assertIsNone(two.part(1))

    def test_the_role_decides_what_is_loaded_and_saved(self) -> None:
        for role, loads, saves in (
            ("kv_both", True, True),
            ("kv_producer", False, True),
            ("kv_consumer", True, False),
        ):
            setup = Setup.of(*configuration(role=role))
            self.assertEqual((setup.loads, setup.saves), (loads, saves))

    def test_events_are_published_if_vllm_was_started_with_them(self) -> None:
        self.assertFalse(Setup.of(*configuration()).publishes_events)
        self.assertTrue(Setup.of(*configuration(publishes_events=True)).publishes_events)

    def test_sizes_are_divided_among_all_ranks(self) -> None:
        extra = {"cairn.pinned_bytes": 1_000_000, "cairn.disk_bytes": 4_000_000}
        setup = Setup.of(*configuration(tensor=2, extra=extra))
        config = setup.cache_config(num_layers=2, layer_values=1600, dtype_bytes=2)
        assert config is not None
        self.assertEqual(config.layout, Shape(2, 1, 16, 100, 2))
        self.assertEqual(
            {name: tier.num_blocks for name, tier in config.tiers.items()}, {"pinned": 78, "disk": 312}
        )
        self.assertEqual(config.offload, "on_commit")

    def test_values_need_not_be_a_multiple_of_the_tokens(self) -> None:
        config = Setup.of(*configuration()).cache_config(num_layers=2, layer_values=1601, dtype_bytes=2)
        assert config is not None and config.layout is not None
        self.assertEqual(config.layout.block_bytes, 2 * 1601 * 2)

    def test_a_shared_tier_is_an_option(self) -> None:
        for given, expected in ((True, {"placement": "values"}), ("true", {"placement": "values"}), (False, None)):
            config = Setup.of(*configuration(extra={"cairn.shared": given})).cache_config(2, 1600, 2)
            assert config is not None
            self.assertEqual(config.shared, expected)

    def test_a_codec_is_an_option_of_the_disk(self) -> None:
        extra = {"cairn.disk_bytes": 1 << 30, "cairn.pinned_bytes": 1 << 30}
        for codec, expected in (("bytes", "bytes"), ("none", None)):
            config = Setup.of(*configuration(extra=extra | {"cairn.codec": codec})).cache_config(2, 1600, 2)
            assert config is not None
            self.assertEqual([config.tiers[tier].codec for tier in ("pinned", "disk")], [None, expected])

    def test_a_codec_is_an_option_of_the_shared_tier(self) -> None:
        for shared, expected in ((True, {"placement": "values", "codec": "bytes"}), (False, None)):
            extra = {"cairn.shared": shared, "cairn.codec": "bytes"}
            config = Setup.of(*configuration(extra=extra)).cache_config(2, 1600, 2)
            assert config is not None
            self.assertEqual(config.shared, expected)

    def test_wrong_options_are_refused(self) -> None:
        with self.assertRaisesRegex(Unsupported, r"cairn\.codec must be none or bytes"):
            Options.of({"cairn.codec": "zstd"})
        with self.assertRaisesRegex(Unsupported, r"cairn\.shared must be true or false"):
            Options.of({"cairn.shared": 2})
        with self.assertRaisesRegex(Unsupported, r"cairn\.pinned_byte;"):
            Options.of({"cairn.pinned_byte": 1})
        with self.assertRaisesRegex(Unsupported, "bytes"):
            Options.of({"cairn.pinned_bytes": -1})
        with self.assertRaisesRegex(Unsupported, "holds no block"):
            Setup.of(*configuration(extra={"cairn.pinned_bytes": 10})).cache_config(1, 16, 2)
        self.assertEqual(Options.of({"other": 1}).disk_bytes, 0)


if __name__ == "__main__":
    unittest.main()
