"""Six Redis nodes in a cluster, three of them replicas, each on its own host."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from pathlib import Path

from hosts import Host

PORT = 6379
NODES = 6
PATIENCE_S = 60
NODE_TIMEOUT_MS = 2000


class Node:
    def __init__(self, number: int, folder: Path) -> None:
        self.host = Host(f"redis{number}", 100 + number)
        self.folder = folder / self.host.name
        self.folder.mkdir()
        self.start()

    @property
    def address(self) -> str:
        return f"{self.host.address}:{PORT}"

    def start(self) -> None:
        # "ip netns exec" is replaced by the server, so its PID is the server's.
        self.child = self.host.start(
            ["redis-server", "--bind", self.host.address, "--port", str(PORT), "--protected-mode", "no"]
            + ["--dir", str(self.folder), "--save", "", "--appendonly", "no", "--maxmemory-policy", "allkeys-lru"]
            + ["--maxmemory-samples", "64"]
            + ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS)]
            + ["--cluster-require-full-coverage", "no"],
            self.folder / "log",
        )
        self.until_it_answers()

    def until_it_answers(self) -> None:
        until(lambda: self.ask("ping") == "PONG", f"{self.address} answers")

    def ask(self, *command: str) -> str:
        """Empty if there is no answer."""
        try:
            done = subprocess.run(
                ["redis-cli", "-c", "-h", self.host.address, "-p", str(PORT), *command],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout.strip()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def stop(self) -> None:
        self.child.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.child.send_signal(signal.SIGCONT)


class Store:
    def __init__(self, folder: Path) -> None:
        self.nodes = [Node(number, folder) for number in range(NODES)]
        _cluster("create", *(node.address for node in self.nodes), "--cluster-replicas", "1", "--cluster-yes")
        self.until_whole()

    @property
    def url(self) -> str:
        return "redis://" + ",".join(node.address for node in self.nodes)

    def until_whole(self) -> None:
        """Waits for replication: a replica that never had its primary's data does not replace it."""

        def is_whole(node: Node) -> bool:
            role = node.ask("info", "replication")
            return "cluster_state:ok" in node.ask("cluster", "info") and (
                "role:master" in role or "master_link_status:up" in role
            )

        until(lambda: all(map(is_whole, self.nodes)), "the cluster is whole")

    def primaries(self) -> list[Node]:
        return [node for node in self.nodes if "role:master" in node.ask("info", "replication")]

    def keep_at_most(self, memory_bytes: int, policy: str = "allkeys-lru") -> None:
        """0: no limit."""
        for node in self.nodes:
            node.ask("config", "set", "maxmemory", "0")  # otherwise a policy that evicts would do so at once
            node.ask("config", "set", "maxmemory-policy", policy)
            node.ask("config", "set", "maxmemory", str(memory_bytes // 3))

    def keep_blocks(self, count: int, value_bytes: int) -> int:
        """Limits the memory to room for this many values besides what a node needs for itself and its connections;
        beyond it nodes evict as Redis does. That need changes, so call this repeatedly. Returns how many values
        there are."""
        primaries = self.primaries()
        there = [int(node.ask("dbsize")) for node in primaries]
        for node, blocks in zip(primaries, there, strict=True):
            used_bytes = int(re.findall(r"used_memory:(\d+)", node.ask("info", "memory"))[0])
            more = count // len(primaries) - blocks
            node.ask("config", "set", "maxmemory", str(used_bytes + more * value_bytes))
        return sum(there)

    def move_slots(self, count: int) -> None:
        """Moves slots there and back again."""
        one, other = self.primaries()[:2]
        for source, target in ((one, other), (other, one)):
            _cluster(
                *("reshard", source.address, "--cluster-from", source.ask("cluster", "myid")),
                *("--cluster-to", target.ask("cluster", "myid"), "--cluster-slots", str(count), "--cluster-yes"),
            )

    def spoil(self, count: int, rng: random.Random) -> int:
        """Flips a bit in this many values. Returns how many were found."""
        spoilt = 0
        for node in self.primaries():
            names = node.ask("--scan").split()
            for name in rng.sample(names, min(count, len(names))):
                size = node.ask("strlen", name)
                if not size.isdigit() or size == "0":
                    continue  # gone, or a list of holders
                # One time in 256 the byte is a U already and does not change.
                node.ask("setrange", name, str(rng.randrange(int(size))), "U")
                spoilt += 1
        return spoilt


def until(there: object, what: str, patience_s: float = PATIENCE_S, pause_s: float = 0.1) -> None:
    assert callable(there)
    deadline = time.monotonic() + patience_s
    while not there():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience_s} s: {what}")
        time.sleep(pause_s)


def _cluster(*command: str) -> None:
    done = subprocess.run(
        ["redis-cli", "--cluster", *command], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise AssertionError(
            f"redis-cli --cluster {' '.join(command)}:\n{done.stdout[-1500:]}{done.stderr[-500:]}"
        )
