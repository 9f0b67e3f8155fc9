"""The connector with several KV groups in a small fake engine, against a real server."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import time
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cairn import Client
from cairn.engine.costs import When
from cairn.engine.groups import Group, Groups
from cairn.engine.keys import Identity, Rank, all_ranks
from cairn.engine.lookup import GroupFinder
from cairn.engine.options import Options, Unsupported
from cairn.engine.plan import NO_BLOCK
from cairn.engine.report import Report
from cairn.model import CacheConfig, KvGroup, Shape, TierConfig
from cairn.vllm.scheduler import SchedulerSide
from cairn.vllm.setup import LayerGroup, Setup
from cairn.vllm.worker import WorkerSide
from fake_engine import Request
from fake_pool import FakePool
from server import PATIENCE_S, ServerCase, key

TOKENS = 4
FULL = Group("full0", "full", TOKENS)
WINDOW = Group("window1", "window", TOKENS, window_tokens=10)
STATE = Group("state2", "state", TOKENS)
PROMPT = [number * 7 % 1000 for number in range(90)]
LAYERS = 2
BLOCK_BYTES = LAYERS * TOKENS * 8 * 2


def content(tokens: list[int], group: Group, rank: int) -> bytes:
    """The bytes of the rank's block of a group that ends with the last of `tokens`."""
    seed = hashlib.sha256(repr((rank, group.name, tokens)).encode()).digest()
    return (seed * (BLOCK_BYTES // len(seed) + 1))[:BLOCK_BYTES]


class Pool(FakePool):
    num_layers = LAYERS
    dtype_bytes = 2

    def __init__(self, count: int) -> None:
        super().__init__([bytearray(BLOCK_BYTES) for _ in range(count)])
        self.layer_values = BLOCK_BYTES // LAYERS // 2

    def adopt(self, memory: memoryview) -> None: ...


class HybridEngine:
    """Runs one request after the other as vLLM does: blocks that a window has left and states before the last are
    dropped, a state is kept where a chunk ends, and each token needs what its group says. Dropped blocks are
    overwritten at once. It has no prefix cache of its own."""

    def __init__(self, setup: Setup, report: Report, *, chunk: int = 12) -> None:
        self.scheduler = SchedulerSide(setup, report)
        self.groups = [one.group for one in setup.layer_groups]
        self._numbers = [one.number for one in setup.layer_groups]
        self.workers = [WorkerSide(setup, rank, saves=setup.saves, report=report) for rank in setup.ranks]
        self.pools = [[Pool(200) for _ in self.groups] for _ in self.workers]
        for worker, pools in zip(self.workers, self.pools, strict=True):
            worker.register(pools)
        self._chunk = chunk
        self._free = list(range(1, 200))
        self.polls = 0  # for the end of loads

    def run(self, request: Request) -> None:
        request.num_prompt_tokens = len(request.all_token_ids)
        deadline = time.monotonic() + PATIENCE_S
        while not self._load(request):
            assert time.monotonic() < deadline, "a load does not end"
        end = len(request.all_token_ids) + request.new_tokens
        while request.num_computed_tokens < end:
            self._step(request)
        self.scheduler.finished(request)
        self._drop(request, range(10**6))

    def close(self) -> None:
        self.scheduler.close()
        for worker in self.workers:
            worker.close()

    def _load(self, request: Request) -> bool:
        """False if a load failed; then the request is looked up again."""
        request.tables = [[] for _ in self.groups]
        while (tokens := self.scheduler.matched_tokens(request, 0)) is None:
            pass
        request.num_computed_tokens = 0
        if tokens:
            self._reserve(request, tokens, tokens)
        self.scheduler.allocated(request, self._numbered(request), tokens)
        request.loaded_tokens = tokens
        if not tokens:
            return True
        step = self._plan({}, {})
        for worker in self.workers:
            worker.before_step(step)
            worker.load(step)
        waits, failed = set(self.workers), False
        while waits:
            self.polls += 1
            for worker in list(waits):
                if worker.take_loaded():
                    waits.remove(worker)
                    failed |= bool(worker.take_failed_requests())
        self.scheduler.loads_ended({request.request_id}, set(), {request.request_id} if failed else set())
        if failed:
            self._drop(request, range(10**6))
            return False
        request.num_computed_tokens = tokens
        self.scheduler.allocated(request, self._numbered(request), 0)
        return True

    def _step(self, request: Request) -> None:
        tokens, begin = request.all_token_ids, request.num_computed_tokens
        end = min(begin + self._chunk, len(tokens))
        last = (request.num_prompt_tokens - 1) // TOKENS * TOKENS
        for stop in (last, request.shared_prefix_boundary):  # vLLM keeps states there
            if begin < stop < end:
                end = stop
        self._reserve(request, begin, end)
        offered = {}
        if any(group.kind == "state" for group in self.groups) and end in (last, request.shared_prefix_boundary):
            number = next(at for at, group in enumerate(self.groups) if group.kind == "state")
            offered[request.request_id] = [(self._numbers[number], request.tables[number][end // TOKENS - 1], end)]
        plan = self._plan({request.request_id: end - begin}, offered, request)
        for rank, worker in enumerate(self.workers):
            worker.fence()
            worker.before_step(plan)
            self._check(request, begin, rank)
            self._compute(request, begin, end, rank)
            worker.load(plan)
            worker.save()
            worker.take_loaded()
        request.num_computed_tokens = end
        request.computed_here += end - begin
        if end == len(tokens) and request.new_tokens:
            request.all_token_ids.append(sum(tokens) % 1000)
            request.new_tokens -= 1

    def _plan(self, scheduled: dict[str, int], offered: dict[str, Any], request: Request | None = None) -> Any:
        state = SimpleNamespace(
            boundary_state_offloads=offered, get_block_ids=lambda name: request and self._numbered(request)
        )
        return self.scheduler.step(SimpleNamespace(num_scheduled_tokens=scheduled, kv_connector_block_state=state))

    def _numbered(self, request: Request) -> list[list[int]]:
        """The block tables by vLLM's numbers of the groups."""
        tables: list[list[int]] = [[] for _ in range(max(self._numbers) + 1)]
        for number, table in zip(self._numbers, request.tables, strict=True):
            tables[number] = table
        return tables

    def _reserve(self, request: Request, computed: int, end: int) -> None:
        """Drops what the token after the computed ones does not need, and reserves blocks up to `end`."""
        for group, table in zip(self.groups, request.tables, strict=True):
            first = group.needed(computed).start
            self._drop(request, range(first), only=table)
            table += [NO_BLOCK] * (first - len(table))
            while len(table) * TOKENS < end:
                table.append(self._free.pop())

    def _drop(self, request: Request, which: range, only: list[int] | None = None) -> None:
        for number, table in enumerate(request.tables):
            for at in range(min(which.stop, len(table))):
                if (only is None or table is only) and table[at] != NO_BLOCK:
                    for pools in self.pools:
                        pools[number].blocks[table[at]][:] = bytes(BLOCK_BYTES)
                    self._free.insert(0, table[at])
                    table[at] = NO_BLOCK

    def _check(self, request: Request, computed: int, rank: int) -> None:
        for number, (group, table) in enumerate(zip(self.groups, request.tables, strict=True)):
            for at in group.needed(computed) if computed % TOKENS == 0 else ():
                expected = content(request.all_token_ids[: (at + 1) * TOKENS], group, rank)
                found = self.pools[rank][number].blocks[table[at]]
                assert found == expected, f"rank {rank}: wrong bytes in block {at} of {group.name}"

    def _compute(self, request: Request, begin: int, end: int, rank: int) -> None:
        for number, (group, table) in enumerate(zip(self.groups, request.tables, strict=True)):
            for at in range(begin // TOKENS, end // TOKENS):
                if group.kind != "state" or (at + 1) * TOKENS == end:
                    bytes_ = content(request.all_token_ids[: (at + 1) * TOKENS], group, rank)
                    self.pools[rank][number].blocks[table[at]][:] = bytes_


class HybridCase(ServerCase):
    def setUp(self) -> None:
        super().setUp()
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
        self.report = Report(self.log)

    def setup_of(
        self, *groups: Group, ranks: int = 1, pinned: int = 1 << 20, disk: int = 0, load: When = "always"
    ) -> Setup:
        numbered = [LayerGroup(number, group, group.kind, []) for number, group in enumerate(groups)]
        return Setup(
            options=Options(self.server.unix, None, pinned * ranks, disk * ranks, None, load=load),
            identity=Identity("m", {"test": self.id()}),
            layer_groups=numbered,
            left_out=[],
            ranks=all_ranks(ranks, 1),
            replicas=1,
            num_blocks=200,
            loads=True,
            saves=True,
            steps_alone=True,
            publishes_events=False,
        )

    def engine(self, setup: Setup, **more: Any) -> HybridEngine:
        engine = HybridEngine(setup, self.report, **more)
        self.addCleanup(engine.close)
        return engine

    def run_in_new_engine(self, setup: Setup, request: Request, **more: Any) -> Request:
        """Closing the engine waits for its saves."""
        engine = self.engine(setup, **more)
        engine.run(request)
        engine.close()
        return request

    def blocks(self, setup: Setup) -> dict[str | None, int]:
        counts: dict[str | None, int] = {}
        listed = self.client.blocks(setup.cache_name(setup.ranks[0]), tier="pinned", limit=1000).blocks
        for block in listed:
            if block.key is not None:
                counts[block.kv_group] = counts.get(block.kv_group, 0) + 1
        return counts


def request(name: str, tokens: list[int] = PROMPT) -> Request:
    return Request(name, list(tokens))


class Engines(HybridCase):
    def test_an_engine_loads_what_another_computed(self) -> None:
        # The engine checks every byte that its tokens need.
        for groups in ((FULL, WINDOW), (FULL, STATE), (FULL, WINDOW, STATE), (STATE,)):
            with self.subTest([group.name for group in groups]):
                setup = self.setup_of(*groups)
                setup = dataclasses.replace(setup, identity=Identity("m", {"groups": [g.name for g in groups]}))
                self.run_in_new_engine(setup, request("first"))
                self.report.take()
                again = self.run_in_new_engine(setup, request("again"))
                self.assertEqual((again.loaded_tokens, again.computed_here), (88, 6))
                loaded = {"full": 22, "window": 3, "state": 1}
                expected = sum(loaded[group.kind] for group in groups)
                self.assertEqual(self.report.take()["loaded_blocks"], expected)

    def test_a_step_without_computation_waits_for_all_groups(self) -> None:
        setup = self.setup_of(FULL, WINDOW, STATE)
        self.run_in_new_engine(setup, request("first"))
        engine = self.engine(setup)
        with mock.patch("cairn.vllm.worker.IDLE_WAIT_S", PATIENCE_S):
            engine.run(request("again"))
        self.assertEqual(engine.polls, 1)

    def test_large_loads_and_saves_go_in_pieces(self) -> None:
        setup = self.setup_of(FULL, WINDOW)
        with mock.patch("cairn.vllm.worker.MAX_PIECE_BYTES", 3 * BLOCK_BYTES):
            self.run_in_new_engine(setup, request("first"), chunk=40)
            self.assertEqual(self.blocks(setup), {"full0": 23, "window1": 4})
            parents = {
                block.key: block.parent
                for block in self.client.blocks(setup.cache_name(Rank()), limit=1000).blocks
                if block.kv_group == "full0"
            }
            # Each block has the one before it as its parent.
            self.assertEqual(len(set(parents.values()) - {None}), 22)
            self.assertLess(set(parents.values()) - {None}, set(parents))
            again = self.run_in_new_engine(setup, request("again"), chunk=40)
        self.assertEqual(again.loaded_tokens, 88)

    def test_only_the_ends_of_windows_and_states_are_stored(self) -> None:
        setup = self.setup_of(FULL, WINDOW, STATE)
        self.run_in_new_engine(setup, request("first"))
        self.assertEqual(self.blocks(setup), {"full0": 23, "window1": 3, "state2": 1})

    def test_the_place_where_two_prompts_part_is_stored(self) -> None:
        setup = self.setup_of(FULL, WINDOW, STATE)
        self.run_in_new_engine(setup, request("first"))
        others = [[*PROMPT[:50], *range(500 + number, 540 + number)] for number in range(3)]
        # They share 48 tokens in whole blocks. The second prompt finds them in the full group and stores the rest.
        loaded = [
            self.run_in_new_engine(setup, request(f"other{number}", other)).loaded_tokens
            for number, other in enumerate(others)
        ]
        self.assertEqual(loaded, [0, 48, 48])

    def test_a_conversation_goes_on_after_an_answer(self) -> None:
        setup = self.setup_of(FULL, WINDOW)
        first = self.run_in_new_engine(setup, request("first"))
        longer = self.run_in_new_engine(setup, request("longer", [*first.all_token_ids, *range(30)]))
        self.assertEqual((len(first.all_token_ids), longer.loaded_tokens), (94, 92))

    def test_all_ranks_must_serve_a_prefix(self) -> None:
        setup = self.setup_of(FULL, WINDOW, ranks=2)
        self.run_in_new_engine(setup, request("first"))
        one = self.run_in_new_engine(setup, request("again"))
        self.assertEqual(one.loaded_tokens, 88)
        keys = {block.key for block in self.client.blocks(setup.cache_name(Rank(1, 2)), limit=1000).blocks}
        for name in filter(None, keys):
            self.client.evict(setup.cache_name(Rank(1, 2)), [name], kv_group="window1")
        other = self.run_in_new_engine(setup, request("other"))
        self.assertEqual(other.loaded_tokens, 0)

    def test_a_request_some_of_whose_blocks_do_not_arrive_is_computed(self) -> None:
        setup = self.setup_of(FULL, WINDOW, STATE)
        self.run_in_new_engine(setup, request("first"))
        read, match = Client.read, Client.match  # over HTTP, and in mapped memory
        for lost in ("full0", "window1", "state2"):

            def some(
                client: Client,
                cache: str,
                keys: Any,
                kv_group: str | None = None,
                call: Any = read,
                lost: str = lost,
                **more: Any,
            ) -> Any:
                return call(client, cache, keys[:-1] if kv_group == lost else keys, kv_group=kv_group, **more)

            with self.subTest(lost):
                engine = self.engine(setup)
                again = request(f"without {lost}")
                with (
                    mock.patch.object(Client, "read", some),
                    mock.patch.object(Client, "match", functools.partialmethod(some, call=match)),
                ):
                    engine.run(again)
                self.assertEqual((again.loaded_tokens, again.computed_here), (0, 94))

    def test_a_load_that_cannot_be_planned_fails(self) -> None:
        setup = self.setup_of(FULL, WINDOW)
        self.run_in_new_engine(setup, request("first"))
        engine = self.engine(setup)
        again = request("again")
        with mock.patch.object(engine.scheduler._planner, "load", side_effect=ValueError("no blocks")):
            engine.run(again)
        self.assertEqual((again.loaded_tokens, again.computed_here), (0, 94))

    def test_a_cache_with_other_groups_is_refused(self) -> None:
        setup = self.setup_of(FULL, WINDOW)
        self.run_in_new_engine(setup, request("first"))
        other = dataclasses.replace(WINDOW, window_tokens=11)
        named = dataclasses.replace(setup.options, cache=setup.cache_name(Rank()))
        with self.assertRaisesRegex(Unsupported, "window1"):
            self.engine(dataclasses.replace(self.setup_of(FULL, other), options=named))
        # With its own groups it is used.
        again = self.run_in_new_engine(dataclasses.replace(setup, options=named), request("again"))
        self.assertEqual(again.loaded_tokens, 88)

    def test_a_cache_without_room_for_the_largest_block_is_refused(self) -> None:
        with self.assertRaisesRegex(Unsupported, "largest block"):
            self.engine(self.setup_of(FULL, WINDOW, pinned=64))


class Finders(HybridCase):
    """Two ranks with groups of their own content."""

    def setUp(self) -> None:
        super().setUp()
        self.keys = [key(number) for number in range(1, 11)]
        self.caches = [f"{self.name[:60]}-{rank}" for rank in range(2)]
        full = KvGroup("full0", "full", Shape(1, 1, TOKENS, 8, 2))
        state = KvGroup("state1", "state", Shape(1, 1, 1, 32, 2))
        for cache in self.caches:
            self.client.make_cache(
                cache,
                CacheConfig(
                    tiers={"pinned": TierConfig(size_bytes=1 << 20)}, block_tokens=4, kv_groups=[full, state]
                ),
            )
        groups = Groups.of([Group("full0", "full", TOKENS), Group("state1", "state", TOKENS)])
        self.finder = GroupFinder(Client(self.server.unix), self.caches, "pinned", self.report, groups)
        self.addCleanup(self.finder.close)

    def put(self, rank: int, full: int, *states: int) -> None:
        cache = self.caches[rank]
        data = bytes(64)
        for number in range(full):
            parent = self.keys[number - 1] if number else None
            self.client.put(cache, self.keys[number], data, parent=parent, kv_group="full0")
        for number in states:
            self.client.put(cache, self.keys[number - 1], data, kv_group="state1")

    def leases(self) -> int:
        return sum(len(self.client.leases(cache).leases) for cache in self.caches)

    def test_the_longest_prefix_of_all_ranks_is_found(self) -> None:
        # The first rank can serve 9, 6 and 3, the second 8, 6 and 2.
        self.put(0, 10, 9, 6, 3)
        self.put(1, 8, 8, 6, 2)
        found = self.finder.find(self.keys, 0)
        self.assertEqual(found.reach, (6, 8))
        self.assertEqual(self.leases(), 2)
        self.finder.release(found)
        self.assertEqual(self.leases(), 0)

    def test_nothing_is_pinned_if_nothing_is_common(self) -> None:
        self.put(0, 10, 9, 5)
        self.put(1, 10, 8, 4)
        self.assertEqual(self.finder.find(self.keys, 0).reach, (0, 10))
        self.assertEqual(self.leases(), 0)

    def test_full_blocks_that_the_engine_has_need_not_be_here(self) -> None:
        for rank in range(2):
            self.put(rank, 10, 9)
            self.client.evict(self.caches[rank], [self.keys[1]], kv_group="full0")
        self.assertEqual(self.finder.find(self.keys, 0).reach, (0, 1))
        # The full groups reach to the first gap: the engine's blocks after that are saved again.
        self.assertEqual(self.finder.find(self.keys, 4).reach, (9, 1))

    def test_a_missing_cache_is_a_miss(self) -> None:
        self.put(0, 10, 9)
        self.client.drop_cache(self.caches.pop())
        self.finder._caches = [*self.caches, "missing"]
        self.assertEqual(self.finder.find(self.keys, 0).reach, (0, 0))
        self.assertEqual(self.leases(), 0)


if __name__ == "__main__":
    unittest.main()
