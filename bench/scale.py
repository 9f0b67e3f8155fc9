"""What a fleet of many hosts demands of its shared store with `holders`: a simulation with measured parameters.

Measured on a redis-server that a real cairn-server fills: the bytes of a block, and the store's processor time to
announce, look up and withdraw a block. From these and from the fleet that the flags describe, it computes by
number of hosts: the store's memory, work and connections, and what becomes the bottleneck first. It simulates a
node's queue, and look-ups over many nodes, to find how many matches get their answer too late. Called by `./run
scale`; by hand: python3 -B bench/scale.py build/release
"""

import argparse
import collections
import json
import pathlib
import random
import shutil
import socket
import statistics
import sys
import tempfile
import time

import over_http
from shared_tier import Redis, until

MEASURED_BLOCKS = 20_000
LOOK_ROUNDS = 5  # the system counts processor time in hundredths of a second
LAYOUT = {"num_layers": 1, "outer_dim": 1, "page_size": 16, "inner_dim": 4, "dtype_width_bytes": 1, "alignment": 64}
BATCH = 512  # the most keys of a match, and of an announcement
WALKS_PER_LIFETIME = 3
DEADLINE_S = 0.002  # shared.match_deadline_us
ROUND_TRIP_S = 0.0002  # between hosts in one data centre
CONNECTIONS = 3  # shared.connections, and one for small requests
MAX_CLIENTS = 10_000  # Redis's default
# Redis reads 16 KiB from a connection before it turns to the next one: this many announcements.
READ_AT_ONCE = 30
SIMULATED_BATCHES = 200_000
SIMULATED_MATCHES = 20_000
# A node counts as full above this load, because queues grow without bound near 1.
FULL = 0.7
URL = "http://host-0001.example.internal:7070"


class Client:
    """Sends commands in one piece and counts the answers."""

    def __init__(self, redis):
        self._socket = socket.create_connection(("127.0.0.1", redis.port))
        self._in = self._socket.makefile("rb")
        self._pid = redis.child.pid

    def ask(self, commands):
        self._socket.sendall(b"".join(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
            for words in commands))
        return [self._reply() for _ in commands]

    def _reply(self):
        line = self._in.readline()
        if line[:1] == b"*":
            return [self._reply() for _ in range(int(line[1:]))]
        if line[:1] == b"$":
            return self._in.read(int(line[1:]) + 2)[:-2] if int(line[1:]) >= 0 else None
        return line[1:].strip()

    def used_memory(self):
        text = self.ask([[b"INFO", b"memory"]])[0]
        return next(int(line.split(b":")[1]) for line in text.splitlines() if line.startswith(b"used_memory:"))

    def cpu_us(self, commands):
        """The store's processor time for each command."""
        before = over_http.cpu_seconds(self._pid)
        for at in range(0, len(commands), BATCH):
            self.ask(commands[at:at + BATCH])
        return (over_http.cpu_seconds(self._pid) - before) * 1e6 / len(commands)


def measure(build):
    with tempfile.TemporaryDirectory(prefix="cairn-scale-") as name:
        folder = pathlib.Path(name)
        redis = Redis(folder)
        server = over_http.Server(build / "cairn-server", "0-1", folder, "--shared", f"redis://127.0.0.1:{redis.port}",
                                  "--advertise", URL)
        try:
            client = Client(redis)
            empty = client.used_memory()
            cpu = over_http.cpu_seconds(redis.child.pid)
            cache = f"{server.url}/v1/caches/c"
            over_http.call(cache, "PUT", {"layout": LAYOUT, "tiers": {"pinned": {"num_blocks": MEASURED_BLOCKS}},
                                          "shared": {"store": "redis", "placement": "holders"}})
            for first in range(0, MEASURED_BLOCKS, BATCH):
                keys = [f"{block:032x}" for block in range(first, min(first + BATCH, MEASURED_BLOCKS))]
                head = json.dumps({"keys": keys}).encode()
                over_http.call(f"{cache}/write", "POST", len(head).to_bytes(4, "little") + head + bytes(64 * len(keys)),
                               "application/octet-stream")
            until(lambda: redis.ask("dbsize") == f":{MEASURED_BLOCKS}")
            announce = (over_http.cpu_seconds(redis.child.pid) - cpu) * 1e6 / MEASURED_BLOCKS
            one = (client.used_memory() - empty) / MEASURED_BLOCKS
            names = client.ask([[b"KEYS", b"*"]])[0]
            member = client.ask([[b"ZRANGE", names[0], b"0", b"0"]])[0][0]
            look = client.cpu_us([[b"ZREVRANGE", name, b"0", b"7", b"WITHSCORES"] for name in names] * LOOK_ROUNDS)
            withdraw_more = [[b"ZADD", name, b"1", member[:-1] + b"x"] for name in names]
            for at in range(0, len(names), BATCH):
                client.ask(withdraw_more[at:at + BATCH])
            two = (client.used_memory() - empty) / MEASURED_BLOCKS
            withdraw = client.cpu_us([[b"ZREM", name, member] for name in names])
        finally:
            server.stop()
            redis.child.terminate()
            redis.child.wait()
    return {"block_bytes": one, "holder_bytes": two - one, "announce_us": announce, "look_us": look,
            "withdraw_us": withdraw, "member_bytes": len(member)}


