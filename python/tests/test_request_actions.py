"""Actions that come with an engine's requests."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import unittest
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cairn.engine.actions import MAX_ACTIONS, RequestActions, Wish, wishes_of
from cairn.engine.keys import KeyChain
from cairn.engine.lookup import Finder, Found
from cairn.engine.report import Report
from cairn.errors import NoAnswer, UnknownCache
from cairn.model import ActionResult, PinInfo
from fake_engine import BLOCK_TOKENS, FakeEngine, Request
from server import PATIENCE_S, Server, eventually
from test_vllm import PROMPT, EngineCase

BLOCKS = (len(PROMPT) + 4) // BLOCK_TOKENS  # with an answer of 4 tokens
FOUND = (len(PROMPT) - 1) // BLOCK_TOKENS
PIN = {"type": "pin", "ttl_ms": 600_000}


def enveloped(*actions: dict[str, Any]) -> dict[str, Any]:
    """An envelope as a router sends it."""
    return {
        "protocol_version": "1",
        "message_id": "m1",
        "actions": [
            {
                "action_id": f"a{number}",
                "action_type": action["type"],
                "action_version": "1",
                "payload": {name: value for name, value in action.items() if name != "type"},
            }
            for number, action in enumerate(actions)
        ],
    }


class Requests(EngineCase):
    def setUp(self) -> None:
        super().setUp()
        for name in ("STORED_WAIT_S", "CLOSE_S"):
            patched = mock.patch(f"cairn.engine.actions.{name}", PATIENCE_S)
            patched.start()
            self.addCleanup(patched.stop)

    def ask(self, engine: FakeEngine, *actions: Any, prompt: Sequence[int] = PROMPT, **more: Any) -> Request:
        """Runs a request with these actions."""
        params = more.pop("params", {"actions": list(actions)} if actions else None)
        request = Request(f"r{time.monotonic_ns()}", list(prompt), kv_transfer_params=params, **more)
        engine.run(request)
        return request

    def pins(self, cache: str) -> list[PinInfo]:
        return self.client.pins(cache).pins

    def one_pin(self, cache: str, blocks: int) -> PinInfo:
        eventually(lambda: len(self.pins(cache)) == 1)
        (pin,) = self.pins(cache)
        self.assertEqual(pin.blocks, blocks)
        return pin

    def has_ended(self, *names: str, count: int = 1) -> dict[str, float]:
        """Waits until so many actions have one of these outcomes."""
        counted: dict[str, float] = {}

        def done() -> bool:
            for name, value in self.report.take().items():
                counted[name] = counted.get(name, 0) + value
            return sum(counted.get(f"actions_{name}", 0) for name in names) >= count

        eventually(done)
        return counted

    def until_stored(self, cache: str, prompts: int = 1) -> None:
        """Waits for the saves, which run in the background, and for the end of their leases."""

        def evictable() -> int:
            counts = self.client.cache_info(cache).tiers["pinned"].blocks
            assert counts is not None
            return counts.evictable

        eventually(lambda: evictable() == prompts * BLOCKS)

    def begun(self, **more: Any) -> tuple[FakeEngine, str]:
        setup = self.setup_of(pinned=more.pop("pinned", 512), **more)
        return self.engine(setup), setup.cache_name(setup.ranks[0])

    def test_a_pin_without_a_target_keeps_the_blocks_of_the_request(self) -> None:
        engine, cache = self.begun()
        self.ask(engine, PIN)
        self.one_pin(cache, BLOCKS)
        self.has_ended("accepted")
        self.until_released(cache)
        self.client.clear(cache)
        again = self.ask(engine)
        self.assertEqual(again.loaded_tokens, FOUND * BLOCK_TOKENS)

    def test_without_a_pin_the_same_blocks_go(self) -> None:
        engine, cache = self.begun()
        self.ask(engine)
        self.until_stored(cache)
        self.client.clear(cache)
        self.assertEqual(self.ask(engine).loaded_tokens, 0)

    def test_blocks_that_were_found_belong_to_it_in_the_caches_of_all_ranks(self) -> None:
        setup = self.setup_of(ranks=2, pinned=128)
        self.stored(setup)
        again = self.ask(self.engine(setup), PIN)
        self.assertEqual(again.loaded_tokens, FOUND * BLOCK_TOKENS)
        for rank in setup.ranks:
            self.one_pin(setup.cache_name(rank), BLOCKS)

    def test_a_pin_waits_for_the_saves(self) -> None:
        engine, cache = self.begun()
        with self.saves_held(engine):
            self.ask(engine, PIN)
            # Nothing of the prompt is stored.
            self.assertEqual(self.tiers(cache), {"."})
        self.one_pin(cache, BLOCKS)

    def test_what_waits_for_saves_is_sent_at_the_engines_end(self) -> None:
        engine, _ = self.begun()
        with self.saves_held(engine):
            self.ask(engine, PIN)
            engine.scheduler.close()
            self.assertEqual(self.report.take()["actions_missing"], 1)

    @contextlib.contextmanager
    def saves_held(self, engine: FakeEngine) -> Iterator[None]:
        """Blocks that the engine saves meanwhile are committed at the end of it."""
        mover = engine.workers[0]._mover
        assert mover is not None
        held: list[tuple[Any, ...]] = []
        with mock.patch.object(mover, "_commit", lambda *args: held.append(args)):
            yield
            # The last ones may not have come yet.
            eventually(lambda: sum(len(args[0].keys) for args in held) == BLOCKS)
        for args in held:
            mover._commit(*args)

    def test_cache_control_is_a_pin_that_each_hit_restarts(self) -> None:
        engine, cache = self.begun()
        for ttl, least_ms, most_ms in ((None, 0, 300_000), ("1h", 300_001, 3_600_000)):
            control = {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}
            prompt = [ttl == "1h", *PROMPT]
            self.ask(engine, prompt=prompt, params={"cache_control": control})
            eventually(lambda: len(self.pins(cache)) == 1)
            (pin,) = self.pins(cache)
            left_ms = pin.expires_at_ms - time.time() * 1000
            self.assertTrue(least_ms < left_ms <= most_ms, left_ms)
            eventually(functools.partial(self.is_restarted, engine, prompt, cache, pin))
            self.client.unpin(pin.pin)

    def is_restarted(self, engine: FakeEngine, prompt: Sequence[int], cache: str, pin: PinInfo) -> bool:
        self.assertEqual(self.ask(engine, prompt=prompt).computed_here, len(prompt) + 4 - FOUND * BLOCK_TOKENS)
        # The server rounds the time.
        return self.pins(cache)[0].expires_at_ms > pin.expires_at_ms + 50

    def test_an_envelope_is_read_wherever_it_comes(self) -> None:
        engine, cache = self.begun()
        envelope = enveloped(PIN)
        as_object = SimpleNamespace(
            **{**envelope, "actions": [SimpleNamespace(**action) for action in envelope["actions"]]}
        )
        for given in (
            {"kv_hints": as_object},
            {"kv_hints": envelope},
            {"params": {"kv_hints": envelope}},
            {"params": {"cairn": {"kv_hints": envelope}, "do_remote_decode": False}},
            {"params": {"cairn": {"actions": [PIN]}}},
        ):
            with self.subTest(given=given):
                self.ask(engine, **given)
                self.client.unpin(self.one_pin(cache, BLOCKS).pin)

    def test_a_session_is_passed_on_when_the_request_arrives(self) -> None:
        engine, cache = self.begun()
        self.ask(engine, params={"cairn": {"session": "agent-7"}})
        engine.close()
        # A request that only waits: its actions are sent nevertheless.
        other = self.engine(self.setup_of(pinned=512))
        pin = {**PIN, "target": {"session": "agent-7"}}
        other.scheduler.arrived(Request("other", [1], kv_transfer_params={"actions": [pin]}))
        self.assertEqual(self.one_pin(cache, BLOCKS).session, "agent-7")

    def test_tokens_are_those_of_the_engine(self) -> None:
        engine, cache = self.begun()
        self.ask(engine)
        self.ask(engine, cache_salt="s")
        self.until_stored(cache, prompts=2)
        tokens: dict[str, Any] = {"tokens": PROMPT[:40]}
        cases: list[tuple[dict[str, Any], str | None, bool]] = [
            (tokens, None, True),
            (tokens, "s", True),
            ({**tokens, "salt": "s"}, None, True),
            ({**tokens, "salt": "other"}, None, False),
        ]
        for number, (target, own_salt, is_there) in enumerate(cases):
            actions = {"actions": [{**PIN, "target": target}]}
            request = Request(f"pins{number}", [1], kv_transfer_params=actions, cache_salt=own_salt)
            engine.scheduler.arrived(request)
            if is_there:
                self.client.unpin(self.one_pin(cache, 10).pin)
            else:
                self.has_ended("missing")
        self.assertEqual(self.pins(cache), [])

    def test_keys_are_passed_on_as_they_are(self) -> None:
        engine, cache = self.begun()
        self.ask(engine)
        self.until_stored(cache)
        keys = [block.key.hex() for block in self.client.blocks(cache, limit=3).blocks if block.key is not None]
        self.ask(engine, {**PIN, "target": {"keys": keys}}, prompt=[1])
        self.one_pin(cache, len(keys))

    def test_actions_are_carried_out_in_their_order(self) -> None:
        engine, cache = self.begun(disk=128)
        self.ask(engine, PIN)
        self.one_pin(cache, BLOCKS)
        self.ask(engine, {"type": "unpin"}, {"type": "demote", "to": "disk", "wait_ms": 60_000})
        eventually(lambda: self.tiers(cache) == {"k"})
        self.assertEqual(self.pins(cache), [])

    def test_a_demotion_comes_after_the_release_of_what_the_request_loaded(self) -> None:
        engine, cache = self.begun(disk=128)
        self.ask(engine)
        self.until_stored(cache)
        release, may_end = Finder.release, threading.Event()

        def late(finder: Finder, found: Found) -> None:
            may_end.wait(PATIENCE_S)
            release(finder, found)

        with mock.patch.object(Finder, "release", late):
            self.ask(engine, {"type": "demote"})
            self.ask(engine, {"type": "unpin", "target": {"session": "s"}}, prompt=[1])
            self.has_ended("missing")
            may_end.set()
            eventually(lambda: self.tiers(cache) == {"k"})

    def test_a_prefetch_of_the_prompt_begins_before_the_look_up(self) -> None:
        engine, cache = self.begun(disk=128)
        self.ask(engine, {"type": "demote"})
        eventually(lambda: self.tiers(cache) == {"k"})
        waiting = Request("waits", list(PROMPT), kv_transfer_params={"actions": [{"type": "prefetch"}]})
        engine.scheduler.arrived(waiting)
        self.has_ended("accepted", count=2)
        eventually(lambda: self.tiers(cache) == {"p"})

    def tiers(self, cache: str) -> set[str]:
        """Where the blocks of the prompt are."""
        keys = KeyChain(self.setup_of().identity.root, BLOCK_TOKENS).extend(PROMPT)
        return set(self.client.contains(cache, keys))

    def test_wrong_actions_are_counted_and_the_request_is_served(self) -> None:
        engine, cache = self.begun()
        cases: list[tuple[Any, str]] = [
            ({"actions": [PIN] * (MAX_ACTIONS + 1)}, "failed"),
            ({"actions": {"type": "pin"}}, "failed"),
            ({"actions": [{"ttl_ms": 5}]}, "failed"),
            ({"actions": [{**PIN, "id": 5}]}, "failed"),
            ({"actions": [{**PIN, "colour": "red"}]}, "failed"),  # the server refuses it
            ({"actions": [{"type": "paint"}]}, "rejected"),
            ({"actions": [{**PIN, "target": {"tokens": ["a"] * 4}}]}, "failed"),
            ({"actions": [{**PIN, "target": {"session": "nobody"}}]}, "missing"),
            ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "failed"),
            ({"cache_control": {"type": "ephemeral", "ttl": ["5m"]}}, "failed"),
            ({"cache_control": "ephemeral"}, "failed"),
            ({"kv_hints": {"actions": []}}, "failed"),
            ({"kv_hints": {**enveloped(PIN), "protocol_version": "7"}}, "rejected"),
            ({"kv_hints": {**enveloped(PIN), "actions": [{"action_id": "a"}]}}, "failed"),
        ]
        for number, (params, outcome) in enumerate(cases):
            with self.subTest(params=str(params)[:80]):
                self.report = Report(self.log)
                engine.scheduler._report = engine.scheduler._actions._report = self.report
                request = self.ask(engine, prompt=[number, *PROMPT], params=params)
                self.assertEqual(request.computed_here, 95)
                counts = self.has_ended(outcome)
                own = {name: count for name, count in counts.items() if name.startswith("actions_")}
                self.assertEqual(own, {f"actions_{outcome}": 1})
        self.assertEqual(self.pins(cache), [])

    def test_a_wrong_part_leaves_the_others(self) -> None:
        engine, cache = self.begun()
        self.ask(engine, params={"actions": "pin", "cache_control": {"type": "ephemeral"}, "session": "s"})
        self.one_pin(cache, BLOCKS)
        eventually(lambda: self.client.hint(cache, "later", session="s").blocks == BLOCKS)

    def test_a_prompt_without_a_full_block_or_without_tokens_has_nothing_to_pin(self) -> None:
        engine, cache = self.begun()
        self.ask(engine, PIN, prompt=[1, 2], new_tokens=1)
        self.has_ended("missing")
        embedded = Request("embedded", [], kv_transfer_params={"actions": [PIN]})
        object.__setattr__(embedded, "prompt_embeds", object())
        engine.scheduler.arrived(embedded)
        engine.scheduler.finished(embedded)
        self.has_ended("missing")
        self.assertEqual(self.pins(cache), [])

    def test_a_server_that_is_gone_fails_no_request(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        engine = self.engine(self.setup_of(pinned=128, url=server.unix))
        server.kill()
        with self.assertLogs(self.log, "WARNING") as logs:
            for _ in range(3):
                self.assertEqual(self.ask(engine, PIN).computed_here, 94)
            self.has_ended("failed", count=3)
        self.assertEqual(sum("actions of requests" in line for line in logs.output), 1, logs.output)
        server.start()
        self.wait_for_breakers(engine)
        engine.scheduler._actions._breaker.answered()
        cache = engine.scheduler._finder._caches[0]
        self.ask(engine, PIN, prompt=[1, *PROMPT])
        client = engine.scheduler._finder._client
        eventually(lambda: [pin.blocks for pin in client.pins(cache).pins] == [95 // BLOCK_TOKENS])

    def wait_for_breakers(self, engine: FakeEngine) -> None:
        engine.scheduler._finder._breaker.answered()
        for worker in engine.workers:
            assert worker._mover is not None
            worker._mover._access._breaker.answered()


class FakeClient:
    """Records what is sent, and answers once it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.sent: list[Any] = []
        self.places: list[str] = []  # what `contains` answers

    def actions(self, cache: str, envelope: Mapping[str, Any]) -> list[ActionResult]:
        assert self.may_answer.wait(PATIENCE_S)
        self.sent.append((cache, envelope))
        return [ActionResult(action["action_id"], "accepted", 1, 0) for action in envelope["actions"]]

    def contains(self, cache: str, keys: Sequence[bytes]) -> str:
        place = self.places.pop(0)
        self.sent.append(place)
        return place


