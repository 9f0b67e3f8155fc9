#!/usr/bin/env python3
"""Several servers that share a tier, each on its own host (a network namespace), with a Redis cluster of six
nodes. Requests go to random hosts, every byte read is compared, and the fleet's hits are compared with those of
one server of the pooled capacity. --faults also disturbs the cluster and the hosts.

Exit code 77: not root, or Redis is missing. 1: a wrong byte, or a broken promise.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import random
import re
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hosts import Host, enter
from store import Node, Store, until

CACHE = "/v1/caches/fleet"
LAYOUT = {"num_layers": 2, "outer_dim": 2, "page_size": 16, "inner_dim": 16, "dtype_width_bytes": 2}
BLOCK_BYTES = 2 * 2 * 16 * 16 * 2
VALUE_BYTES = 2720  # a block in a node's memory: with its header, rounded up, and its name
WAIT_MS = 3000
TOUCH_INTERVAL_MS = 1000
# How far the fleet's hit rate may be below that of one server of the pooled capacity.
HIT_RATE_SLACK = 0.01
# How long one match may wait for the store (shared.match_deadline_us), and what else it may cost: ten programs may
# share two cores.
DEADLINE_MS = 2.0
SCHEDULING_MS = 6.0
FAULT_METRICS = re.compile("failed|refused|dropped|wrong|late")


def key_of(block: int) -> str:
    return hashlib.sha256(str(block).encode()).hexdigest()[:32]


def bytes_of(key: str) -> bytes:
    return hashlib.shake_128(key.encode()).digest(BLOCK_BYTES)


class Cairn:
    def __init__(self, name: str, number: int, arguments: argparse.Namespace, folder: Path, blocks: int) -> None:
        self.host = Host(name, number)
        self.folder = folder / name
        self.folder.mkdir()
        self.blocks = blocks
        self._binary = arguments.server
        self._starts = 0

    def start(self, url: str | None, body: dict[str, Any], settings: dict[str, Any]) -> None:
        self._starts += 1
        log = self.folder / f"log{self._starts}"
        config = self.folder / "config.json"
        config.write_text(json.dumps({"caches": [], **settings}))
        self.child = self.host.start(
            [self._binary, "--listen", f"{self.host.address}:7070", "--allow-anonymous", "--data-dir"]
            + [str(self.folder / f"data{self._starts}"), "--config", str(config)]
            + (["--shared", url] if url else []),
            log,
        )
        until(
            lambda: "listening on http" in log.read_text() or self.child.poll() is not None,
            f"{self.host.name} starts",
        )
        if self.child.poll() is not None:
            raise AssertionError(f"{self.host.name} did not start:\n{log.read_text()[-2000:]}")
        self._connection = http.client.HTTPConnection(self.host.address, 7070, timeout=30)
        status, _, answer = self.ask("PUT", CACHE, {**body, "tiers": {"pinned": {"num_blocks": self.blocks}}})
        assert status in (200, 201), answer

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any, bytes]:
        is_bytes = isinstance(body, bytes)
        data = body if body is None or is_bytes else json.dumps(body).encode()
        headers = {"Content-Type": "application/octet-stream" if is_bytes else "application/json"} if data else {}
        for is_last in (False, True):
            try:
                self._connection.request(method, path, data, headers)
                answer = self._connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except (OSError, http.client.HTTPException):
                self._connection.close()  # it was idle for too long, or the server was restarted
                if is_last:
                    raise
        raise AssertionError("not reached")

    def document(self, method: str, path: str, body: Any = None) -> Any:
        status, _, answer = self.ask(method, path, body)
        assert status < 300, f"{method} {path}: {status} {answer[:300]!r}"
        return json.loads(answer)

    def match(self, keys: list[str], **fields: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        answer = self.document("POST", CACHE + "/match", {"keys": keys, **fields})
        return answer, (time.perf_counter() - began) * 1000

    def nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self.document("GET", "/v1/system")["shared"]["nodes"]
        return nodes

    def counters(self) -> dict[str, float]:
        return counters_in(self.ask("GET", "/metrics")[2])

    def get(self, path: str) -> bytes:
        """Uses its own connection, for another thread."""
        connection = http.client.HTTPConnection(self.host.address, 7070, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()


def counters_in(text: bytes) -> dict[str, float]:
    found = re.findall(r"^(cairn_(?:shared|match_blocks)\S*) ([0-9.e+]+)$", text.decode(), re.MULTILINE)
    return {name: float(value) for name, value in found if "_bucket" not in name}


def sum_of(counters: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for each in counters:
        for name, value in each.items():
            total[name] = total.get(name, 0) + value
    return total


class Figures:
    def __init__(self) -> None:
        self.asked = self.found = self.wrong = self.skipped = 0
        self.local_ms: list[float] = []
        self.shared_ms: list[float] = []
        self.times: list[float] = []  # when each of these was measured

    def between(self, began: float, ended: float) -> tuple[list[float], list[float]]:
        at = [i for i, time_s in enumerate(self.times) if began <= time_s <= ended]
        return [self.local_ms[i] for i in at], [self.shared_ms[i] for i in at]

    @property
    def hit_rate(self) -> float:
        return self.found / max(1, self.asked)


def requests_of(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """The keys of one prompt each, from a trace in Mooncake's form, or from conversations that continue."""
    if arguments.trace:
        with open(arguments.trace, encoding="utf-8") as lines:
            for _, line in zip(range(arguments.requests), lines, strict=False):
                yield [key_of(block) for block in json.loads(line)["hash_ids"]]
        return
    rng = random.Random(arguments.seed)
    talks: list[list[int]] = []
    block = 0
    for _ in range(arguments.requests):
        if not talks or rng.random() < 0.35:
            talks.append([])
        talk = rng.choice(talks[-40:])
        more = rng.randint(1, 8)
        talk.extend(range(block, block + more))
        block += more
        yield [key_of(one) for one in talk]


