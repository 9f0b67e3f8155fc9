"""Agents with both clients, against a real server. The test plays the engine."""

import asyncio
import fcntl
import mmap
import os
import time
import unittest

from cairn import AgentMemory, AgentRegion, AsyncClient, CacheConfig, Client, TierConfig
from cairn.errors import AgentExists, Impossible, UnknownAgent
from server import PATIENCE_S, SHAPE, ServerCase, block, key

BLOCKS = 8
PIECE_BYTES = SHAPE.piece_bytes
# A region must start at a multiple of 512 bytes.
LAYER_BYTES = BLOCKS * SHAPE.outer_dim * PIECE_BYTES
REGIONS = [AgentRegion("shm", layer * LAYER_BYTES, LAYER_BYTES, descriptor=0) for layer in range(SHAPE.num_layers)]


def sealed() -> tuple[int, mmap.mmap]:
    file = os.memfd_create("engine", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, SHAPE.num_layers * LAYER_BYTES)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return file, mmap.mmap(file, SHAPE.num_layers * LAYER_BYTES)


def places(number: int) -> list[slice]:
    """Where each layer of a block is in the memory."""
    size = SHAPE.outer_dim * PIECE_BYTES
    begins = [layer * LAYER_BYTES + number * size for layer in range(SHAPE.num_layers)]
    return [slice(begin, begin + size) for begin in begins]


class Agents(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(LAYER_BYTES % 512, 0)
        self.client.make_cache(self.name, CacheConfig(SHAPE, {"pinned": TierConfig(8), "disk": TierConfig(8)}))
        self.file, self.memory = sealed()
        self.addCleanup(self.memory.close)
        self.addCleanup(os.close, self.file)

    def register(self, name: str = "engine") -> AgentMemory:
        return AgentMemory(self.client, name, SHAPE, BLOCKS, REGIONS, [self.file])

    def test_load_and_store_copy_blocks_by_index(self) -> None:
        for number in (1, 2):
            self.client.put(self.name, key(number), block(number), tier="pinned" if number == 1 else "disk")
        with self.register() as registered:
            self.assertEqual(registered.agent.ends_with, "connection")
            self.assertEqual(registered.agent.descriptors[1].offset_bytes, LAYER_BYTES)
            self.assertEqual([one.name for one in self.client.agents()], ["engine"])
            loaded = self.client.load(self.name, [key(1), key(2)], "engine", [6, 3], wait_ms=60_000)
            self.assertEqual((loaded.state, loaded.layers_done), ("done", SHAPE.num_layers))
            for number, at in ((1, 6), (2, 3)):
                self.assertEqual(b"".join(self.memory[place] for place in places(at)), block(number))
            stored = self.client.store(
                self.name, [key(7), key(8)], "engine", [6, 3], parents=[None, key(7)], wait_ms=60_000
            )
            self.assertEqual(stored.state, "done")
            self.assertEqual(self.client.get(self.name, key(8)), block(2))
            self.assertEqual(self.client.match(self.name, [key(7), key(8)], lease_ms=0).matched, 2)
        with self.assertRaises(UnknownAgent):
            self.client.agent("engine")

    def test_an_agent_ends_with_its_connection(self) -> None:
        registered = self.register()
        with self.assertRaises(AgentExists):
            self.client.put_agent("engine", SHAPE, BLOCKS - 1, REGIONS, files=[self.file])
        registered._client.close()
        deadline = time.monotonic() + PATIENCE_S
        while self.client.agents():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_wrong_arguments_are_refused_and_files_need_a_unix_socket(self) -> None:
        with self.assertRaises(Impossible):
            self.client.put_agent("engine", SHAPE, BLOCKS, REGIONS[:1], files=[self.file])
        with Client(self.server.http) as client, self.assertRaises(ValueError):
            client.put_agent("engine", SHAPE, BLOCKS, REGIONS, files=[self.file])

    def test_the_asyncio_client_has_the_same_methods(self) -> None:
        self.client.put(self.name, key(1), block(1))

        async def work() -> None:
            async with AsyncClient(self.server.unix, timeout=PATIENCE_S) as client:
                loaded = await client.load(self.name, [key(1)], "engine", [0], wait_ms=60_000)
                self.assertEqual(loaded.state, "done")
                (device,) = await client.devices()
                self.assertEqual(device.uuid, "host-0")
                self.assertEqual((await client.empty_device_cache(0)).freed_bytes, 0)
                self.assertEqual((await client.reset_device_peaks(0)).id, 0)
                with self.assertRaises(ValueError):
                    await client.put_agent("other", SHAPE, BLOCKS, REGIONS, files=[self.file])

        with self.register():
            asyncio.run(work())
        self.assertEqual(b"".join(self.memory[place] for place in places(0)), block(1))


if __name__ == "__main__":
    unittest.main()
