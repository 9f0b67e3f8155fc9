"""Head shards: parts of blocks through the client and through a worker's store."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from typing import Any

from cairn import Client
from cairn.engine.store import Part, WrongBlocks, open_store
from cairn.errors import Refused
from cairn.model import CacheConfig, KvGroup, NewBlock, Shape, TierConfig
from server import Server, ServerCase

LAYERS, HEADS, PAGE, INNER = 3, 4, 2, 5
SHAPE = Shape(LAYERS, HEADS, PAGE, INNER, 1, shards=HEADS)
HEAD_BYTES = PAGE * INNER


def whole(seed: int) -> bytes:
    return bytes((seed * 31 + at * 7) % 251 for at in range(SHAPE.block_bytes))


def part(seed: int, shard: int, shards: int) -> bytes:
    """[layer][heads of the part][page][inner]"""
    heads = HEADS // shards
    begins = (((layer * HEADS) + shard * heads) * HEAD_BYTES for layer in range(LAYERS))
    return b"".join(whole(seed)[begin : begin + heads * HEAD_BYTES] for begin in begins)


def pieces(row: memoryview, heads: int) -> Iterator[slice]:
    """A row's layers, which lie at even distances."""
    size = heads * HEAD_BYTES
    apart = (row.nbytes - size) // (LAYERS - 1)
    return (slice(layer * apart, layer * apart + size) for layer in range(LAYERS))


def fill(row: memoryview, data: bytes) -> None:
    heads = len(data) // LAYERS // HEAD_BYTES
    for layer, where in enumerate(pieces(row, heads)):
        row[where] = data[layer * heads * HEAD_BYTES : (layer + 1) * heads * HEAD_BYTES]


def taken(row: memoryview, heads: int) -> bytes:
    return b"".join(row[where] for where in pieces(row, heads))