def serve(server: Cairn, keys: list[str], figures: Figures, timed: bool) -> None:
    """Handles a prompt like an engine: finds its prefix, reads it, stores the rest."""
    if timed:
        figures.local_ms.append(server.match(keys, lease_ms=0, shared=False)[1])
        figures.shared_ms.append(server.match(keys, lease_ms=0)[1])
        figures.times.append(time.monotonic())
    answer, _ = server.match(keys, wait_ms=WAIT_MS)
    matched = answer["matched"]
    if matched:
        _, headers, data = server.ask("POST", CACHE + "/read", {"keys": keys[:matched]})
        there = int(headers["Cairn-Matched"])
        for at, key in enumerate(keys[:there]):
            if data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] != bytes_of(key):
                figures.wrong += 1
        if there != matched:
            raise AssertionError(f"{there} of {matched} blocks under a lease were read")
    rest = keys[matched:]
    if rest:
        head: dict[str, Any] = {"keys": rest}
        head["parents"] = [keys[matched - 1] if matched else None, *rest[:-1]]
        text = json.dumps(head).encode()
        body = struct.pack("<I", len(text)) + text + b"".join(map(bytes_of, rest))
        status, _, _ = server.ask("POST", CACHE + "/write", body)
        assert status in (200, 201, 507), status
    if answer["lease"]:
        server.ask("DELETE", f"/v1/leases/{answer['lease']}")
    figures.asked += len(keys)
    figures.found += matched


