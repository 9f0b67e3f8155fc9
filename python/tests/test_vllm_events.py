"""vLLM's KV events for blocks in Cairn, with stand-ins for vLLM's functions, whose parameters were recorded."""

from __future__ import annotations

import dataclasses
import time
import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cairn.engine.keys import Rank
from cairn.engine.places import block_name
from cairn.vllm.setup import LayerGroup, Setup
from fake_engine import BLOCK_TOKENS, FakeEngine, Request
from server import PATIENCE_S, ServerCase
from stand_ins import RECORDED, stand_in
from test_vllm import PROMPT, EngineCase, feature
from test_vllm_groups import FULL, STATE, WINDOW, HybridCase, HybridEngine, request


def recorded(name: str, does: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in that accepts the parameters of vLLM's function or class of this name."""
    parameters = RECORDED["vllm.called"]["methods"][name]["parameters"]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [*parameters[: len(args)], *kwargs]
        assert len(args) <= len(parameters) and set(given) <= set(parameters), (name, given)
        return does(*args, **kwargs)

    return call


def extra_keys(request: Any, begin: int, end: int, feature_index: int) -> tuple[Any, int]:
    salt = [("cache_salt", request.cache_salt)] if begin == 0 and request.cache_salt else []
    images = [("mm", one.identifier, one.mm_position.offset - begin) for one in request.mm_features]
    return (*salt, *(images if begin == 0 else [])) or None, feature_index


class Hashed(Request):
    """A request with vLLM's own hashes of its full blocks."""

    @property
    def block_hashes(self) -> list[bytes]:
        return [b"hash %d" % self.all_token_ids[end - 1] for end in self.ends]

    @property
    def ends(self) -> list[int]:
        return list(range(BLOCK_TOKENS, len(self.all_token_ids) + 1, BLOCK_TOKENS))


class WithVllmsEvents(ServerCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        functions: dict[str, Callable[..., Any]] = {
            "BlockStored": SimpleNamespace,
            "BlockRemoved": SimpleNamespace,
            "generate_block_hash_extra_keys": extra_keys,
            "maybe_convert_block_hash": lambda hash_bytes: ["external", hash_bytes],
            "to_event_extra_keys": lambda keys: [("event", one) for one in keys],
        }
        members = {name: recorded(name, function) for name, function in functions.items()}
        modules: dict[str, Any] = {
            "vllm.distributed.kv_events": {"MEDIUM_CPU": "CPU", "MEDIUM_STORAGE": "STORAGE", **members},
            "vllm.v1.core.kv_cache_utils": members,
        }
        stand_in(cls, modules, "cairn.vllm.events")


class Events(WithVllmsEvents, EngineCase):
    def events_of(self, setup: Setup, request: Hashed, blocks: int) -> tuple[FakeEngine, list[Any]]:
        """Returns an engine that has run the request, and its first events, which report `blocks` blocks."""
        engine = self.engine(setup)
        self.until_followed(engine, setup)
        engine.run(request)
        return engine, self.until(engine, lambda events: len(events) >= blocks)

    def until_followed(self, engine: FakeEngine, setup: Setup) -> None:
        """Waits for a first event: events arrive only once the follower has reached the server."""
        places = engine.scheduler._events._places  # type: ignore[union-attr]
        places.track([b"mine"], lambda at: None)  # type: ignore[arg-type,return-value]
        caches = [setup.cache_name(rank) for rank in setup.ranks]
        deadline = time.monotonic() + PATIENCE_S
        while not places.take().stored:
            for cache in caches:
                self.client.evict(cache, [b"mine"])
                self.client.put(cache, b"mine", bytes(192))
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for cache in caches:
            self.client.evict(cache, [b"mine"])
        places.lost()
        places.take()

    def until(self, engine: FakeEngine, enough: Callable[[list[Any]], bool]) -> list[Any]:
        events: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while not enough(events):
            events += engine.scheduler.take_events()
            assert time.monotonic() < deadline, events
            time.sleep(0.01)
        return events

    def test_stored_and_removed_blocks_are_published(self) -> None:
        setup = self.setup_of(publishes_events=True)
        request = Hashed("first", list(PROMPT))
        engine, events = self.events_of(setup, request, 23)
        hashes = [["external", one] for one in request.block_hashes]
        self.assertEqual(len(events), 23)
        # Two threads commit saved blocks, so a block may be stored and reported before its parent.
        stored = {event.block_hashes[0][1]: event for event in events}
        for at, block_hash in enumerate(request.block_hashes):
            event = stored[block_hash]
            self.assertEqual(event.block_hashes, [hashes[at]])
            self.assertEqual(event.parent_block_hash, hashes[at - 1] if at else None)
            tokens = request.all_token_ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS]
            self.assertEqual((event.token_ids, event.block_size), (tokens, BLOCK_TOKENS))
            self.assertEqual((event.medium, event.locality, event.group_idx), ("CPU", "LOCAL", 0))
            self.assertEqual(event.kv_cache_spec_kind, "full_attention")
            self.assertFalse(hasattr(event, "ownership"))
            self.assertEqual((event.lora_id, event.lora_name), (None, None))
        self.until_released(setup.cache_name(setup.ranks[0]))
        self.client.clear(setup.cache_name(setup.ranks[0]))
        gone = self.until(engine, lambda events: sum(len(one.block_hashes) for one in events) >= 23)
        self.assertCountEqual([one for event in gone for one in event.block_hashes], hashes)
        self.assertEqual({(event.medium, event.locality) for event in gone}, {("CPU", "LOCAL")})
        self.assertFalse(any(hasattr(event, "token_ids") for event in gone))

    def test_blocks_that_a_look_up_finds_are_published(self) -> None:
        self.stored(self.setup_of())
        # The last block has generated tokens, which were not looked up.
        _, events = self.events_of(
            self.setup_of(publishes_events=True, saves=False), Hashed("again", list(PROMPT)), 22
        )
        self.assertEqual(len(events), 22)

    def test_each_tier_is_a_medium(self) -> None:
        _, events = self.events_of(
            self.setup_of(disk=64, publishes_events=True), Hashed("first", list(PROMPT)), 46
        )
        media = [event.medium for event in events]
        self.assertEqual((media.count("CPU"), media.count("STORAGE")), (23, 23))

    def test_a_block_is_published_once_all_ranks_have_it(self) -> None:
        setup = self.setup_of(ranks=2, publishes_events=True)
        engine, events = self.events_of(setup, Hashed("first", list(PROMPT)), 23)
        self.assertEqual(len(events), 23)
        self.until_released(setup.cache_name(setup.ranks[1]))
        self.client.clear(setup.cache_name(setup.ranks[1]))
        gone = self.until(engine, lambda events: sum(len(one.block_hashes) for one in events) >= 23)
        self.assertEqual(sum(len(one.block_hashes) for one in gone), 23)

    def test_events_name_loras_salts_and_images(self) -> None:
        lora = SimpleNamespace(lora_name="l", lora_path="/l", name="l", adapter_id=7)
        request = Hashed("a", list(PROMPT), lora_request=lora, cache_salt="s", mm_features=[feature(2, 1, "i")])
        _, events = self.events_of(self.setup_of(publishes_events=True), request, 23)
        (first,) = [event for event in events if event.parent_block_hash is None]
        self.assertEqual((first.lora_id, first.lora_name), (7, "l"))
        self.assertEqual(first.extra_keys, [("event", (("cache_salt", "s"), ("mm", "i", 2)))])
        others = [event.extra_keys for event in events if event is not first]
        self.assertEqual(others, [[("event", None)]] * 22)

    def test_without_events_the_server_is_not_followed(self) -> None:
        engine = self.engine(self.setup_of())
        engine.run(Hashed("first", list(PROMPT)))
        self.assertEqual(engine.scheduler.take_events(), [])


class GroupEvents(WithVllmsEvents, HybridCase):
    """Of a model with several groups, whose numbers in vLLM are 3, 4 and 5."""

    def setUp(self) -> None:
        super().setUp()
        groups = [
            LayerGroup(3 + place, group, f"kind of {group.name}", [])
            for place, group in enumerate((FULL, WINDOW, STATE))
        ]
        self.setup_ = dataclasses.replace(
            self.setup_of(FULL, WINDOW, STATE), layer_groups=groups, publishes_events=True
        )

    def run_again(self) -> tuple[HybridEngine, Hashed]:
        """An engine that follows the server and has found what another stored."""
        self.run_in_new_engine(dataclasses.replace(self.setup_, publishes_events=False), request("first"))
        engine, again = self.engine(self.setup_), Hashed("again", list(PROMPT))
        places, cache = engine.scheduler._events._places, self.setup_.cache_name(Rank())  # type: ignore[union-attr]
        places.track([block_name(b"mine", "state2")], lambda at: None)  # type: ignore[arg-type,return-value]
        deadline = time.monotonic() + PATIENCE_S
        while not places.take().stored:
            self.client.evict(cache, [b"mine"], kv_group="state2")
            self.client.put(cache, b"mine", bytes(128), kv_group="state2")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.client.evict(cache, [b"mine"], kv_group="state2")
        places.lost()
        places.take()
        engine.run(again)
        return engine, again

    def until(self, engine: HybridEngine, counts: dict[int, int]) -> list[Any]:
        """Waits until so many blocks of each group are reported."""
        events: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while {number: len(self.of(events, number)) for number in counts} != counts:
            events += engine.scheduler.take_events()
            assert time.monotonic() < deadline, events
            time.sleep(0.01)
        return events

    def of(self, events: list[Any], number: int) -> list[Any]:
        return [one for event in events if event.group_idx == number for one in event.block_hashes]

    def test_each_groups_blocks_are_published_with_its_number(self) -> None:
        engine, again = self.run_again()
        events = self.until(engine, {3: 22, 4: 3, 5: 1})
        hashes = [["external", one] for one in again.block_hashes]
        self.assertCountEqual(self.of(events, 3), hashes[:22])
        self.assertCountEqual(self.of(events, 4), hashes[19:22])
        self.assertEqual(self.of(events, 5), [hashes[21]])
        for event in events:
            at = hashes.index(event.block_hashes[0])
            self.assertEqual(event.parent_block_hash, hashes[at - 1] if at else None)
            self.assertEqual(event.token_ids, again.all_token_ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS])
            names = {3: "full0", 4: "window1", 5: "state2"}
            self.assertEqual(event.kv_cache_spec_kind, f"kind of {names[event.group_idx]}")

    def test_a_block_dropped_from_one_group_is_removed_there(self) -> None:
        engine, _ = self.run_again()
        self.until(engine, {3: 22, 4: 3, 5: 1})
        cache = self.setup_.cache_name(Rank())
        (state,) = [block for block in self.client.blocks(cache, limit=1000).blocks if block.kv_group == "state2"]
        assert state.key is not None
        self.until_released(cache)
        self.client.evict(cache, [state.key], kv_group="state2")
        (gone,) = self.until(engine, {5: 1})
        self.assertEqual((gone.group_idx, hasattr(gone, "token_ids")), (5, False))


if __name__ == "__main__":
    unittest.main()
