"""A redis-server for tests, on a free port, and blocks of which some are only there."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from pathlib import Path

from cairn import Client
from server import PATIENCE_S, Server


def scatter(server: Server, seed: int) -> dict[str, int]:
    """Leaves each block of the only cache in one of three places, at random: in memory, on disk, or only in the
    store. Returns how many there are in each."""
    choose = random.Random(seed)
    count = dict.fromkeys(("pinned", "disk", "store"), 0)
    with Client(server.unix) as client:
        (name,) = [cache.name for cache in client.caches()]
        listed = client.blocks(name, tier="pinned", limit=1000).blocks
        for block in sorted(listed, key=lambda one: (one.kv_group or "", one.key or b"")):
            place = choose.choice(list(count))
            if block.key is None:
                continue
            count[place] += 1
            for tier in ("pinned", "disk"):
                if tier != place:
                    client.evict(name, [block.key], tier=tier, kv_group=block.kv_group)
    return count


class Redis:
    def __init__(self, folder: Path) -> None:
        """Keeps nothing on disk. `folder`: its working directory."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._child = subprocess.Popen(
            [
                *("redis-server", "--port", str(self._port), "--dir", str(folder)),
                *("--save", "", "--appendonly", "no"),
            ],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE_S
        while self._ask("ping") != "PONG":
            assert self._child.poll() is None and time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    def until_it_has(self, values: int) -> None:
        """Waits until it has so many values: servers store blocks there in the background."""
        deadline = time.monotonic() + PATIENCE_S
        while (now := int(self._ask("dbsize"))) < values:
            assert time.monotonic() < deadline, f"{now} of {values} values"
            time.sleep(0.1)

    def close(self) -> None:
        self._child.terminate()
        self._child.wait(PATIENCE_S)

    def _ask(self, command: str) -> str:
        """The answer to a command without arguments; empty if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), PATIENCE_S) as made:
                made.sendall(command.encode() + b"\r\n")
                return made.recv(4096).decode().strip().lstrip("+:")
        except OSError:
            return ""