class Faults:
    """One fault at a time: a cluster that lost one primary and cannot reach another has no majority, which is
    Redis's concern."""

    def __init__(self, store: Store, seed: int, servers: list[Cairn], figures: Figures) -> None:
        self._store = store
        self._servers = servers
        self._figures = figures
        self._rng = random.Random(seed)
        self._plan: list[tuple[str, Callable[[], str]]] = [
            ("a primary is killed", self._kill_primary),
            ("slots move there and back", self._move_slots),
            ("a node is stopped for 5 s", self._stop_node),
            ("a node's link is cut for 10 s", self._cut_link),
            ("a node is 50 ms away for 5 s", self._delay),
            ("the store is full and refuses for 5 s", self._fill),
            ("bits of values are flipped", self._spoil),
        ]
        self._thread = threading.Thread(target=self._run)
        self.said: list[str] = []
        self.failed: list[str] = []

    def begin(self) -> None:
        self._thread.start()

    @property
    def under_way(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        for what, act in self._plan:
            before = self._counters()
            began = time.monotonic()
            try:
                note = act()
                ended = time.monotonic()
                until(self._all_reached, "the servers reach every node again", pause_s=0.02)
            except Exception as error:  # noqa: BLE001
                self.failed.append(f"{what}: {error}")
                return
            again = time.monotonic()
            local_ms, shared_ms = self._figures.between(began, again)
            self.said.append(
                f"{what}{': ' if note else ''}{note} ({ended - began:.1f} s; every node reached {again - ended:.2f} s "
                f"later; {len(shared_ms)} matches, p99 local {p99(local_ms):.2f} ms, shared {p99(shared_ms):.2f} ms)"
            )
            self.said += self._shown(before)

    def _all_reached(self) -> bool:
        systems = [json.loads(server.get("/v1/system")) for server in self._servers]
        return all(node["state"] == "reached" for system in systems for node in system["shared"]["nodes"])

    def _counters(self) -> dict[str, float]:
        return sum_of(counters_in(server.get("/metrics")) for server in self._servers)

    def _shown(self, before: dict[str, float]) -> list[str]:
        """What the metrics show of the fault."""
        after = self._counters()
        more = {name: after[name] - before.get(name, 0) for name in sorted(after)}
        return [f"  {name} +{more[name]:.0f}" for name in more if more[name] > 0 and FAULT_METRICS.search(name)]

    def _kill_primary(self) -> str:
        node = self._rng.choice(self._store.primaries())
        node.kill()
        until(lambda: len(self._store.primaries()) == 3, "a replica takes over")
        node.start()
        self._store.until_whole()
        return ""

    def _move_slots(self) -> str:
        self._store.move_slots(300)
        return ""

    def _stop_node(self) -> str:
        node = self._rng.choice(self._store.primaries())
        node.stop()
        time.sleep(5)
        node.go_on()
        self._store.until_whole()
        return ""

    def _cut_link(self) -> str:
        return self._bent(lambda node, on: node.host.set_link(not on), 10)

    def _delay(self) -> str:
        node = self._rng.choice(self._store.primaries())
        if node.host.set_delay(50):
            time.sleep(5)
            node.host.set_delay(0)
            return ""
        ended = time.monotonic() + 5
        while time.monotonic() < ended:
            node.ask("client", "pause", "50")
            time.sleep(0.05)
        return "by pauses of the node, as this kernel has no netem"

    def _bent(self, bend: Callable[[Node, bool], None], seconds: float) -> str:
        node = self._rng.choice(self._store.primaries())
        bend(node, True)
        time.sleep(seconds)
        bend(node, False)
        self._store.until_whole()
        return ""

    def _fill(self) -> str:
        self._store.keep_at_most(3, "noeviction")
        time.sleep(5)
        self._store.keep_at_most(0)
        return ""

    def _spoil(self) -> str:
        return f"{self._store.spoil(60, self._rng)} values"


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the cairn-server to run")
    parser.add_argument("--hosts", type=int, default=3, help="servers, 2 to 4 (default 3)")
    parser.add_argument("--blocks", type=int, default=1000, help="blocks in the memory of each (default 1000)")
    parser.add_argument("--trace", help="a trace in Mooncake's form (default: conversations made up)")
    parser.add_argument("--requests", type=int, default=600, help="requests of the trace (default 600)")
    parser.add_argument("--placement", choices=("values", "holders"), default="values")
    parser.add_argument(
        "--store-blocks",
        type=int,
        help="with values: the number of blocks in the store; the fleet is compared with one server of as many "
        "(default: no limit, compared with one server of the servers' total capacity)",
    )
    parser.add_argument(
        "--match-deadline-ms",
        type=float,
        default=DEADLINE_MS,
        help="how long a match waits for the store (default 2); needs more if ten programs share few cores",
    )
    parser.add_argument("--pause-ms", type=int, default=50, help="between two requests (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="seed for hosts and faults")
    parser.add_argument("--figures", action="store_true", help="fail if the hit rate or the speed is too low")
    parser.add_argument("--faults", action="store_true", help="disturb the cluster and a server meanwhile")
    arguments = parser.parse_args()
    enter()
    with tempfile.TemporaryDirectory(prefix="cairn-fleet-") as folder:
        return replay(arguments, Path(folder))


def replay(arguments: argparse.Namespace, folder: Path) -> int:
    rng = random.Random(arguments.seed)
    prompts = list(requests_of(arguments))
    pooled_blocks = arguments.store_blocks or arguments.blocks * arguments.hosts
    one = Cairn("pooled", 50, arguments, folder, pooled_blocks)
    one.start(None, {"layout": LAYOUT}, {})
    pooled = Figures()
    for keys in prompts:
        serve(one, keys, pooled, timed=False)
    one.child.terminate()
    one.child.wait()

    store = Store(folder)
    shared = {"store": "redis", "placement": arguments.placement, "write": "on_commit", "namespace": "fleet"}
    servers = [Cairn(f"host{i}", 10 + i, arguments, folder, arguments.blocks) for i in range(arguments.hosts)]

    def start(server: Cairn) -> None:
        settings: dict[str, Any] = {"match_deadline_us": int(arguments.match_deadline_ms * 1000)}
        # Days of a store's life are compressed into minutes here.
        settings["touch_interval_ms"] = TOUCH_INTERVAL_MS
        if arguments.placement == "holders":
            settings["advertise"] = f"http://{server.host.address}:7070"
        server.start(store.url, {"layout": LAYOUT, "shared": shared}, {"shared": settings})

    for server in servers:
        start(server)
    fleet = Figures()
    faults = Faults(store, arguments.seed, servers, fleet) if arguments.faults else None
    began = time.monotonic()
    stored: list[int] = []

    def send(number: int) -> None:
        # A conversation continues seconds later, not in the moment that a block takes to reach the store.
        time.sleep(arguments.pause_ms / 1000)
        if arguments.store_blocks and number % 20 == 0:
            stored.append(store.keep_blocks(arguments.store_blocks, VALUE_BYTES))
        serve(rng.choice(servers), prompts[number % len(prompts)], fleet, timed=number % 4 == 0)

    if faults:
        faults.begin()
    for number in range(len(prompts)):
        send(number)
    while faults and faults.under_way:
        send(rng.randrange(len(prompts)))
    if faults:
        servers[-1].child.kill()
        servers[-1].child.wait()
        for number in range(20):
            serve(servers[number % (len(servers) - 1)], prompts[-number], fleet, timed=False)
        start(servers[-1])
        # Everything recovers by itself.
        for server in servers:
            try:
                until(lambda server=server: all(node["state"] == "reached" for node in server.nodes()), "")
            except AssertionError:
                faults.failed.append(f"{server.host.name} does not reach every node: {server.nodes()}")
    seconds = time.monotonic() - began
    counters = sum_of(server.counters() for server in servers)
    for server in servers:
        server.child.terminate()
    ends = [server.child.wait(30) for server in servers]
    return report(arguments, pooled, fleet, faults, counters, stored, ends, seconds)


def report(
    arguments: argparse.Namespace,
    pooled: Figures,
    fleet: Figures,
    faults: Faults | None,
    counters: dict[str, float],
    stored: list[int],
    ends: list[int],
    seconds: float,
) -> int:
    extra_ms = p99(fleet.shared_ms) - p99(fleet.local_ms)
    hosts = arguments.hosts
    print(f"{hosts} hosts, {arguments.placement}: {fleet.asked} blocks asked for in {seconds:.0f} s")
    pooled_blocks = arguments.store_blocks or hosts * arguments.blocks
    print(f"found: {fleet.hit_rate:.4f}; one server of {pooled_blocks} blocks: {pooled.hit_rate:.4f}")
    if stored:
        median = statistics.median(stored[len(stored) // 2 :])
        print(f"{hosts} x {arguments.blocks} blocks in the servers; in the store {median:.0f}, once it is full")
    print(f"match p99: local {p99(fleet.local_ms):.2f} ms, with the shared tier {p99(fleet.shared_ms):.2f} ms")
    print(f"wrong bytes: {fleet.wrong + pooled.wrong} blocks")
    for name in sorted(counters):
        if counters[name] and "seconds" not in name:
            print(f"  {name} {counters[name]:.0f}")
    for line in faults.said if faults else []:
        print(f"fault: {line}")
    failed = [f"fault: {line}" for line in (faults.failed if faults else [])]
    if fleet.wrong or pooled.wrong:
        failed.append("there were wrong bytes")
    if arguments.figures and not faults and fleet.hit_rate < pooled.hit_rate - HIT_RATE_SLACK:
        failed.append("the fleet finds less than one server of the pooled capacity")
    if arguments.figures and extra_ms > arguments.match_deadline_ms + SCHEDULING_MS:
        failed.append(f"the shared tier adds {extra_ms:.2f} ms to a match's p99")
    if any(ends):
        failed.append(f"servers ended with {ends}")
    for line in failed:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
