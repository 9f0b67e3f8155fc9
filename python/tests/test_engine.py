"""What connectors have in common, without an engine and without a server."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Sequence
from typing import Any, cast
from unittest import mock

from cairn.engine.access import Access
from cairn.engine.breaker import LONGEST_PAUSE_S, Breaker
from cairn.engine.chain import KeyChain
from cairn.engine.helper import SHARED_BYTES, Helper
from cairn.engine.identity import Identity, Rank
from cairn.engine.jobs import Jobs
from cairn.engine.lookup import Finder, Found, Lookups
from cairn.engine.mover import MAX_PENDING_SAVES, Copies, Mover
from cairn.engine.options import Unsupported, flat_shape
from cairn.engine.plan import Load, Planner, Save
from cairn.engine.report import Report
from cairn.engine.store import Row, Store
from cairn.errors import NoAnswer, NoCapacity, Refused, UnknownCache
from cairn.model import Shape
from fake_store import FakeStore
from server import PATIENCE_S, ROOT

TOKENS = list(range(100))


def keys(tokens: Sequence[int], request: object = None, root: bytes = b"r" * 32) -> list[bytes]:
    return KeyChain(root, 4, request).extend(tokens)


class Keys(unittest.TestCase):
    def test_they_are_the_same_in_every_process(self) -> None:
        code = "from test_engine import *; print(keys(TOKENS, {'salt': 'a', 'lora': None})[-1].hex())"
        path = f"{ROOT / 'python' / 'src'}:{ROOT / 'python' / 'tests'}"
        for seed in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-B", "-c", code],
                env={"PYTHONPATH": path, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            )
            self.assertEqual(done.stdout.strip(), keys(TOKENS, {"lora": None, "salt": "a"})[-1].hex())

    def test_a_key_is_the_hash_of_parent_extra_and_tokens(self) -> None:
        first = hashlib.sha256(b"r" * 32 + bytes(4) + b"".join(t.to_bytes(4, "little") for t in range(4)))
        self.assertEqual(keys(TOKENS[:7]), [first.digest()])

    def test_they_differ_by_whatever_the_bytes_depend_on(self) -> None:
        chains = [
            keys(TOKENS),
            keys([1, *TOKENS[1:]]),
            keys(TOKENS, root=b"s" * 32),
            keys(TOKENS, {"salt": "a", "lora": None}),
            keys(TOKENS, {"salt": None, "lora": ["a", ""]}),
            KeyChain(b"r" * 32, 4).extend(TOKENS, lambda begin, end: ["image", -begin] if begin < 8 else None),
            KeyChain(b"r" * 32, 4).extend(TOKENS, lambda begin, end: ["image", 1 - begin] if begin < 8 else None),
        ]
        for number in range(25):
            self.assertEqual(len({chain[number] for chain in chains}), len(chains))

    def test_they_come_as_the_tokens_do(self) -> None:
        chain = KeyChain(b"r" * 32, 4)
        for length in (0, 3, 4, 5, 50, 100):
            self.assertEqual(chain.extend(TOKENS[:length]), keys(TOKENS[:length]))

    def test_a_cache_is_named_by_all_that_must_agree(self) -> None:
        facts = {"dtype": "bfloat16", "block_tokens": 16}
        name = Identity("/models/Llama 3 8B", facts).cache_name(Rank(1, 2))
        self.assertRegex(name, r"^Llama-3-8B\.[0-9a-f]{16}\.tp1of2\.pp0of1$")
        self.assertEqual(
            name, Identity("/models/Llama 3 8B", dict(reversed(facts.items()))).cache_name(Rank(1, 2))
        )
        others = {
            Identity("/models/Llama 3 8B", {**facts, "dtype": "float16"}).cache_name(Rank(1, 2)),
            Identity("/other/Llama 3 8B", facts).cache_name(Rank(1, 2)),
            Identity("/models/Llama 3 8B", facts).cache_name(Rank(0, 2)),
        }
        self.assertEqual(len(others | {name}), 4)
        self.assertLessEqual(len(Identity("m" * 500, {}).cache_name(Rank(1000, 1000, 1000, 1000))), 64)


BLOCKS = list(range(10, 40))


class Plans(unittest.TestCase):
    """Blocks of 4 tokens; block n of the request is block 10 + n of the engine."""

    def setUp(self) -> None:
        self.planner = Planner(4)
        self.tokens = TOKENS[:22]
        self.planner.begin("a", KeyChain(b"r" * 32, 4), None)
        self.keys = keys(self.tokens)

    def save(self, computed: int) -> Save | None:
        return self.planner.computes("a", self.tokens, computed, lambda: BLOCKS)

    def test_the_last_token_is_always_computed(self) -> None:
        self.assertEqual(self.planner.keys("a", TOKENS[:20]), self.keys[:4])
        self.assertEqual(self.planner.keys("a", TOKENS[:21]), self.keys[:5])
        self.assertEqual(self.planner.keys("a", []), [])

    def test_what_is_found_beyond_the_computed_is_loaded(self) -> None:
        self.planner.keys("a", self.tokens)
        self.assertEqual(self.planner.found("a", 4, computed_tokens=8), 8)
        self.planner.load("a", BLOCKS, 8)
        self.assertEqual(self.planner.take_loads(), [Load("a", self.keys[2:4], [12, 13])])
        self.assertEqual(self.planner.take_loads(), [])

    def test_each_block_is_saved_once_and_when_it_is_full(self) -> None:
        self.planner.found("a", 0, 0)
        self.assertIsNone(self.save(3))
        self.assertEqual(self.save(10), Save(self.keys[:2], [10, 11], None))
        self.assertIsNone(self.save(10))
        self.assertIsNone(self.save(11))
        self.assertEqual(self.save(20), Save(self.keys[2:5], [12, 13, 14], self.keys[1], 2))

    def test_what_was_found_is_not_saved(self) -> None:
        self.planner.keys("a", self.tokens)
        self.planner.found("a", 4, 0)
        self.planner.load("a", BLOCKS, 16)
        self.assertEqual(self.save(22), Save(self.keys[4:5], [14], self.keys[3], 4))

    def test_what_the_engine_has_and_the_server_lost_is_saved_again(self) -> None:
        self.assertEqual(self.planner.found("a", 1, computed_tokens=16), 0)
        self.assertEqual(self.save(20), Save(self.keys[1:5], [11, 12, 13, 14], self.keys[0], 1))

    def test_tokens_that_are_not_known_yet_make_no_block(self) -> None:
        self.planner.found("a", 0, 0)
        self.tokens = self.tokens[:7]
        # Computing runs ahead of the tokens: draft tokens, or steps that overlap.
        self.assertEqual(self.save(12), Save(self.keys[:1], [10], None))

    def test_a_load_that_failed_is_not_tried_again_and_its_blocks_are_saved(self) -> None:
        self.planner.keys("a", self.tokens)
        self.planner.found("a", 5, 0)
        self.planner.load("a", BLOCKS, 20)
        self.planner.failed("a", {13, 99})
        self.assertEqual(self.save(20), Save(self.keys[3:5], [13, 14], self.keys[2], 3))
        self.assertEqual(self.planner.found("a", 5, 0), 0)

    def test_other_requests_blocks_fail_nothing(self) -> None:
        self.planner.keys("a", self.tokens)
        self.planner.found("a", 5, 0)
        self.planner.load("a", BLOCKS, 20)
        self.planner.failed("a", {99})
        self.assertIsNone(self.save(20))

    def test_a_request_that_has_ended_is_forgotten(self) -> None:
        self.planner.end("a")
        self.assertFalse(self.planner.knows("a"))
        self.assertIsNone(self.save(20))


class Breakers(unittest.TestCase):
    def test_a_silent_server_is_asked_less_and_less_and_one_answer_ends_it(self) -> None:
        now = [100.0]
        breaker = Breaker(lambda: now[0])
        self.assertTrue(breaker.may_ask())
        self.assertTrue(breaker.silent())
        pauses = []
        for _ in range(8):
            began = now[0]
            while not breaker.may_ask():
                now[0] += 0.25
            self.assertFalse(breaker.may_ask())  # the others wait for this one's answer
            self.assertFalse(breaker.silent())
            pauses.append(now[0] - began)
        self.assertEqual(pauses, sorted(pauses))
        self.assertEqual(pauses[-1], LONGEST_PAUSE_S)
        self.assertTrue(breaker.answered())
        self.assertFalse(breaker.answered())
        self.assertTrue(breaker.may_ask())


class FakePool:
    """Blocks of 8 bytes."""

    block_bytes = 8

    def __init__(self) -> None:
        self.blocks = [bytearray([number] * 8) for number in range(64)]

    def order(self) -> object:
        return None

    def fence(self) -> None: ...

    def close(self) -> None: ...

    def load(self, blocks: Sequence[int], rows: Sequence[Row], after: object) -> Copies:
        for block, row in zip(blocks, rows, strict=True):
            self.blocks[block][:] = row
        return self

    def save(self, blocks: Sequence[int], rows: Sequence[Row]) -> Copies:
        for block, row in zip(blocks, rows, strict=True):
            row[:] = self.blocks[block]
        return self

    def wait(self) -> None: ...


class Movers(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = FakePool()
        self.store = FakeStore()
        self.report = Report(logging.getLogger("cairn.test"))
        logging.getLogger("cairn.test").setLevel(logging.CRITICAL)
        self.mover = self.make(lambda: self.store)

    def make(self, open_store: Callable[[], Store]) -> Mover:
        mover = Mover(self.pool, Access(open_store, self.report), self.report)
        self.addCleanup(mover.close)
        return mover

    def save(self, *saves: Save) -> None:
        self.mover.prepare(saves)
        # The slots are there before the step ends: what is tested is not how long they may take.
        for _, slots in self.mover._prepared:
            slots.exception(PATIENCE_S)
        self.mover.save()
        self.drain()

    def drain(self) -> None:
        """Until all that is queued has been done."""
        done = threading.Barrier(3)
        for _ in range(2):
            self.mover._saves.submit(done.wait, PATIENCE_S)
        done.wait(PATIENCE_S)

    def load(self, load: Load) -> set[int]:
        self.mover.load([load])
        self.mover._loads.shutdown(wait=True)
        ((ended, failed),) = self.mover.take_done()
        self.assertIs(ended, load)
        return failed

    def test_blocks_are_saved_and_loaded_into_others(self) -> None:
        self.save(Save([b"a", b"b"], [3, 4], None), Save([b"c"], [5], b"b"))
        failed = self.load(Load("r", [b"a", b"b", b"c"], [10, 11, 12]))
        self.assertEqual(failed, set())
        self.assertEqual([self.pool.blocks[n][0] for n in (10, 11, 12)], [3, 4, 5])
        counts = self.report.take()
        self.assertEqual((counts["saved_blocks"], counts["loaded_blocks"], counts["loaded_bytes"]), (3, 3, 24))

    def test_blocks_that_are_gone_are_named(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.assertEqual(self.load(Load("r", [b"a", b"b", b"c"], [10, 11, 12])), {11, 12})

    def test_a_lease_that_was_lost_fails_all_that_was_read(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.store.loses_leases = True
        self.assertEqual(self.load(Load("r", [b"a"], [10])), {10})

    def test_whatever_a_load_meets_it_ends_and_names_its_blocks(self) -> None:
        for error in (NoAnswer("gone"), NoCapacity(507, "no_capacity", "full"), ValueError("a bug")):
            with self.subTest(error):
                self.store.fails = error
                self.mover = self.make(lambda: self.store)
                self.assertEqual(self.load(Load("r", [b"a"], [10])), {10})

    def test_loads_that_cannot_begin_have_failed(self) -> None:
        loads = [Load("r", [b"a"], [10]), Load("s", [b"b"], [11])]
        with mock.patch.object(self.pool, "order", side_effect=RuntimeError("a bug")):
            self.mover.load(loads)
        self.assertEqual(self.mover.take_done(PATIENCE_S), [(loads[0], {10}), (loads[1], {11})])
        self.mover._loads.shutdown()  # no thread can be had, say
        self.mover.load(loads)
        self.assertEqual(self.mover.take_done(PATIENCE_S), [(loads[0], {10}), (loads[1], {11})])

    def test_a_load_that_waited_too_long_has_failed(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.mover._load(Load("r", [b"a"], [10]), None, deadline=0.0)
        self.assertEqual(self.mover.take_done()[0][1], {10})
        self.assertEqual(self.pool.blocks[10][0], 10)

    def test_who_waits_for_a_load_is_told_as_soon_as_one_has_ended(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.assertEqual(self.mover.take_done(PATIENCE_S), [])  # nothing is under way that could end
        ends, load = threading.Event(), self.pool.load

        def waits(blocks: Sequence[int], *rest: Any) -> Copies:
            if blocks == [11]:
                ends.wait(PATIENCE_S)
            return load(blocks, *rest)

        with mock.patch.object(self.pool, "load", waits):
            self.mover.load([Load("late", [b"a"], [11]), Load("soon", [b"a"], [10])])
            self.assertEqual([done.request for done, _ in self.mover.take_done(PATIENCE_S)], ["soon"])
            self.assertEqual(self.mover.take_done(0.001), [])  # no longer than that
            ends.set()
            self.assertEqual([done.request for done, _ in self.mover.take_done(PATIENCE_S)], ["late"])

    def test_no_room_skips_and_the_next_is_saved(self) -> None:
        self.store.room = 1
        self.save(Save([b"a", b"b"], [3, 4], None), Save([b"c"], [5], None))
        self.assertEqual(set(self.store.held), {b"c"})
        self.assertEqual(self.report.take()["saves_skipped_blocks"], 2)

    def test_a_server_that_is_too_busy_skips_and_is_asked_again(self) -> None:
        self.store.fails = Refused(429, "too_many_transfers", "busy")
        self.save(Save([b"a"], [3], None))
        self.store.fails, self.store.fails_commit = None, Refused(429, "too_many_transfers", "busy")
        self.save(Save([b"b"], [3], None))
        self.store.fails_commit = None
        self.save(Save([b"c"], [3], None))
        self.assertEqual(set(self.store.held), {b"c"})
        self.assertEqual(self.report.take()["saves_skipped_blocks"], 2)

    def test_slots_are_given_up_where_the_copy_fails(self) -> None:
        self.mover.prepare([Save([b"a"], [99], None)])  # the engine has no such block
        for _, slots in self.mover._prepared:
            slots.exception(PATIENCE_S)
        self.mover.save()
        self.drain()
        self.assertEqual((self.store.held, self.store.released, self.mover._pending_saves), ({}, 1, 0))

    def test_a_server_that_does_not_answer_holds_no_step(self) -> None:
        self.store.gate.clear()
        self.mover.prepare([Save([b"a"], [3], None)])
        self.mover.save()  # returns
        self.assertEqual(self.report.take()["saves_skipped_blocks"], 1)
        self.store.gate.set()
        self.drain()
        self.drain()  # the slots came late, and were given up
        self.assertEqual((self.store.held, self.store.released), ({}, 1))

    def test_a_server_that_is_too_slow_is_not_given_more(self) -> None:
        self.store.gate.clear()
        self.mover._pending_saves = MAX_PENDING_SAVES
        self.mover.prepare([Save([b"a"], [3], None)])
        self.assertEqual(self.mover._prepared, [])
        self.assertEqual(self.mover._pending_saves, MAX_PENDING_SAVES)
        self.store.gate.set()

    def test_every_save_that_ended_makes_room_for_another(self) -> None:
        self.save(Save([b"a"], [3], None))
        self.store.room = 0
        self.save(Save([b"b"], [3], None))
        self.store.room, self.store.fails = 64, NoAnswer("gone")
        self.save(Save([b"c"], [3], None))
        self.assertEqual(self.mover._pending_saves, 0)

    def test_a_cache_that_is_gone_is_made_again(self) -> None:
        gone = FakeStore()
        gone.fails = UnknownCache(404, "unknown_cache", "gone")
        stores = [gone, self.store]
        self.mover = self.make(lambda: stores.pop(0))
        self.save(Save([b"a"], [3], None))
        self.assertEqual(set(self.store.held), {b"a"})


class Accesses(unittest.TestCase):
    def test_a_server_that_is_not_there_at_the_start_is_found_later(self) -> None:
        answers: list[Exception | None] = [NoAnswer("gone"), None]
        store = FakeStore()

        def open_store() -> Store:
            if (error := answers.pop(0)) is not None:
                raise error
            return store

        access = Access(open_store, Report(logging.getLogger("cairn.test")))
        access.open()
        with self.assertRaises(NoAnswer):  # it is not asked again at once
            access.use(lambda opened: None)
        access._breaker.answered()  # as if its pause were over
        self.assertIs(access.use(lambda opened: opened), store)

    def test_a_server_that_starts_or_is_busy_refuses_no_engine(self) -> None:
        for status in (429, 502, 503, 504):
            with self.subTest(status=status):
                answers: list[Exception | None] = [Refused(status, "unavailable", "the server is starting"), None]
                store = FakeStore()

                def open_store(answers: Any = answers, store: Any = store) -> Store:
                    if (error := answers.pop(0)) is not None:
                        raise error
                    return cast(Store, store)

                access = Access(open_store, Report(logging.getLogger("cairn.test")))
                access.open()
                self.assertEqual(access.is_silent, status != 429)  # one that is busy is asked for other things
                access._breaker.answered()
                self.assertIs(access.use(lambda opened: opened), store)

    def test_what_a_server_refuses_for_good_is_known_at_the_start(self) -> None:
        def refused() -> Store:
            raise Refused(403, "forbidden", "the token may not write")

        with self.assertRaises(Refused):
            Access(refused, Report(logging.getLogger("cairn.test"))).open()


class Finders(unittest.TestCase):
    def test_a_server_that_starts_is_not_asked_by_every_request(self) -> None:
        client = mock.Mock()
        client.match.side_effect = Refused(503, "unavailable", "the server is starting")
        finder = Finder(client, ["c"], "pinned", Report(logging.getLogger("cairn.test")))
        for _ in range(5):
            self.assertEqual(finder.find([b"k"], 0).blocks, 0)
        self.assertEqual(client.match.call_count, 1)
        self.assertTrue(finder.is_silent)


class ManyJobs(unittest.TestCase):
    def test_a_job_that_raises_has_ended_with_its_other_result(self) -> None:
        told = threading.Event()
        jobs: Jobs[int] = Jobs("test", 1, Report(logging.getLogger("cairn.test")), told.set)

        def fails() -> int:
            raise RuntimeError("a bug")

        with self.assertLogs("cairn.test", "ERROR"):
            jobs.submit(7, fails, -1)
            self.assertTrue(told.wait(PATIENCE_S))
        self.assertEqual(jobs.take(7), -1)
        jobs.do(fails)
        jobs.close()


class FakeFinder:
    """Finds what it is told, once it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[tuple[list[bytes], int]] = []
        self.released: list[Found] = []
        self.holds = True

    def find(self, keys: Sequence[bytes], wanted_from: int) -> Found:
        self.asked.append((list(keys), wanted_from))
        self.gate.wait(PATIENCE_S)
        found = Found(2)
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
        while (blocks := self.lookups.poll("a", [b"1", b"2"], 0)) is None:
            pass
        return blocks

    def end(self) -> None:
        self.lookups.close()

    def test_the_loop_is_told_to_ask_later_and_then_what_was_found(self) -> None:
        self.assertIsNone(self.lookups.poll("a", [b"1", b"2"], 0))
        self.assertIsNone(self.lookups.poll("a", [b"1", b"2"], 0))
        self.finder.gate.set()
        self.assertEqual(self.found(), 2)
        self.assertEqual(self.found(), 2)
        self.assertEqual(self.finder.asked, [([b"1", b"2"], 0)])
        self.end()
        self.assertEqual(len(self.finder.released), 1)

    def test_a_lookup_without_an_answer_is_a_miss(self) -> None:
        self.assertIsNone(self.lookups.poll("a", [b"1"], 0))
        future, _ = self.lookups._under_way["a"]
        self.lookups._under_way["a"] = (future, 0.0)  # its deadline has passed
        self.assertEqual(self.lookups.poll("a", [b"1"], 0), 0)
        self.finder.gate.set()  # the answer comes after all, and holds nothing
        self.end()
        self.assertEqual(len(self.finder.released), 1)

    def test_what_was_taken_is_the_takers(self) -> None:
        self.finder.gate.set()
        self.found()
        taken = self.lookups.take("a")
        self.assertEqual(taken.blocks, 2)
        self.end()
        self.assertEqual(self.finder.released, [])

    def test_a_request_that_ends_lets_go_of_what_is_still_to_come(self) -> None:
        self.assertIsNone(self.lookups.poll("a", [b"1"], 0))
        self.lookups.forget("a")
        self.finder.gate.set()
        self.end()
        self.assertEqual(len(self.finder.released), 1)

    def test_what_was_found_meanwhile_is_given_up_beside_the_loop(self) -> None:
        released_by: list[str] = []
        self.finder.release = lambda found: released_by.append(threading.current_thread().name)  # type: ignore
        self.assertIsNone(self.lookups.poll("a", [b"1"], 0))
        future, _ = self.lookups._under_way["a"]
        self.finder.gate.set()
        future.result(PATIENCE_S)  # it is here, and nobody has asked for it
        self.lookups.forget("a")
        self.end()
        self.assertEqual(len(released_by), 1)
        self.assertIn("cairn-lookup", released_by[0])

    def test_a_lease_that_was_lost_meanwhile_is_looked_up_again(self) -> None:
        self.finder.gate.set()
        self.found()
        self.finder.holds = False
        self.found()
        self.assertEqual(len(self.finder.asked), 2)
        self.end()


