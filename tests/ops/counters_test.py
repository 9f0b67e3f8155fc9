#!/usr/bin/env python3
"""No counter of /metrics ever falls, whatever happens to a server's caches, and a real Prometheus sees no growth
when nothing was counted. A series with a cache's name may end with the cache and starts over with another cache of
that name; no other series ends.

usage: counters_test.py CAIRN_SERVER
"""

import json
import os
import re
import shutil
import signal
import socket
import sys

from support import PATIENCE_S, Folder, Prometheus, Redis, Server, eventually, find_tool, skip
from workload import BLOCK_BYTES, SHAPE, make_cache, move, store

# A histogram's sum is a counter too.
COUNTER = re.compile(r"_(total|count|sum|bucket)$")


class Counters:
    """The counters of every scrape, each compared with the previous scrape."""

    def __init__(self, server):
        self.server = server
        self.last = {}
        self.scrapes = 0
        self.failures = []

    def scrape(self, after, gone=()):
        """`gone`: the caches dropped since the last scrape, including those made again."""
        text = self.server.call("GET", "/metrics")[1].decode()
        types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        now = {}
        for series, value in re.findall(r"^(cairn_\S.*) (\S+)$", text, re.M):
            name = series.partition("{")[0]
            family = name if name in types else COUNTER.sub("", name)
            if types[family] in ("counter", "histogram"):
                assert series not in now, f"{series} occurs twice"
                now[series] = float(value)
        for series, value in self.last.items():
            cache = re.search(r'[{,]cache="([^"]*)"', series)
            if cache and cache[1] in gone:
                continue
            if series not in now:
                self.failures.append(f"{after}: {series} has ended")
            elif now[series] < value:
                self.failures.append(f"{after}: {series} fell from {value} to {now[series]}")
        self.last = now
        self.scrapes += 1

    def value(self, series):
        return self.last[series]


def fill(server, cache, first=0, count=8):
    for key in range(first, first + count):
        assert store(server, cache, key) in (200, 201)
    keys = [f"{key:016x}" for key in range(first, first + count)]
    server.call("POST", f"/v1/caches/{cache}/match", {"keys": keys + ["ff"], "lease_ms": 20})
    server.call("POST", f"/v1/caches/{cache}/drain", {"wait_ms": 5000})
    move(server, cache, range(first, first + count), "pinned")


def rot(server, cache, count=4):
    """Flips bits in the cache's slots and reads them."""
    server.call("POST", f"/v1/caches/{cache}/drain", {"wait_ms": 5000})

    def is_on_disk_alone():
        server.call("POST", f"/v1/caches/{cache}/clear", {"tier": "pinned"})  # except leased blocks
        tier = server.call("GET", f"/v1/caches/{cache}")[1]["tiers"]["pinned"]
        return tier["blocks"]["free"] == tier["capacity_blocks"]

    eventually(is_on_disk_alone, "the end of the leases")
    with open(server.folder / "data" / "disk" / cache, "r+b") as file:
        for at in range(4096, os.fstat(file.fileno()).st_size, 512):
            file.seek(at)
            file.write(b"\xa5" * 200)
        os.fsync(file.fileno())
    for key in range(count):
        server.call("GET", f"/v1/caches/{cache}/keys/{key:016x}")


def drop(server, cache):
    status, answer = server.call("DELETE", f"/v1/caches/{cache}?force=true")
    assert status in (200, 204), answer


def listen_to_events(server):
    """Opens the event stream and closes it in the middle."""
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def use_agent(server, engines):
    """Registers an engine's memory, copies blocks into it and out of it, and ends the agent."""
    (engines / "memory").write_bytes(bytes(16 * BLOCK_BYTES))
    body = {"num_blocks": 16, "layout": "fully_contiguous", "shape": SHAPE,
            "regions": [{"kind": "shm", "path": str(engines / "memory"), "offset_bytes": 0,
                         "size_bytes": 16 * BLOCK_BYTES}]}
    status, answer = server.call("PUT", "/v1/agents/engine", body)
    assert status == 201, answer
    for verb in ("load", "store"):
        status, answer = server.call("POST", f"/v1/caches/stays/{verb}",
                                     {"keys": [f"{1:016x}"], "agent": "engine", "blocks": [3], "wait_ms": 5000})
        assert status in (200, 202), answer
    server.call("DELETE", "/v1/agents/engine")


def use_groups(server):
    """Uses and leaves one group, and lets another one fail."""
    status, answer = server.call("POST", "/v1/groups", {"name": "alone", "rank": 0, "world_size": 1})
    assert status == 201, answer
    for verb, body in {"agree": {"cache": "stays", "keys": [f"{1:016x}"]}, "all_reduce": {"values": [1], "op": "sum"},
                       "broadcast": {"cache": "stays", "keys": [f"{1:016x}"], "root": 0}}.items():
        server.call("POST", f"/v1/groups/alone/{verb}", {**body, "wait_ms": 5000})
    server.call("POST", "/v1/groups", {"name": "lonely", "rank": 0, "world_size": 2})
    eventually(lambda: server.call("GET", "/v1/groups/lonely")[1]["state"] == "failed", "the group's end")
    for name in ("alone", "lonely"):
        server.call("DELETE", f"/v1/groups/{name}")