class Sending(unittest.TestCase):
    def setUp(self) -> None:
        self.client = FakeClient()
        log = logging.getLogger("cairn.test.actions")
        log.setLevel(logging.CRITICAL)
        self.report = Report(log)
        self.sender = RequestActions(self.client, ["c"], self.report)  # type: ignore[arg-type]
        self.addCleanup(self.sender.close)
        self.addCleanup(self.client.may_answer.set)

    def actions(self, *given: dict[str, Any], params: Any = None) -> list[Wish]:
        wishes = wishes_of("r", {"actions": list(given)} if params is None else params, None, self.report)
        self.assertTrue(wishes)
        return wishes

    def test_nobody_waits_for_the_server_and_what_waits_is_bounded(self) -> None:
        self.client.may_answer.clear()
        wishes = self.actions({"type": "pin", "target": {"session": "s"}})
        with mock.patch("cairn.engine.actions.MAX_WAITING", 5):
            for number in range(8):
                self.sender.arrived(f"r{number}", wishes, None)
        self.assertEqual(self.client.sent, [])
        self.assertEqual(self.report.take(), {"actions_failed": 3})
        self.client.may_answer.set()
        eventually(lambda: len(self.client.sent) == 5)
        # There is room again.
        eventually(lambda: self.sender._waiting == 0)
        self.sender.arrived("r8", wishes, None)
        eventually(lambda: len(self.client.sent) == 6)

    def test_a_pin_waits_until_the_blocks_are_stored(self) -> None:
        self.client.places = ["..", "p.", "pp"]
        self.sender.arrived("r", self.actions({"type": "pin", "ttl_ms": 5, "wait_ms": 60_000}), None)
        self.assertEqual(self.client.sent, [])
        self.sender.ended("r", [b"\xaa", b"\xbb"], [b"\xaa", b"\xbb"])
        eventually(lambda: len(self.client.sent) == 4)
        *asked, (cache, envelope) = self.client.sent
        self.assertEqual((asked, cache), (["..", "p.", "pp"], "c"))
        (action,) = envelope["actions"]
        # Nobody waits for the end of its transfer.
        self.assertEqual(action["payload"], {"ttl_ms": 5, "target": {"keys": ["aa", "bb"]}})

    def types_sent(self) -> list[str]:
        return [one[1]["actions"][0]["action_type"] for one in self.client.sent if one != "."]

    def test_others_do_not_wait_for_its_blocks(self) -> None:
        self.sender.arrived("r", self.actions({"type": "pin"}), None)
        with (
            mock.patch("cairn.engine.actions.STORED_WAIT_S", PATIENCE_S),
            mock.patch.object(self.client, "contains", lambda cache, keys: "p" if self.client.sent else "."),
        ):
            self.sender.ended("r", [b"\xaa"], [b"\xaa"])
            self.sender.arrived("s", self.actions({"type": "unpin", "target": {"session": "s"}}), None)
            eventually(lambda: len(self.types_sent()) == 2)
        self.assertEqual(self.types_sent(), ["unpin", "pin"])

    def test_it_does_not_wait_for_ever(self) -> None:
        self.client.places = ["."] * 1000
        self.sender.arrived("r", self.actions({"type": "pin"}), None)
        with mock.patch("cairn.engine.actions.STORED_WAIT_S", 0.1):
            self.sender.ended("r", [b"\xaa"], [b"\xaa"])
        eventually(lambda: self.types_sent() == ["pin"])

    def test_each_envelope_stays_one_message(self) -> None:
        session = {"target": {"session": "s"}}
        hints = {**enveloped({"type": "pin", **session}, {"type": "unpin", **session}), "message_id": "m7"}
        wishes = wishes_of("r", {"actions": [{"type": "retain", "id": "x", **session}]}, hints, self.report)
        self.sender.arrived("r", wishes, None)
        eventually(lambda: len(self.client.sent) == 2)
        (_, first), (_, second) = self.client.sent
        self.assertEqual(first, hints)
        self.assertEqual((second["message_id"], second["actions"][0]["action_id"]), ("r", "x"))

    def test_many_keys_go_in_several_messages(self) -> None:
        with mock.patch("cairn.engine.actions.MAX_KEYS", 3):
            self.sender.arrived("r", self.actions(*[{"type": "pin"}] * 3), None)
            self.sender.ended("r", [b"\xaa", b"\xbb"], ())
            eventually(lambda: len(self.client.sent) == 3)

    def test_a_prefetch_without_a_target_needs_the_keys_at_once(self) -> None:
        self.sender.arrived("r", self.actions({"type": "prefetch"}), None)
        eventually(lambda: self.report.take() == {"actions_failed": 1})
        self.assertEqual(self.client.sent, [])

    def test_what_waits_is_sent_at_the_end(self) -> None:
        self.client.places = ["."]
        self.sender.arrived("r", self.actions({"type": "pin"}), None)
        self.sender.ended("r", [b"\xaa"], [b"\xaa"])
        self.sender.close()
        self.assertEqual(len([one for one in self.client.sent if one != "."]), 1)

    def test_a_server_that_did_not_answer_is_not_asked_again_at_once(self) -> None:
        wishes = self.actions({"type": "pin", "target": {"session": "s"}})
        with (
            mock.patch.object(self.client, "actions", side_effect=NoAnswer("gone")) as sent,
            mock.patch("cairn.engine.access.FIRST_PAUSE_S", PATIENCE_S),
            mock.patch("cairn.engine.access.LONGEST_PAUSE_S", PATIENCE_S),
        ):
            for number in range(3):
                self.sender.arrived(f"r{number}", wishes, None)
            eventually(lambda: self.sender._waiting == 0)
        self.assertEqual((sent.call_count, self.report.take()), (1, {"actions_failed": 3}))

    def test_a_cache_that_is_not_there_may_be_made_by_a_save(self) -> None:
        gone = UnknownCache(404, "unknown_cache", "after the server's restart")
        with mock.patch.object(self.client, "contains", side_effect=[gone, gone, "p"]) as asked:
            self.sender.arrived("r", self.actions({"type": "pin"}), None)
            self.sender.ended("r", [b"\xaa"], [b"\xaa"])
            eventually(lambda: len(self.client.sent) == 1)
        self.assertEqual(asked.call_count, 3)

    def test_a_look_up_that_fails_does_not_hold_a_message_back(self) -> None:
        with mock.patch.object(self.client, "contains", side_effect=NoAnswer("gone")):
            self.sender.arrived("r", self.actions({"type": "pin"}), None)
            self.sender.ended("r", [b"\xaa"], [b"\xaa"])
            eventually(lambda: len(self.client.sent) == 1)


if __name__ == "__main__":
    unittest.main()
