"""Four clients of one cache with KV groups, two of them with the mapped tier, while slabs go from group to group
and the server is killed."""

from __future__ import annotations

import hashlib
import random
import re
import threading
import unittest
from collections.abc import Sequence

from cairn import CacheConfig, Client, KvGroup, Shape, TierConfig, TierView
from cairn.errors import CairnError
from server import PATIENCE_S, Server

BLOCK_TOKENS = 4
FULL = KvGroup("full", "full", Shape(2, 2, BLOCK_TOKENS, 8, 2, alignment=64))
# Two blocks hold the tokens of the window.
WINDOW_BLOCKS = 2
WINDOW_TOKENS = WINDOW_BLOCKS * BLOCK_TOKENS + 1
WINDOW = KvGroup("swa", "window", Shape(5, 2, BLOCK_TOKENS, 8, 2, alignment=64), window_tokens=WINDOW_TOKENS)
STATE = KvGroup("state", "state", Shape(6, 1, 1, 256, 2, alignment=64))
GROUPS = (FULL, WINDOW, STATE)
# Room for some ten long prompts, so that each phase evicts the other's blocks.
PINNED_BYTES, DISK_BYTES = 96 << 10, 192 << 10
LONG_KEYS, SHORT_KEYS = 24, 3  # of a prompt
FAMILIES = 40
KILLS = 6
PROMPTS_BETWEEN_KILLS = 120
LEASE_MS = 20_000


def keys_of(family: int, length: int) -> list[bytes]:
    return [hashlib.sha256(f"{family} {at}".encode()).digest()[:16] for at in range(length)]


def data_of(key: bytes, group: KvGroup) -> bytes:
    seed = hashlib.sha256(key + group.name.encode()).digest()
    return (seed * (group.layout.block_bytes // len(seed) + 1))[: group.layout.block_bytes]


class Prompts:
    """Serves prompts as an engine does: finds, compares what it found, and stores the rest."""

    def __init__(self, server: Server, cache: str, seed: int) -> None:
        self.client = Client(server.unix, timeout=PATIENCE_S)
        self.cache = cache
        self.random = random.Random(seed)
        self.compared = 0
        self.wrong: list[str] = []

    def serve(self, length: int) -> None:
        keys = keys_of(self.random.randrange(FAMILIES), self.random.randint(max(length - 3, 1), length))
        match = self.client.match(self.cache, keys, lease_ms=LEASE_MS)
        for group in GROUPS:
            found = [block.key for block in match.blocks if block.kv_group == group.name]
            if found:
                self.read(found, group)
        if match.lease is not None:
            self.client.release(match.lease)
        matched, full = match.matched, match.full_matched or 0
        if matched < len(keys):
            self.store(keys, full, FULL)
            self.store(keys, max(len(keys) - WINDOW_BLOCKS, 0), WINDOW)
            self.store(keys, len(keys) - 1, STATE)

    def store(self, keys: Sequence[bytes], first: int, group: KvGroup) -> None:
        if first < len(keys):
            self.write(keys[first:], keys[first - 1] if first else None, group)

    def compare(self, keys: Sequence[bytes], group: KvGroup, blocks: Sequence[bytes]) -> None:
        for key, block in zip(keys, blocks, strict=False):
            self.compared += 1
            if block != data_of(key, group):
                self.wrong.append(f"{type(self).__name__} {group.name} {key.hex()}")

    def read(self, keys: Sequence[bytes], group: KvGroup) -> None:
        size = group.layout.block_bytes
        data = bytes(self.client.read(self.cache, keys, kv_group=group.name).data)
        self.compare(keys, group, [data[at : at + size] for at in range(0, len(data), size)])

    def write(self, keys: Sequence[bytes], parent: bytes | None, group: KvGroup) -> None:
        blocks = [data_of(key, group) for key in keys]
        self.client.write(
            self.cache, keys, blocks, parents=[parent, *keys[:-1]], kv_group=group.name, tier="pinned"
        )


class MappedPrompts(Prompts):
    """Reads and writes in place."""

    def __init__(self, server: Server, cache: str, seed: int) -> None:
        super().__init__(server, cache, seed)
        self.view = TierView(self.client, cache, lease_ms=LEASE_MS)

    def read(self, keys: Sequence[bytes], group: KvGroup) -> None:
        held = self.view.read(keys, kv_group=group.name, wait_ms=1000)
        blocks = [bytes(row) for row in held.rows()]
        held.end()  # raises LeaseLost if the bytes do not count
        self.compare(keys, group, blocks)

    def write(self, keys: Sequence[bytes], parent: bytes | None, group: KvGroup) -> None:
        with self.view.write(len(keys), kv_group=group.name) as slots:
            for key, slot in zip(keys, slots, strict=True):
                slot.copy_from(data_of(key, group))
            slots.commit(keys, parent=parent)


class Story(unittest.TestCase):
    def test_no_client_reads_a_wrong_byte_while_slabs_move_and_the_server_is_killed(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        with Client(server.unix, timeout=PATIENCE_S) as client:
            tiers = {"pinned": TierConfig(size_bytes=PINNED_BYTES), "disk": TierConfig(size_bytes=DISK_BYTES)}
            client.make_cache("c", CacheConfig(tiers=tiers, block_tokens=BLOCK_TOKENS, kv_groups=GROUPS))
        seed = random.randrange(1 << 30)
        kinds = (Prompts, MappedPrompts) * 2
        clients: list[Prompts] = [kind(server, "c", seed + number) for number, kind in enumerate(kinds)]
        for prompts in clients:
            self.addCleanup(prompts.client.close)
        up, stop = threading.Event(), threading.Event()
        served = threading.Semaphore(0)
        length = LONG_KEYS
        failures: list[BaseException] = []

        def run(prompts: Prompts) -> None:
            while not stop.is_set():
                up.wait(PATIENCE_S)
                try:
                    prompts.serve(length)
                except CairnError:
                    continue  # no room, or the server was killed
                except BaseException as error:
                    failures.append(error)
                    served.release(KILLS * PROMPTS_BETWEEN_KILLS)
                    raise
                served.release()

        threads = [threading.Thread(target=run, args=(prompts,)) for prompts in clients]
        up.set()
        for thread in threads:
            thread.start()
        moved = 0
        for _ in range(KILLS):
            for part in (LONG_KEYS, SHORT_KEYS):
                length = part
                for _ in range(PROMPTS_BETWEEN_KILLS):
                    self.assertTrue(served.acquire(timeout=PATIENCE_S), f"seed {seed}")
            moved += slabs_moved(server)
            up.clear()
            server.kill()
            server.start()
            up.set()
        stop.set()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [], f"seed {seed}")
        self.assertEqual([wrong for prompts in clients for wrong in prompts.wrong], [], f"seed {seed}")
        for prompts in clients:
            self.assertGreater(prompts.compared, 0, f"seed {seed}")
        self.assertGreater(moved, 0, f"seed {seed}")


def slabs_moved(server: Server) -> int:
    """Of the pinned tier, since the server's start."""
    with Client(server.unix, timeout=PATIENCE_S) as client:
        text = client.metrics()
    line = re.search(r'cairn_kv_group_slabs_moved_total\{[^}]*tier="pinned"[^}]*\} (\S+)', text)
    return 0 if line is None else int(float(line[1]))


if __name__ == "__main__":
    unittest.main()