def use_snapshots(server):
    server.call("POST", "/v1/caches/stays/snapshots", {"name": "s", "wait_ms": 5000})
    server.call("POST", "/v1/caches/stays/clear", {})
    server.call("POST", "/v1/caches/stays/snapshots/s/restore", {"wait_ms": 5000})
    server.call("DELETE", "/v1/caches/stays/snapshots/s")


def change(server):
    for body in ({"tiers": {"pinned": {"num_blocks": 4}}}, {"tiers": {"pinned": {"num_blocks": 32}}},
                 {"eviction": "lru"}, {"eviction": "class_hazard"}, {"offload": "on_commit"},
                 {"tiers": {"disk": {"num_blocks": 16}}}):
        status, answer = server.call("PATCH", "/v1/caches/stays", body)
        assert status == 200, answer


def life(server, counters, engines, has_store):
    """Runs each part of a server's life and scrapes after each."""
    counters.scrape("the start")
    for cache in ("stays", "goes", "comes-back"):
        make_cache(server, cache, pinned=8, disk=32)
        fill(server, cache)
        counters.scrape(f"{cache} is filled")
    rot(server, "goes")
    counters.scrape("bits have turned")
    wrong = counters.value('cairn_checksum_failures_total{tier="disk"}')
    assert wrong > 0, "no checksum was wrong"
    drop(server, "goes")
    counters.scrape("a cache was dropped", gone=["goes"])
    assert counters.value('cairn_checksum_failures_total{tier="disk"}') == wrong
    drop(server, "comes-back")
    make_cache(server, "comes-back", pinned=8, disk=32)
    counters.scrape("a cache was made again", gone=["comes-back"])
    fill(server, "comes-back")
    counters.scrape("and filled")
    for name, part in (("agents", lambda: use_agent(server, engines)), ("groups", lambda: use_groups(server)),
                       ("events", lambda: listen_to_events(server)), ("snapshots", lambda: use_snapshots(server)),
                       ("changes of a cache", lambda: change(server)),
                       ("a reload", lambda: server.child.send_signal(signal.SIGHUP))):
        part()
        counters.scrape(name)
    if has_store:
        make_cache(server, "beyond", shared={}, pinned=8, disk=32)
        fill(server, "beyond")
        counters.scrape("a shared tier was used")
        drop(server, "beyond")
        counters.scrape("it was dropped", gone=["beyond"])
    for cache in ("stays", "comes-back"):
        drop(server, cache)
    counters.scrape("no cache is left", gone=["stays", "comes-back"])


def check_prometheus(prometheus, server, counters):
    """Prometheus's increase() of failure counters ends with the failures, also when caches are dropped."""
    make_cache(server, "rots", pinned=8, disk=32)
    fill(server, "rots")

    wrong = 'cairn_checksum_failures_total{tier="disk"}'

    def prometheus_sees():
        return prometheus.query(f"increase({wrong}[10s]) > 0")

    rot(server, "rots")
    counters.scrape("bits have turned again")
    eventually(prometheus_sees, "the failures")
    # Wait for all of it: the drop does not cause what a later scrape brings.
    eventually(lambda: prometheus.query(f"{wrong} == {counters.value(wrong)}"), "the last failures")
    eventually(lambda: not prometheus_sees(), "the end of the failures")
    drop(server, "rots")
    scrapes = "count_over_time(cairn_ready[1h])"
    before = float(prometheus.query(scrapes)[0]["value"][1])
    eventually(lambda: float(prometheus.query(scrapes)[0]["value"][1]) >= before + 4, "scrapes after the drop")
    counters.scrape("the last drop", gone=["rots"])
    assert not prometheus_sees(), "a dropped cache looks like wrong checksums"
    for name in sorted({series.partition("{")[0] for series in counters.last}):
        fell = prometheus.query(f'resets({name}{{cache=""}}[1h]) > 0')
        assert not fell, f"{name} fell: {[each['metric'] for each in fell]}"


def main():
    with Folder() as folder:
        engines = folder / "engines"
        engines.mkdir()
        config = {"caches": [], "groups": {"join_timeout_ms": 200}}
        redis = Redis(folder) if shutil.which("redis-server") else None
        if redis:
            config["shared"] = {"url": f"redis://{redis.address}"}
        (folder / "config.json").write_text(json.dumps(config))
        server = Server(sys.argv[1], folder, "--config", folder / "config.json", "--runtime", "host",
                        "--import-folders", engines, "--log-level", "error")
        prometheus_program = find_tool("prometheus")
        prometheus = Prometheus(prometheus_program, folder, server.address) if prometheus_program else None
        if prometheus:
            eventually(lambda: prometheus.query("cairn_ready"), "the first scrape")
        counters = Counters(server)
        life(server, counters, engines, redis is not None)
        if prometheus:
            check_prometheus(prometheus, server, counters)
            prometheus.stop()
        server.stop()
        if redis:
            redis.stop()
    print(*counters.failures, sep="\n")
    print(f"{counters.scrapes} scrapes of {len(counters.last)} counters, {len(counters.failures)} fell or ended")
    if counters.failures:
        sys.exit(1)
    if not prometheus:
        skip("no prometheus here, so no increase(); ./run test downloads it if possible")


if __name__ == "__main__":
    main()