def store_of(fleet, measured, hosts):
    """The store's load from a fleet of this many hosts, and how many nodes it needs."""
    blocks = hosts * fleet.blocks / fleet.holders
    memory = blocks * (measured["block_bytes"] + (fleet.holders - 1) * measured["holder_bytes"])
    renewed = hosts if fleet.alive_by_server else hosts * fleet.blocks * WALKS_PER_LIFETIME / fleet.lifetime_s
    changed = hosts * fleet.new_blocks
    looked = hosts * fleet.matches * fleet.keys
    work = {"renewals": renewed * measured["announce_us"] / 1e6,
            "changes": changed * (measured["announce_us"] + measured["withdraw_us"]) / 1e6,
            "look-ups": looked * measured["look_us"] / 1e6}
    by_memory = memory / (fleet.node_gib * 2**30)
    by_work = sum(work.values()) / FULL
    nodes = max(1, round(max(by_memory, by_work) + 0.5))
    return {"hosts": hosts, "blocks": blocks, "memory": memory, "work": work, "by_memory": by_memory, "by_work": by_work,
            "nodes": nodes, "connections": hosts * CONNECTIONS}


def waits_of_a_node(fleet, measured, store, rng):
    """How long requests wait in a node's queue, in seconds. The node serves one batch after the other."""
    nodes = store["nodes"]
    kinds = [(store["work"]["renewals"] + store["work"]["changes"], measured["announce_us"], min(BATCH, READ_AT_ONCE)),
             (store["work"]["look-ups"], measured["look_us"], fleet.keys)]
    batches = [(cores / nodes, max(1, count / nodes) * each_us / 1e6) for cores, each_us, count in kinds]
    rates = [busy / length_s for busy, length_s in batches]
    waits = []
    before = 0.0
    for _ in range(SIMULATED_BATCHES):
        before = max(0.0, before - rng.expovariate(sum(rates)))
        waits.append(before)
        before += rng.choices(batches, rates)[0][1]
    return waits


def late_matches(fleet, measured, store):
    """The share of matches that wait longer than the deadline, and the 99th percentile of the wait in ms. A
    look-up is split over the nodes that have its keys; the slowest part decides."""
    rng = random.Random(fleet.seed)
    waits = waits_of_a_node(fleet, measured, store, rng)
    nodes = store["nodes"]
    times = []
    for _ in range(SIMULATED_MATCHES):
        keys = collections.Counter(rng.randrange(nodes) for _ in range(fleet.keys))
        times.append(ROUND_TRIP_S + max(rng.choice(waits) + count * measured["look_us"] / 1e6 for count in keys.values()))
    return sum(one > DEADLINE_S for one in times) / len(times), statistics.quantiles(times, n=100)[98] * 1e3


def breaks_first(fleet, store):
    limits = {"memory of the store": store["by_memory"], "renewals": store["work"]["renewals"] / FULL,
              "changes": store["work"]["changes"] / FULL, "look-ups": store["work"]["look-ups"] / FULL}
    what = max(limits, key=limits.get)
    said = f"{what}: {limits[what]:.0f} nodes for it alone"
    if store["connections"] > MAX_CLIENTS:
        said += f"; {store['connections']} connections a node are more than maxclients ({MAX_CLIENTS})"
    return said


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path, help="where cairn-server was built")
    parser.add_argument("--hosts", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--blocks", type=int, default=10_000_000, help="in the tiers of a host (10,000,000)")
    parser.add_argument("--holders", type=float, default=1.2, help="hosts that have a block, in the mean (1.2)")
    parser.add_argument("--lifetime-s", type=float, default=600, help="ttl_ms of the caches (600)")
    parser.add_argument("--new-blocks", type=float, default=500, help="that come and go, a host and second (500)")
    parser.add_argument("--matches", type=float, default=20, help="that look beyond, a host and second (20)")
    parser.add_argument("--keys", type=int, default=64, help="that such a match looks up (64)")
    parser.add_argument("--node-gib", type=float, default=64, help="memory of a node of the store (64)")
    parser.add_argument("--alive-by-server", action="store_true",
                        help="as if a server said once a second that it lives, and nothing of each block")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(words)


def main(words):
    fleet = arguments_of(words)
    if not shutil.which("redis-server"):
        sys.exit("redis-server is not installed")
    began = time.monotonic()
    measured = measure(fleet.build)
    print(f"measured here: {measured['block_bytes']:.0f} bytes a block, {measured['holder_bytes']:.0f} for a second holder "
          f"(a member of {measured['member_bytes']} bytes); store's processor time: announce {measured['announce_us']:.1f} us, "
          f"look-up {measured['look_us']:.1f} us a key, withdrawal {measured['withdraw_us']:.1f} us")
    for hosts in fleet.hosts:
        store = store_of(fleet, measured, hosts)
        late, p99_ms = late_matches(fleet, measured, store)
        work = ", ".join(f"{what} {cores:.1f}" for what, cores in store["work"].items())
        print(f"{hosts} hosts, {store['blocks']:.1e} blocks: {store['memory'] / 2**30:,.0f} GiB; cores of the store: {work}; "
              f"{store['nodes']} nodes, {store['connections']} connections a node; a look-up's p99 {p99_ms:.2f} ms, "
              f"{late:.2%} later than {DEADLINE_S * 1e3:.0f} ms")
        print(f"  breaks first: {breaks_first(fleet, store)}")
    print(f"({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