class Helpers(unittest.TestCase):
    def setUp(self) -> None:
        self.helper = Helper()
        self.addCleanup(self.helper.close)
        self.by_part: dict[int, str] = {}

    def copy(self, part: int) -> None:
        assert part not in self.by_part
        self.by_part[part] = threading.current_thread().name

    def test_of_a_large_copy_another_thread_does_a_part(self) -> None:
        both = threading.Barrier(2)  # two parts are under way at once

        def copy(part: int) -> None:
            self.copy(part)
            if part < 2:
                both.wait(PATIENCE_S)

        self.helper.share(copy, 5, SHARED_BYTES)
        self.assertEqual(sorted(self.by_part), [0, 1, 2, 3, 4])
        self.assertEqual(len(set(self.by_part.values())), 2)

    def test_a_small_one_is_copied_by_one(self) -> None:
        self.helper.share(self.copy, 5, SHARED_BYTES - 1)
        self.assertEqual(self.by_part, dict.fromkeys(range(5), threading.current_thread().name))

    def test_a_helper_that_is_busy_is_not_waited_for(self) -> None:
        goes_on = threading.Event()
        self.helper._thread.submit(goes_on.wait, PATIENCE_S)
        self.helper.share(self.copy, 4, SHARED_BYTES)
        self.assertEqual(self.by_part, dict.fromkeys(range(4), threading.current_thread().name))
        goes_on.set()

    def test_where_one_fails_the_other_has_ended_too(self) -> None:
        for bad in (0, 1):
            both = threading.Barrier(2)
            ended: list[int] = []

            def copy(part: int, bad: int = bad, both: Any = both, ended: Any = ended) -> None:
                both.wait(PATIENCE_S)
                if part == bad:
                    raise ValueError("no such block")
                time.sleep(0.02)  # so that the other is first
                ended.append(part)

            with self.assertRaisesRegex(ValueError, "no such block"):
                self.helper.share(copy, 2, SHARED_BYTES)
            self.assertEqual(ended, [1 - bad])