class Shards(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        self.cache = self.name

    def make_sharded(self) -> None:
        info = self.client.make_cache(self.cache, CacheConfig(SHAPE, {"pinned": TierConfig(16)}))
        assert info.layout is not None
        self.assertEqual(info.layout.shards, HEADS)

    def test_parts_are_put_and_got(self) -> None:
        self.make_sharded()
        key = bytes([1]) * 8
        begun = self.client.put(self.cache, key, part(1, 1, 2), shard=1, shards=2)
        self.assertEqual((begun.status, begun.shards), ("pending", [2, 3]))
        self.assertEqual(self.client.match(self.cache, [key], lease_ms=0).matched, 0)
        self.assertEqual(self.client.put(self.cache, key, part(1, 0, 2), shard=0, shards=2).status, "committed")
        self.assertEqual(self.client.get(self.cache, key), whole(1))
        self.assertEqual(self.client.get(self.cache, key, shard=3, shards=4), part(1, 3, 4))
        with self.assertRaises(Refused) as refused:
            self.client.get(self.cache, key, shard=0, shards=3)
        self.assertEqual(refused.exception.status, 422)

    def test_parts_of_slots_are_committed(self) -> None:
        self.make_sharded()
        key = bytes([2]) * 8
        for shard, status in enumerate(("pending", "committed")):
            slots = self.client.allocate(self.cache, 1, tier="pinned")
            handle = slots.blocks[0]
            self.client.write_slot(self.cache, handle, slots.lease, part(2, shard, 2), shard=shard, shards=2)
            block = NewBlock(handle, key, shard=shard, shards=2)
            committed = self.client.commit(self.cache, slots.lease, [block], release=True)
            self.assertEqual(committed.blocks[0].status, status)
        self.assertEqual(self.client.get(self.cache, key), whole(2))

    def test_only_the_parts_that_a_commit_names_are_there(self) -> None:
        self.make_sharded()
        key = bytes([4]) * 8
        slots = self.client.allocate(self.cache, 1, tier="pinned")
        handle = slots.blocks[0]
        self.client.write_slot(self.cache, handle, slots.lease, whole(9))
        self.client.write_slot(self.cache, handle, slots.lease, part(4, 0, 2), shard=0, shards=2)
        block = NewBlock(handle, key, shard=0, shards=2)
        committed = self.client.commit(self.cache, slots.lease, [block], release=True).blocks[0]
        self.assertEqual((committed.status, committed.shards), ("pending", [0, 1]))
        self.assertEqual(self.client.put(self.cache, key, part(4, 1, 2), shard=1, shards=2).status, "committed")
        self.assertEqual(self.client.get(self.cache, key), whole(4))

    def test_ranks_share_a_cache_whatever_their_number(self) -> None:
        self.share(self.client)

    def test_ranks_share_a_cache_over_http(self) -> None:
        # The test's own process could map the memory: a tier that is split by layers cannot be.
        self.share(self.client, layout="layer_separate")

    def share(self, client: Client, **tier: Any) -> None:
        config = CacheConfig(SHAPE, {"pinned": TierConfig(16, **tier)})

        def store(shard: int, shards: int):  # type: ignore[no-untyped-def]
            where = Part(shard, shards) if shards > 1 else None
            return open_store(client, self.cache, config, 1000, SHAPE.block_bytes // shards, part=where)

        keys = [bytes([10 + seed]) * 8 for seed in range(3)]
        for shard in range(2):
            rank = store(shard, 2)
            write = rank.write(len(keys))
            for seed, row in enumerate(write.rows):
                fill(row, part(seed, shard, 2))
            self.assertEqual(rank.has(keys), 0)
            self.assertEqual(write.commit(keys, [None, *keys[:-1]]), len(keys))
            write.release()
        for shards in (1, 2, 4):
            for shard in range(shards):
                read = store(shard, shards).read(keys)
                for seed, row in enumerate(read.rows):
                    self.assertEqual(taken(row, HEADS // shards), part(seed, shard, shards))
                self.assertEqual(len(read.rows), len(keys))
                read.end()
        self.assertEqual(len(self.client.blocks(self.cache).blocks), len(keys))

    def test_a_restart_forgets_blocks_that_lack_parts(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        keys = [bytes([20 + seed]) * 8 for seed in range(2)]
        with Client(server.unix) as client:
            client.make_cache(self.cache, CacheConfig(SHAPE, {"disk": TierConfig(8)}))
            for shard in range(2):
                client.put(self.cache, keys[0], part(0, shard, 2), shard=shard, shards=2)
            client.put(self.cache, keys[1], part(1, 0, 2), parent=keys[0], shard=0, shards=2)
        server.kill()
        server.start()
        with Client(server.unix) as client:
            layout = client.cache_info(self.cache).layout
            assert layout is not None
            self.assertEqual(layout.shards, HEADS)
            self.assertEqual(client.match(self.cache, keys, lease_ms=0).matched, 1)
            self.assertEqual(client.get(self.cache, keys[0], shard=1, shards=4), part(0, 1, 4))
            blocks = client.cache_info(self.cache).tiers["disk"].blocks
            assert blocks is not None
            self.assertEqual((blocks.evictable, blocks.allocated), (1, 0))
            again = client.put(self.cache, keys[1], part(1, 1, 2), shard=1, shards=2)
            self.assertEqual((again.status, again.shards), ("pending", [2, 3]))

    def test_a_cache_without_shards_has_no_ranks(self) -> None:
        self.client.make_cache(self.cache, CacheConfig(Shape(1, 1, 4, 8, 1), {"pinned": TierConfig(2)}))
        with self.assertRaisesRegex(WrongBlocks, "no 2 shards"):
            open_store(self.client, self.cache, None, 1000, 16, part=Part(0, 2))

    def test_groups_have_shards_too(self) -> None:
        groups = [KvGroup("default", "full", SHAPE), KvGroup("state", "state", Shape(1, 1, 1, 8, 1))]
        tiers = {"pinned": TierConfig(size_bytes=1 << 16)}
        self.client.make_cache(self.cache, CacheConfig(tiers=tiers, block_tokens=PAGE, kv_groups=groups))
        key = bytes([3]) * 8
        for shard in (1, 0):
            answer = self.client.write(
                self.cache, [key], [part(3, shard, 2)], kv_group="default", shard=shard, shards=2
            )
        self.assertEqual(answer.blocks[0].status, "committed")
        self.assertEqual(self.client.read(self.cache, [key], shard=1, shards=4).data, part(3, 1, 4))


if __name__ == "__main__":
    unittest.main()
