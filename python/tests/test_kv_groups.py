"""Caches with KV groups: the requests of each call, packed answers, and both clients against a real server."""

import asyncio
import fcntl
import json
import mmap
import os
import unittest
from typing import Any

from cairn import (
    AgentMemory,
    AgentRegion,
    AsyncClient,
    CacheConfig,
    Client,
    Handle,
    KvGroup,
    NewBlock,
    Shape,
    TierConfig,
    TierView,
    packed,
)
from cairn.calls import agents, caches, keys, life, transfers
from cairn.errors import BadAnswer, CacheExists, CairnError, Malformed, Refused, UnknownKey, UnknownKvGroup
from cairn.http import Call, Request, Response, read_answer
from cairn.keys import token_keys
from cairn.model import CacheChange, CacheInfo, KvGroupUse, Match, MatchedBlock, Tier
from server import PATIENCE_S, ServerCase, key
from test_tool import run

BLOCK_TOKENS = 4
FULL = KvGroup("full", "full", Shape(3, 2, BLOCK_TOKENS, 8, 2))
# Two blocks hold the tokens of the window.
WINDOW = KvGroup("swa", "window", Shape(5, 2, BLOCK_TOKENS, 8, 2), window_tokens=2 * BLOCK_TOKENS + 1)
STATE = KvGroup("state", "state", Shape(2, 1, 1, 32, 2))
# A block holds the tokens of two keys.
PAIRS = KvGroup("pairs", "full", Shape(3, 2, 2 * BLOCK_TOKENS, 8, 2))
LAST = KvGroup("last", "window", Shape(1, 1, 2 * BLOCK_TOKENS, 8, 2), window_tokens=2)
GROUPS = [FULL, WINDOW, STATE]
SIZE_BYTES = 1 << 20


def config(*groups: KvGroup, tiers: tuple[Tier, ...] = ("pinned",)) -> CacheConfig:
    return CacheConfig(
        tiers={tier: TierConfig(size_bytes=SIZE_BYTES) for tier in tiers},
        block_tokens=BLOCK_TOKENS,
        kv_groups=groups or (FULL, WINDOW, STATE),
    )


def data(number: int, group: KvGroup) -> bytes:
    """A block's bytes. Different numbers and groups give different bytes."""
    return bytes((number * 31 + at * 7 + ord(group.name[0])) % 256 for at in range(group.layout.block_bytes))


def numbers(*blocks: MatchedBlock) -> list[tuple[str | None, int]]:
    return [(block.kv_group, int.from_bytes(block.key, "big")) for block in blocks]


def body(request: Request) -> object:
    return json.loads(b"".join(bytes(piece) for piece in request.body or ()))


