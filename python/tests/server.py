"""A cairn-server for tests, on a free port and its own Unix socket."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path

from cairn import CacheConfig, Client, Shape, TierConfig
from cairn.model import Tier

ROOT = Path(__file__).resolve().parents[2]
# Longer than any operation takes on a loaded machine.
PATIENCE_S = 90

SHAPE = Shape(num_layers=2, outer_dim=2, page_size=4, inner_dim=8, dtype_width_bytes=2)


def binary() -> str:
    """CAIRN_SERVER_BINARY, or else a server built in this tree."""
    named = os.environ.get("CAIRN_SERVER_BINARY")
    if named:
        return named
    for preset in ("release", "dev"):
        built = ROOT / "build" / preset / "cairn-server"
        if built.exists():
            return str(built)
    raise unittest.SkipTest("no cairn-server is built, and CAIRN_SERVER_BINARY is not set")


class Server:
    """Uses its own folder. `kill` and then `start` is a restart."""

    def __init__(self, *flags: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cairn-python-")
        self.folder = Path(self._folder.name)
        self.socket = str(self.folder / "socket")
        self._flags = flags
        self._port = 0
        self.start()

    @property
    def unix(self) -> str:
        return f"unix:{self.socket}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        config = self.folder / "config.json"
        settings: dict[str, object] = {"caches": []}
        if "--shared" in self._flags:
            # A match waits for the store as long as it takes: after 2 ms on a busy machine, blocks would be misses.
            settings["shared"] = {"match_deadline_us": 10_000_000}
        config.write_text(json.dumps(settings))
        log = self.folder / "log"
        with open(log, "wb") as out:
            self._child = subprocess.Popen(
                [
                    *(binary(), "--listen", f"127.0.0.1:{self._port}", "--unix", self.socket),
                    *("--data-dir", str(self.folder / "data"), "--config", str(config), *self._flags),
                ],
                stdout=out,
                stderr=out,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"listening on https?://127\.0\.0\.1:(\d+)", log.read_text())):
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.02)
        self._port = int(found.group(1))

    def until_stored(self, blocks: int, tier: Tier) -> None:
        """Waits until every cache has at least `blocks` blocks in the tier: connectors commit in the background,
        and the server writes committed blocks to disk a little later."""
        deadline = time.monotonic() + PATIENCE_S
        with Client(self.unix) as client:
            while True:
                counts = [cache.tiers[tier].blocks for cache in client.caches()]
                if counts and all(count is not None and count.evictable >= blocks for count in counts):
                    return
                assert time.monotonic() < deadline, counts
                time.sleep(0.1)

    def until_shared(self) -> None:
        """Waits until the server has reached the store of its shared tier: what is stored before that does not go
        there."""
        with Client(self.unix) as client:
            eventually(lambda: bool((client.system().shared or {}).get("ready")))

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        self._child.send_signal(signal.SIGTERM)
        self._child.wait(PATIENCE_S)
        self._folder.cleanup()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)


class ServerCase(unittest.TestCase):
    """One server for all tests of the class. Each test uses a cache with its own name."""

    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)

    def setUp(self) -> None:
        self.client = Client(self.server.unix, timeout=PATIENCE_S)
        self.addCleanup(self.client.close)
        self.name = re.sub(r"[^A-Za-z0-9]", "-", self.id())[-64:]

    def make(
        self, blocks: int = 16, disk: int = 0, layout: str = "fully_contiguous", shape: Shape = SHAPE
    ) -> None:
        tiers = {"pinned": TierConfig(blocks, layout)}
        if disk:
            tiers["disk"] = TierConfig(disk)
        self.client.make_cache(self.name, CacheConfig(shape, tiers))

    def until_released(self, cache: str) -> None:
        """Waits for the releases, which run in the background. Blocks with a lease are not evicted."""
        eventually(lambda: self.client.cache_info(cache).leases == 0)


def block(seed: int, shape: Shape = SHAPE) -> bytes:
    """A block's bytes, made from a number; different numbers give different bytes."""
    return b"".join((seed * 1_000_003 + at).to_bytes(8, "little") for at in range(shape.block_bytes // 8))


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")