class Shapes(unittest.TestCase):
    def test_blocks_of_any_size_have_rows_that_the_server_takes(self) -> None:
        self.assertEqual(flat_shape(100), Shape(1, 1, 1, 100, 1))
        self.assertEqual(flat_shape(1 << 24), Shape(1, 1, 1, 1 << 24, 1))
        # Objects of LMCache's, of 256 tokens with 128 KiB each; a size that is no power of two.
        self.assertEqual(flat_shape(32 << 20), Shape(1, 1, 2, 1 << 24, 1))
        self.assertEqual(flat_shape(27 * 1_000_003), Shape(1, 1, 3, 9 * 1_000_003, 1))
        with self.assertRaisesRegex(Unsupported, "rows"):
            flat_shape((1 << 31) - 1)  # a prime


class Reports(unittest.TestCase):
    def test_the_same_is_not_said_again_and_again(self) -> None:
        now = [0.0]
        report = Report(logging.getLogger("cairn.test.report"), lambda: now[0])
        with self.assertLogs("cairn.test.report") as logs:
            for second in range(25):
                now[0] = float(second)
                report.warn("the server does not answer at all, not once: it said nothing")
        self.assertEqual(len(logs.output), 3)

    def test_what_was_said_is_not_remembered_without_end(self) -> None:
        report = Report(logging.getLogger("cairn.test.report"), lambda: 0.0)
        with self.assertLogs("cairn.test.report"):
            for number in range(1000):
                report.warn(f"{number} keys")
        self.assertLessEqual(len(report._said), 256)

    def test_counts_are_taken_once(self) -> None:
        report = Report(logging.getLogger("cairn.test.report"))
        report.count("a", 2)
        report.count("a")
        self.assertEqual((report.take(), report.take()), ({"a": 3}, {}))


if __name__ == "__main__":
    unittest.main()