class Sent(unittest.TestCase):
    """The requests, compared with the contract."""

    def test_a_cache_is_made_with_groups(self) -> None:
        request = caches.make_cache("c", config(FULL, WINDOW)).request
        full, window = (
            {"num_layers": layers, "outer_dim": 2, "page_size": 4, "inner_dim": 8, "dtype_width_bytes": 2}
            for layers in (3, 5)
        )
        self.assertEqual(
            body(request),
            {
                "block_tokens": 4,
                "kv_groups": [
                    {"name": "full", "kind": "full", "layout": full},
                    {"name": "swa", "kind": "window", "window_tokens": 9, "layout": window},
                ],
                "tiers": {"pinned": {"size_bytes": SIZE_BYTES, "layout": "fully_contiguous"}},
            },
        )

    def test_a_match_says_what_the_caller_has(self) -> None:
        self.assertEqual(life.match("c", ["aa"], have=3).request.target, "/v1/caches/c/match?key_bytes=1&have=3")
        waits = life.match("c", ["aa"], have=0, wait_ms=1).request
        self.assertEqual(body(waits), {"keys": ["aa"], "wait_ms": 1, "have": 0})
        self.assertEqual(body(life.match_tokens("c", [1], have=2).request), {"tokens": [1], "have": 2})

    def test_an_allocation_counts_blocks_by_group(self) -> None:
        request = life.allocate("c", counts={"full": 8, "state": 1}, tier="pinned").request
        self.assertEqual(body(request), {"counts": {"full": 8, "state": 1}, "tier": "pinned"})

    def test_handles_carry_their_group(self) -> None:
        handle = Handle("pinned", 7, 3, kv_group="swa")
        self.assertEqual(
            life.write_slot("c", handle, "L", b"x").request.target,
            "/v1/caches/c/slots/pinned/7/data?generation=3&lease=L&kv_group=swa",
        )
        sent = {"tier": "pinned", "slot": 7, "generation": 3, "kv_group": "swa"}
        committed = life.commit("c", "L", [NewBlock(handle, b"\xaa")]).request
        self.assertEqual(body(committed), {"lease": "L", "blocks": [sent | {"key": "aa"}]})
        self.assertEqual(body(life.release("L", [handle]).request), {"blocks": [sent]})

    def test_calls_on_one_key_have_the_group_in_the_query(self) -> None:
        path = "/v1/caches/c/keys/aa"
        for call, target in (
            (keys.put("c", "aa", b"x", kv_group="swa"), path),
            (keys.get("c", "aa", kv_group="swa"), path),
            (keys.has("c", "aa", kv_group="swa"), path),
            (keys.delete("c", "aa", kv_group="swa"), path),
            (caches.metadata("c", "aa", kv_group="swa"), f"{path}/metadata"),
            (caches.set_metadata("c", "aa", {}, kv_group="swa"), f"{path}/metadata"),
        ):
            self.assertEqual(call.request.target, f"{target}?kv_group=swa")

    def test_calls_on_many_keys_have_the_group_in_the_body(self) -> None:
        calls: list[Call[Any]] = [
            keys.read("c", ["aa"], kv_group="swa"),
            transfers.transfer("c", ["aa"], "disk", kv_group="swa"),
            caches.evict("c", ["aa"], kv_group="swa"),
            agents.load("c", ["aa"], "a", [0], kv_group="swa"),
            agents.store("c", ["aa"], "a", [0], kv_group="swa"),
        ]
        for call in calls:
            sent = body(call.request)
            assert isinstance(sent, dict)
            self.assertEqual(sent["kv_group"], "swa", call.request.target)
        head = bytes((keys.write("c", ["aa"], [b"x"], kv_group="swa").request.body or ())[0])
        self.assertEqual(json.loads(head[4:]), {"keys": ["aa"], "kv_group": "swa"})

    def test_requests_without_a_group_do_not_mention_it(self) -> None:
        handle = Handle("pinned", 7, 3)
        calls: list[Call[Any]] = [
            life.match("c", ["aa"], wait_ms=1),
            life.match("c", ["aa"]),
            life.match_tokens("c", [1]),
            life.allocate("c", 1),
            life.write_slot("c", handle, "L", b"x"),
            life.commit("c", "L", [NewBlock(handle, "aa")]),
            life.release("L", [handle]),
            keys.put("c", "aa", b"x"),
            keys.get("c", "aa"),
            keys.delete("c", "aa"),
            keys.read("c", ["aa"]),
            keys.write("c", ["aa"], [b"x"]),
            caches.metadata("c", "aa"),
            caches.evict("c", ["aa"]),
            transfers.transfer("c", ["aa"], "disk"),
            agents.load("c", ["aa"], "a", [0]),
        ]
        for call in calls:
            sent = call.request.target.encode() + b"".join(bytes(piece) for piece in call.request.body or ())
            for name in (b"kv_group", b"have", b"counts"):
                self.assertNotIn(name, sent)
        self.assertEqual(life.allocate("c", 1).request.headers[1], ("Accept", "application/octet-stream"))
        layout = {"num_layers": 1, "outer_dim": 1, "page_size": 4, "inner_dim": 8, "dtype_width_bytes": 2}
        self.assertEqual(
            body(caches.make_cache("c", CacheConfig(Shape(1, 1, 4, 8, 2), {"pinned": TierConfig(5)})).request),
            {"layout": layout, "tiers": {"pinned": {"num_blocks": 5, "layout": "fully_contiguous"}}},
        )


class Packed(unittest.TestCase):
    """Packed matches, made by hand."""

    KEYS = tuple(bytes([place]) for place in range(8))

    def answer(self, *groups: int) -> bytearray:
        records = (
            bytes([1, group, 0, 0]) + (10 + at).to_bytes(4, "little") + (3).to_bytes(8, "little")
            for at, group in enumerate(groups)
        )
        return bytearray(len(groups).to_bytes(4, "little") + bytes(28) + b"".join(records))

    def places(
        self, groups: list[KvGroup], counts: list[int], matched: int, full_matched: int
    ) -> list[tuple[str | None, int]]:
        """Which keys the blocks of an answer have, by their place."""
        cache = CacheInfo("c", {}, 1, block_tokens=BLOCK_TOKENS, kv_groups=groups)
        answer = self.answer(*(group for group, count in enumerate(counts) for _ in range(count)))
        match = packed.read_group_match(answer, self.KEYS, packed.Reach(matched, full_matched), cache)
        assert match is not None
        return [(block.kv_group, block.key[0]) for block in match.blocks]

    def test_blocks_have_the_names_and_keys_of_their_groups(self) -> None:
        self.assertEqual(
            self.places([FULL, WINDOW, STATE], [3, 2, 1], 3, 5),
            [("full", 0), ("full", 1), ("full", 2), ("swa", 1), ("swa", 2), ("state", 2)],
        )

    def test_keys_that_the_caller_has_are_not_listed(self) -> None:
        self.assertEqual(
            self.places([FULL, STATE], [1, 1], 4, 4),
            [("full", 3), ("state", 3)],
        )

    def test_a_block_of_several_keys_has_the_last_of_them(self) -> None:
        self.assertEqual(
            self.places([PAIRS, LAST], [2, 1], 4, 6),
            [("pairs", 1), ("pairs", 3), ("last", 3)],
        )

    def test_a_tail_has_the_last_matched_key(self) -> None:
        self.assertEqual(self.places([PAIRS], [2], 3, 3), [("pairs", 1), ("pairs", 2)])

    def test_a_whole_block_that_reaches_beyond_the_match_has_its_own_key(self) -> None:
        self.assertEqual(
            self.places([PAIRS, LAST], [2, 1], 3, 4),
            [("pairs", 1), ("pairs", 3), ("last", 3)],
        )

    def test_blocks_in_part_of_an_answer_keep_their_groups(self) -> None:
        cache = CacheInfo("c", {}, 1, block_tokens=BLOCK_TOKENS, kv_groups=[FULL, STATE])
        match = packed.read_group_match(self.answer(0, 0, 1), self.KEYS, packed.Reach(2, 2), cache)
        assert match is not None
        self.assertEqual(
            match.blocks[1:],
            [
                MatchedBlock("pinned", 11, 3, b"\x01", kv_group="full"),
                MatchedBlock("pinned", 12, 3, b"\x01", kv_group="state"),
            ],
        )
        self.assertEqual(packed.slots_of(match.blocks), [10, 11, 12])

    def test_an_answer_that_contradicts_itself_is_refused(self) -> None:
        cache = CacheInfo("c", {}, 1, block_tokens=BLOCK_TOKENS, kv_groups=[FULL, STATE])
        for groups, matched in (((2,), 1), ((1, 0), 1), ((0, 0), 1), ((0,), 9)):
            with self.subTest(groups=groups, matched=matched), self.assertRaises(BadAnswer):
                reach = packed.Reach(matched, matched)
                packed.read_group_match(self.answer(*groups), self.KEYS, reach, cache)

    def test_headers_without_numbers_are_refused(self) -> None:
        call = life.match("c", ["aa"])
        headers = {"content-type": "application/octet-stream", "cairn-matched": "1"}
        with self.assertRaisesRegex(BadAnswer, "cairn-full-matched"):
            read_answer(call, Response(200, headers, self.answer(0)))


class Groups(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        self.other = f"{self.name[-50:]}-other"
        self.client.make_cache(self.name, config(tiers=("pinned", "disk")))

    def store_prompt(self) -> None:
        """Stores keys 1 to 6 of the full group, and the window and the state that end at key 6."""
        for group, stored in ((FULL, range(1, 7)), (WINDOW, range(5, 7)), (STATE, range(6, 7))):
            for number in stored:
                parent = key(number - 1) if number > 1 else None
                put = self.client.put(
                    self.name, key(number), data(number, group), parent=parent, kv_group=group.name
                )
                self.assertEqual((put.status, put.kv_group), ("committed", group.name))

    def prompt(self) -> list[bytes]:
        return [key(number) for number in range(1, 9)]

    def test_a_cache_shows_its_groups(self) -> None:
        self.store_prompt()
        shown = self.client.cache_info(self.name)
        self.assertEqual((shown.layout, shown.block_tokens), (None, BLOCK_TOKENS))
        self.assertEqual(
            [(one.name, one.kind, one.window_tokens) for one in shown.kv_groups],
            [
                ("full", "full", None),
                ("swa", "window", WINDOW.window_tokens),
                ("state", "state", None),
            ],
        )
        self.assertEqual(shown.kv_groups[1].layout.num_layers, WINDOW.layout.num_layers)
        pinned = shown.tiers["pinned"]
        self.assertEqual((pinned.num_blocks, pinned.size_bytes), (None, SIZE_BYTES))
        state_bytes = STATE.layout.block_bytes
        self.assertEqual(pinned.kv_groups["state"], KvGroupUse(state_bytes, 1, state_bytes))
        self.assertEqual(pinned.kv_groups["full"].blocks, 6)

    def test_the_same_configuration_gives_the_same_cache(self) -> None:
        self.client.make_cache(self.name, config(tiers=("pinned", "disk")))
        with self.assertRaises(CacheExists):
            self.client.make_cache(self.name, config(FULL, tiers=("pinned", "disk")))

    def test_a_tier_of_one_group_can_be_sized_in_bytes(self) -> None:
        tiers = {"pinned": TierConfig(size_bytes=SIZE_BYTES)}
        made = self.client.make_cache(self.other, CacheConfig(FULL.layout, tiers))
        self.assertGreater(made.tiers["pinned"].num_blocks or 0, 0)

    def test_a_tier_changes_its_size_in_bytes(self) -> None:
        self.store_prompt()
        changed = self.client.change_cache(self.name, CacheChange(size_bytes={"pinned": SIZE_BYTES // 2}))
        self.assertEqual(changed.tiers["pinned"].size_bytes, SIZE_BYTES // 2)
        self.assertEqual(self.client.match(self.name, self.prompt(), lease_ms=0).matched, 6)

    def test_a_match_lists_the_blocks_of_each_group(self) -> None:
        self.store_prompt()
        found = self.client.match(self.name, self.prompt())
        self.assertEqual((found.matched, found.full_matched), (6, 6))
        expected = [*(("full", number) for number in range(1, 7)), ("swa", 5), ("swa", 6), ("state", 6)]
        self.assertEqual(numbers(*found.blocks), expected)
        assert found.lease is not None
        self.assertEqual(self.client.release(found.lease, [found.blocks[-1]]), 1)
        self.assertEqual(self.client.release(found.lease), 8)

    def test_packed_and_json_answers_are_the_same(self) -> None:
        self.store_prompt()
        for have in (None, 0, 2, 6, 8):
            in_json = self.client.match(self.name, self.prompt(), lease_ms=0, have=have, wait_ms=1)
            self.assertEqual(self.client.match(self.name, self.prompt(), lease_ms=0, have=have), in_json)

    def test_a_match_does_not_list_what_the_caller_has(self) -> None:
        self.store_prompt()
        self.client.evict(self.name, [key(1)], kv_group="full")
        self.assertEqual(self.client.match(self.name, self.prompt(), lease_ms=0).matched, 0)
        found = self.client.match(self.name, self.prompt(), lease_ms=0, have=4)
        self.assertEqual(found.matched, 6)
        self.assertEqual(numbers(*found.blocks), [("full", 5), ("full", 6), ("swa", 5), ("swa", 6), ("state", 6)])

    def test_the_full_groups_can_reach_further_than_all(self) -> None:
        self.store_prompt()
        found = self.client.match(self.name, self.prompt()[:5])
        self.assertEqual((found.matched, found.full_matched, list(found.blocks)), (0, 5, []))

    def test_a_match_of_tokens_counts_in_block_tokens(self) -> None:
        tokens = list(range(2 * BLOCK_TOKENS + 1))
        last = token_keys(tokens, BLOCK_TOKENS)[1]
        self.client.put(self.name, last, data(1, WINDOW), kv_group="swa")
        self.client.put(self.name, last, data(1, STATE), kv_group="state")
        self.client.put(self.name, token_keys(tokens, BLOCK_TOKENS)[0], data(1, WINDOW), kv_group="swa")
        found = self.client.match_tokens(self.name, tokens, lease_ms=0, have=2)
        self.assertEqual((found.matched, [block.kv_group for block in found.blocks]), (2, ["swa", "swa", "state"]))

    def test_a_recreated_cache_has_its_new_groups(self) -> None:
        for name in ("first", "second"):
            state = KvGroup(name, "state", STATE.layout)
            self.client.make_cache(self.other, config(state))
            self.client.put(self.other, key(1), data(1, state), kv_group=name)
            found = self.client.match(self.other, [key(1)], lease_ms=0)
            self.assertEqual(numbers(*found.blocks), [(name, 1)])
            self.client.drop_cache(self.other, force=True)

    def test_the_groups_of_a_cache_are_asked_for_once(self) -> None:
        asked: list[str] = []

        class Counting(Client):
            def _exchange(self, request: Request, deadline: float) -> Response:
                asked.append(request.method)
                return super()._exchange(request, deadline)

        self.store_prompt()
        with Counting(self.server.unix, timeout=PATIENCE_S) as client:
            for _ in range(3):
                self.assertEqual(client.match(self.name, self.prompt(), lease_ms=0).matched, 6)
        self.assertEqual(asked, ["POST", "GET", "POST", "POST"])

    def test_asyncio_matches_the_same_blocks(self) -> None:
        self.store_prompt()

        async def match() -> Match:
            async with AsyncClient(self.server.unix, timeout=PATIENCE_S) as client:
                return await client.match(self.name, self.prompt(), lease_ms=0)

        self.assertEqual(asyncio.run(match()), self.client.match(self.name, self.prompt(), lease_ms=0))

    def test_tails_and_blocks_of_several_keys_are_matched(self) -> None:
        name = self.other
        self.client.make_cache(name, config(PAIRS, STATE))
        for number in (2, 3):
            self.client.put(name, key(number), data(number, PAIRS), kv_group="pairs")
        for number in (2, 3):
            self.client.put(name, key(number), data(number, STATE), kv_group="state")
        prompt = [key(number) for number in range(1, 5)]
        tail = self.client.match(name, prompt, lease_ms=0)
        self.assertEqual((tail.matched, tail.full_matched), (3, 3))
        self.assertEqual(numbers(*tail.blocks), [("pairs", 2), ("pairs", 3), ("state", 3)])
        self.client.put(name, key(4), data(4, PAIRS), kv_group="pairs")
        whole = self.client.match(name, prompt, lease_ms=0)
        self.assertEqual((whole.matched, whole.full_matched), (3, 4))
        self.assertEqual(numbers(*whole.blocks), [("pairs", 2), ("pairs", 4), ("state", 3)])

    def test_a_match_that_packed_answers_leave_open_is_made_again(self) -> None:
        # With two full groups, a packed answer does not say whether the second pair is whole or a tail.
        self.client.make_cache(self.other, config(FULL, PAIRS, STATE))
        for group, stored in ((FULL, (1, 2, 3)), (PAIRS, (2, 4)), (STATE, (3,))):
            for number in stored:
                self.client.put(self.other, key(number), data(number, group), kv_group=group.name)
        found = self.client.match(self.other, self.prompt())
        self.assertEqual((found.matched, found.full_matched), (3, 3))
        expected = [*(("full", number) for number in (1, 2, 3)), ("pairs", 2), ("pairs", 4), ("state", 3)]
        self.assertEqual(numbers(*found.blocks), expected)
        self.assertEqual([lease.lease for lease in self.client.leases(self.other).leases], [found.lease])

    def test_blocks_of_several_groups_are_allocated_and_committed_together(self) -> None:
        slots = self.client.allocate(self.name, counts={"state": 1, "full": 2, "swa": 2}, tier="pinned")
        self.assertEqual([slot.kv_group for slot in slots.blocks], ["full", "full", "swa", "swa", "state"])
        self.assertIsNotNone(slots.memory_id)
        groups, names = [FULL, FULL, WINDOW, WINDOW, STATE], [1, 2, 1, 2, 2]
        new = []
        for slot, group, number in zip(slots.blocks, groups, names, strict=True):
            self.client.write_slot(self.name, slot, slots.lease, data(number, group))
            new.append(NewBlock(slot, key(number), parent=key(1) if number == 2 else None))
        self.client.commit(self.name, slots.lease, new, release=True)
        self.assertEqual(self.client.match(self.name, self.prompt(), lease_ms=0).matched, 2)
        for group, number in zip(groups, names, strict=True):
            self.assertEqual(self.client.get(self.name, key(number), kv_group=group.name), data(number, group))

    def test_an_allocation_takes_count_or_counts(self) -> None:
        with self.assertRaises(Malformed):
            self.client.allocate(self.name, 1, counts={"full": 1})
        with self.assertRaises(Refused):
            self.client.allocate(self.name)

    def test_one_key_has_a_block_in_each_group(self) -> None:
        self.store_prompt()
        for group in (FULL, WINDOW, STATE):
            self.assertEqual(self.client.get(self.name, key(6), kv_group=group.name), data(6, group))
        self.assertTrue(self.client.has(self.name, key(5), kv_group="full"))
        self.assertFalse(self.client.has(self.name, key(5), kv_group="state"))

    def test_a_delete_drops_one_group_or_all(self) -> None:
        self.store_prompt()
        self.client.delete(self.name, key(6), kv_group="swa")
        self.assertFalse(self.client.has(self.name, key(6), kv_group="swa"))
        self.client.delete(self.name, key(6))
        for group in ("full", "state"):
            self.assertFalse(self.client.has(self.name, key(6), kv_group=group))
        with self.assertRaises(UnknownKey):
            self.client.delete(self.name, key(6))

    def test_each_group_has_its_own_metadata(self) -> None:
        self.store_prompt()
        self.client.set_metadata(self.name, key(6), {"of": "swa"}, kv_group="swa")
        self.assertEqual(self.client.metadata(self.name, key(6), kv_group="swa"), {"of": "swa"})
        self.assertNotEqual(self.client.metadata(self.name, key(6), kv_group="full"), {"of": "swa"})

    def test_blocks_of_one_group_are_written_and_read(self) -> None:
        names, blocks = [key(1), key(2)], [data(1, WINDOW), data(2, WINDOW)]
        self.client.write(self.name, names, blocks, kv_group="swa")
        read = self.client.read(self.name, [*names, key(3)], kv_group="swa")
        self.assertEqual((read.matched, bytes(read.data)), (2, b"".join(blocks)))
        self.assertEqual(self.client.read(self.name, names, kv_group="full").matched, 0)

    def test_a_transfer_moves_one_group_or_all(self) -> None:
        self.store_prompt()
        wait_ms = PATIENCE_S * 500
        one = self.client.transfer(self.name, [key(6)], "disk", mode="move", wait_ms=wait_ms, kv_group="swa")
        self.assertEqual((one.state, one.blocks_done), ("done", 1))
        rest = self.client.transfer(self.name, [key(6)], "disk", mode="move", wait_ms=wait_ms)
        self.assertEqual((rest.state, rest.blocks_total), ("done", 3))
        found = self.client.match(self.name, self.prompt(), lease_ms=0)
        self.assertEqual([block.tier for block in found.blocks if block.key == key(6)], ["disk"] * 3)

    def test_a_match_moves_all_groups_up(self) -> None:
        self.store_prompt()
        self.client.transfer(self.name, [key(6)], "disk", mode="move", wait_ms=PATIENCE_S * 500)
        found = self.client.match(self.name, self.prompt(), onboard="pinned", wait_ms=PATIENCE_S * 500)
        self.assertEqual({block.tier for block in found.blocks}, {"pinned"})
        self.assertIsNotNone(found.transfer)

    def test_an_eviction_drops_one_group_or_all(self) -> None:
        self.store_prompt()
        self.assertEqual(self.client.evict(self.name, [key(6)], kv_group="state").evicted, 1)
        self.assertEqual(self.client.evict(self.name, [key(6)]).evicted, 2)

    def test_listings_name_the_group(self) -> None:
        self.store_prompt()
        listed = self.client.blocks(self.name, tier="pinned", state="evictable").blocks
        self.assertEqual(sorted(str(block.kv_group) for block in listed), ["full"] * 6 + ["state"] + ["swa"] * 2)

    def test_events_name_the_group(self) -> None:
        events = self.client.events(cache=self.name, after=0, silence_s=PATIENCE_S)
        next(events)  # a gap: the id is from an earlier run of the server
        self.client.put(self.name, key(1), data(1, STATE), kv_group="state")
        stored = next(event for event in events if event.kind == "stored")
        self.assertEqual((stored.data["keys"], stored.data["kv_group"]), ([key(1).hex()], "state"))
        events.close()

    def test_an_agent_stores_and_loads_one_group(self) -> None:
        shape, count = WINDOW.layout, 4
        size = shape.num_layers * count * shape.outer_dim * shape.piece_bytes
        file = os.memfd_create("engine", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, file)
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        memory = mmap.mmap(file, size)
        self.addCleanup(memory.close)
        memory[:] = bytes(at % 251 for at in range(size))
        regions = [AgentRegion("shm", 0, size, descriptor=0)]
        with AgentMemory(self.client, "groups", shape, count, regions, [file], layout="fully_contiguous"):
            stored = self.client.store(
                self.name, [key(1)], "groups", [2], wait_ms=PATIENCE_S * 500, kv_group="swa"
            )
            self.assertEqual(stored.state, "done")
            begin = 2 * shape.block_bytes
            block = memory[begin : begin + shape.block_bytes]
            self.assertEqual(self.client.get(self.name, key(1), kv_group="swa"), block)
            loaded = self.client.load(self.name, [key(1)], "groups", [0], wait_ms=PATIENCE_S * 500, kv_group="swa")
            self.assertEqual((loaded.state, memory[: shape.block_bytes]), ("done", block))

    def test_an_unknown_group_is_refused(self) -> None:
        for call in (
            lambda: self.client.get(self.name, key(1)),
            lambda: self.client.get(self.name, key(1), kv_group="other"),
            lambda: self.client.put(self.name, key(1), data(1, FULL), kv_group="other"),
            lambda: self.client.delete(self.name, key(1), kv_group="other"),
            lambda: self.client.metadata(self.name, key(1), kv_group="other"),
            lambda: self.client.allocate(self.name, 1),
            lambda: self.client.allocate(self.name, counts={"other": 1}),
            lambda: self.client.read(self.name, [key(1)]),
            lambda: self.client.evict(self.name, [key(1)], kv_group="other"),
            lambda: self.client.transfer(self.name, [key(1)], "disk", kv_group="other"),
        ):
            with self.assertRaises(UnknownKvGroup) as raised:
                call()
            self.assertEqual((raised.exception.status, raised.exception.code), (422, "unknown_kv_group"))

    def test_a_match_in_one_group_names_it(self) -> None:
        self.store_prompt()
        for wait_ms in (None, 1):  # packed and in JSON
            found = self.client.match(self.name, self.prompt(), wait_ms=wait_ms, kv_group="full")
            self.assertEqual(numbers(*found.blocks), [("full", n) for n in range(1, found.matched + 1)])
            self.assertGreater(found.matched, 0)

    def test_blocks_of_each_group_are_read_in_place(self) -> None:
        self.store_prompt()
        view = TierView(self.client, self.name)
        for group, first in ((FULL, 1), (WINDOW, 5), (STATE, 6)):
            self.assertEqual(view.shape_of(group.name).block_bytes, group.layout.block_bytes)
            with view.read([key(n) for n in range(first, 9)], kv_group=group.name) as held:
                self.assertEqual(
                    [bytes(row) for row in held.rows()], [data(n, group) for n in range(first, 7)], group.name
                )

    def test_blocks_of_each_group_are_written_in_place(self) -> None:
        view = TierView(self.client, self.name)
        for group in GROUPS:
            with view.write(2, kv_group=group.name) as slots:
                for number, slot in enumerate(slots, start=1):
                    slot.copy_from(data(number, group))
                slots.commit([key(1), key(2)])
        matched = self.client.match(self.name, [key(1), key(2)])
        self.assertEqual(matched.matched, 2)
        for group in GROUPS:
            read = self.client.read(self.name, [key(1), key(2)], kv_group=group.name)
            self.assertEqual(bytes(read.data), data(1, group) + data(2, group))

    def test_a_block_of_many_slots_is_one_array(self) -> None:
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        self.store_prompt()
        view = TierView(self.client, self.name)
        with view.read([key(6)], kv_group="state") as held:
            self.assertEqual(held[0].numpy(numpy.uint16).tobytes(), data(6, STATE))

    def test_a_tier_view_asks_for_the_group(self) -> None:
        view = TierView(self.client, self.name)
        for call in (lambda: view.read([key(1)]), lambda: view.write(1), lambda: view.shape):
            with self.assertRaisesRegex(CairnError, "full, swa, state"):
                call()

    def test_the_tool_shows_groups(self) -> None:
        self.store_prompt()
        server = ("--server", self.server.unix)
        status = run(*server, "status").stdout.decode()
        self.assertIn(f"{self.name}: KV groups full (full), swa (window), state (state)\n", status)
        self.assertIn(f"  pinned: {SIZE_BYTES} bytes, 6 of full, 2 of swa, 1 of state\n", status)
        matched = run(*server, "match", self.name, *(one.hex() for one in self.prompt())).stdout.decode()
        self.assertTrue(matched.startswith("6 of 8\n"), matched)
        self.assertRegex(matched, rf"{key(6).hex()} pinned \d+ state\n")
        got = run(*server, "get", self.name, key(6).hex(), "--kv-group", "state")
        self.assertEqual(got.stdout, data(6, STATE))


class OneGroup(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        self.make()
        self.block = bytes(256)

    def test_handles_have_no_group(self) -> None:
        self.client.put(self.name, key(1), self.block)
        found = self.client.match(self.name, [key(1)], lease_ms=0)
        self.assertEqual((found.full_matched, found.blocks[0].kv_group), (None, None))
        self.assertIsNone(self.client.allocate(self.name, 1).blocks[0].kv_group)
        self.assertIsNone(self.client.blocks(self.name).blocks[0].kv_group)

    def test_its_only_group_is_named_default(self) -> None:
        self.client.put(self.name, key(1), self.block, kv_group="default")
        self.assertEqual(self.client.get(self.name, key(1), kv_group="default"), self.block)
        self.assertEqual(len(self.client.allocate(self.name, counts={"default": 2}).blocks), 2)
        with self.assertRaises(UnknownKvGroup):
            self.client.get(self.name, key(1), kv_group="full")

    def test_a_match_with_have_lists_the_rest(self) -> None:
        for number in (3, 4):
            self.client.put(self.name, key(number), self.block)
        prompt = [key(number) for number in range(1, 6)]
        for wait_ms in (None, 1):  # packed, and in JSON
            found = self.client.match(self.name, prompt, lease_ms=0, have=2, wait_ms=wait_ms)
            self.assertEqual((found.matched, found.full_matched), (4, 4))
            self.assertEqual(numbers(*found.blocks), [(None, 3), (None, 4)])


if __name__ == "__main__":
    unittest.main()
