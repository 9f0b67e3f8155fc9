#!/usr/bin/env python3
"""Runs all routes at once for a given time, mixed with faults: wrong requests, cut connections, leases that nobody
releases, cancelled transfers, caches that are made and dropped. Afterwards nothing may be left of it: leases,
pins, slots, descriptors, threads, connections and memory are as before, and no byte was ever wrong.

usage: soak.py CAIRN_SERVER [--minutes N | --seconds N] [--clients N] [--seed N]
"""

import argparse
import collections
import hashlib
import http.client
import json
import os
import random
import socket
import struct
import sys
import threading
import time

from support import PATIENCE_S, Folder, Server, eventually

BLOCK_BYTES = 4096
SHAPE = {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 128, "dtype_width_bytes": 2}
# Small tiers, so that blocks are evicted, offloaded and brought back all the time.
CACHES = {
    "deep": {"tiers": {"device": {"num_blocks": 16, "layout": "layer_separate"}, "pinned": {"num_blocks": 32},
                       "disk": {"num_blocks": 64}}},
    "through": {"tiers": {"pinned": {"num_blocks": 24}, "disk": {"num_blocks": 48}}, "offload": "on_commit"},
    "flat": {"tiers": {"pinned": {"num_blocks": 16}}, "offload": "never"},
}
KEYS = 200
LEASE_MS = 200  # for leases that are left to expire
# Bounce buffers are pieces of shared memory that are kept, one for each part of a transfer to or from disk. After
# warm-up a pool may grow by this many; a leak in one of a hundred steps is more.
POOL_PIECES = 64
# The allocator may change the memory by this much; a leak of one block in a hundred requests is ten times as much
# within a minute.
RSS_SLACK_BYTES = 48 << 20
# glibc raises both when a large body is freed. Its arenas then keep up to 100 MiB of free memory, which looks like a
# leak. Set by hand, they stay as they are.
STEADY_MALLOC = "glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=131072"


def key_of(number):
    return hashlib.sha256(b"soak%d" % number).hexdigest()


def block_of(key):
    return hashlib.shake_128(key.encode()).digest(BLOCK_BYTES)


class Client(threading.Thread):
    """A frontend that also causes faults."""

    def __init__(self, address, seed, until, tally):
        super().__init__(daemon=True)
        self.host, port = address.split(":")
        self.port = int(port)
        self.random = random.Random(seed)
        self.until = until
        self.tally = tally
        self.failure = None
        self.connection = None
        self.open_leases = []

    def run(self):
        steps = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        try:
            while time.monotonic() < self.until:
                step = self.random.choice(steps)
                step()
                self.tally[step.__name__[3:]] += 1
        except Exception as failure:
            self.failure = f"{step.__name__}: {failure!r}"
        finally:
            if self.connection:
                self.connection.close()

    # Requests -------------------------------------------------------------------------------------------

    def call(self, method, path, body=None, kind=None):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        headers = {}
        if isinstance(body, dict):
            body, kind = json.dumps(body), "application/json"
        if kind:
            headers["Content-Type"] = kind
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.will_close:
            self.connection.close()
            self.connection = None
        assert answer.status not in (500, 502), f"{method} {path}: {answer.status} {data[:300]}"
        self.tally[f"status {answer.status}"] += 1
        if answer.getheader("Content-Type", "").startswith("application/json"):
            data = json.loads(data)
        return answer.status, data

    def path(self, rest=""):
        return f"/v1/caches/{self.random.choice(list(CACHES))}{rest}"

    def key(self):
        # Some keys are requested much more often than others.
        return key_of(int(KEYS * self.random.random() ** 2))

    def keys(self, most=6):
        first = self.random.randrange(KEYS - most)
        return [key_of(number) for number in range(first, first + self.random.randint(1, most))]

    def check(self, key, data):
        assert data == block_of(key), f"WRONG BYTES under {key}"

    # What a frontend does -------------------------------------------------------------------------------

    def do_put(self):
        key = self.key()
        self.call("PUT", self.path(f"/keys/{key}"), block_of(key), "application/octet-stream")

    def do_put_with_ttl(self):
        key = self.key()
        self.call("PUT", self.path(f"/keys/{key}?ttl_ms=50"), block_of(key), "application/octet-stream")

    def do_get(self):
        key = self.key()
        status, data = self.call("GET", self.path(f"/keys/{key}"))
        if status == 200:
            self.check(key, data)

    def do_write_many(self):
        keys = self.keys()
        header = json.dumps({"keys": keys}).encode()
        body = struct.pack("<I", len(header)) + header + b"".join(map(block_of, keys))
        self.call("POST", self.path("/write"), body, "application/octet-stream")

    def do_read_many(self):
        keys = self.keys()
        status, data = self.call("POST", self.path("/read"), {"keys": keys})
        if status == 200:
            for number in range(len(data) // BLOCK_BYTES):
                self.check(keys[number], data[number * BLOCK_BYTES:(number + 1) * BLOCK_BYTES])

    def do_match_and_release(self):
        status, answer = self.call("POST", self.path("/match"), {"keys": self.keys(), "lease_ms": 10000})
        if status == 200 and answer["lease"]:
            if self.random.random() < 0.3:
                self.call("POST", f"/v1/leases/{answer['lease']}/renew", {"lease_ms": 10000})
            self.call("DELETE", f"/v1/leases/{answer['lease']}")

    def do_match_and_forget(self):
        self.call("POST", self.path("/match"), {"keys": self.keys(), "lease_ms": LEASE_MS})

    def do_match_and_onboard(self):
        self.call("POST", "/v1/caches/deep/match", {"keys": self.keys(), "lease_ms": LEASE_MS, "onboard": "device",
                                                    "wait_ms": self.random.choice([0, 20])})

    def do_match_packed(self):
        packed = b"".join(bytes.fromhex(key) for key in self.keys())
        self.call("POST", self.path("/match?key_bytes=32&lease_ms=0"), packed, "application/octet-stream")

    def do_allocate_write_commit(self):
        cache = self.path()
        status, held = self.call("POST", f"{cache}/allocate", {"count": self.random.randint(1, 4), "lease_ms": 5000})
        if status != 200:
            return
        blocks, lease = held["blocks"], held["lease"]
        keys = self.keys(len(blocks))
        # Some slots stay unwritten, some uncommitted: the end of the lease frees them.
        for handle, key in zip(blocks, keys):
            status, _ = self.call("PUT", f"{cache}/slots/{handle['tier']}/{handle['slot']}/data"
                                  f"?generation={handle['generation']}&lease={lease}", block_of(key),
                                  "application/octet-stream")
            assert status in (200, 204), status
        if self.random.random() < 0.8:
            commits = [{**handle, "key": key} for handle, key in zip(blocks, keys)]
            status, answer = self.call("POST", f"{cache}/commit", {"lease": lease, "blocks": commits})
            assert status == 200, answer
        self.call("DELETE", f"/v1/leases/{lease}")

    def do_allocate_and_forget(self):
        self.call("POST", self.path("/allocate"), {"count": 2, "lease_ms": LEASE_MS})

    def do_transfer(self):
        tier = self.random.choice(["device", "pinned", "disk"])
        status, answer = self.call("POST", self.path("/transfers"),
                                   {"keys": self.keys(), "to": tier, "mode": self.random.choice(["copy", "move"]),
                                    "wait_ms": self.random.choice([0, 0, 50])})
        if status == 202 and self.random.random() < 0.5:
            self.call("DELETE", f"/v1/transfers/{answer['transfer']}")
        elif status == 202:
            self.call("GET", f"/v1/transfers/{answer['transfer']}?wait_ms=50")

    def do_evict(self):
        self.call("POST", self.path("/evict"), {"keys": self.keys()})

    def do_clear(self):
        if self.random.random() < 0.05:
            self.call("POST", self.path("/clear"), {})

    def do_delete(self):
        self.call("DELETE", self.path(f"/keys/{self.key()}"))

    def do_metadata(self):
        path = self.path(f"/keys/{self.key()}/metadata")
        self.call("PUT", path, {"n": self.random.randrange(1000)})
        self.call("GET", path)

    def do_look_around(self):
        self.call("GET", self.random.choice(["/", "/metrics", "/v1/system", "/v1/caches", "/openapi.json",
                                             "/v1/caches/deep", "/v1/caches/deep/blocks?limit=20"]))

    def do_cache_comes_and_goes(self):
        if self.random.random() < 0.9:
            return
        path = f"/v1/caches/own-{self.ident}"
        self.call("PUT", path, {"layout": SHAPE, "tiers": {"pinned": {"num_blocks": 8}, "disk": {"num_blocks": 8}}})
        key = self.key()
        self.call("PUT", f"{path}/keys/{key}", block_of(key), "application/octet-stream")
        self.call("POST", f"{path}/match", {"keys": [key], "lease_ms": 60000})
        status, answer = self.call("DELETE", f"{path}?force=true")
        assert status in (200, 204), answer

    # Faults ---------------------------------------------------------------------------------------------

    def raw(self, data, read_bytes=0):
        with socket.create_connection((self.host, self.port), PATIENCE_S) as peer:
            try:
                peer.sendall(data)
                if read_bytes:
                    peer.recv(read_bytes)
            except OSError:
                pass  # the server may close first

    def do_cut_upload(self):
        key = self.key()
        head = (f"PUT {self.path(f'/keys/{key}')} HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/octet-stream\r\nContent-Length: {BLOCK_BYTES}\r\n\r\n").encode()
        self.raw(head + block_of(key)[:self.random.randrange(BLOCK_BYTES)])

    def do_cut_bulk_upload(self):
        keys = self.keys()
        header = json.dumps({"keys": keys}).encode()
        body = struct.pack("<I", len(header)) + header + b"".join(map(block_of, keys))
        head = (f"POST {self.path('/write')} HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n").encode()
        self.raw(head + body[:self.random.randrange(len(body))])

    def do_cut_download(self):
        body = json.dumps({"keys": self.keys()})
        self.raw(f"POST {self.path('/read')} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(body)}\r\n\r\n{body}"
                 .encode(), self.random.choice([0, 1, 300]))

    def do_garbage(self):
        self.raw(self.random.randbytes(self.random.randrange(1, 400)) + b"\r\n\r\n", 1)

    def do_wrong_requests(self):
        self.call("GET", f"/v1/caches/nobody/keys/{self.key()}")
        self.call("POST", self.path("/match"), {"keys": ["xyz"]})
        self.call("POST", self.path("/match"), "{\"keys\": [", "application/json")
        self.call("POST", self.path("/allocate"), {"count": 100000})
        self.call("DELETE", "/v1/leases/0000000000112233445566778899aabb")
        self.call("PUT", self.path("/slots/pinned/0/data?generation=1&lease=0000000000112233445566778899aabb"),
                  block_of("x"), "application/octet-stream")
        self.call("PUT", self.path(f"/keys/{self.key()}"), b"short", "application/octet-stream")


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid):
    """The number of open descriptors by target; sockets count as connections."""
    kinds = collections.Counter()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # closed in the meantime
        if not target.startswith("socket:"):
            kinds[target] += 1
    return kinds


def own_threads(pid):
    """The process's threads, without the kernel's io_uring threads, which come and go."""
    names = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm") as comm:
                names.append(comm.read())
        except OSError:  # the thread has just ended
            pass
    return sum(not name.startswith("iou-") for name in names)


def held(server):
    """Every number in which a leak would show, by name."""
    pid = server.child.pid
    system = server.call("GET", "/v1/system")[1]
    counts = {f"descriptors of {kind}": count for kind, count in descriptors(pid).items()}
    counts |= {"threads": own_threads(pid),
              "connections": system["http"]["connections"], "transfers": sum(system["transfers"].values()),
              "caches": len(server.call("GET", "/v1/caches")[1]["caches"])}
    for line in server.call("GET", "/metrics")[1].decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("cairn_leases{", "cairn_leased_blocks{", "cairn_transfers_in_flight{",
                            "cairn_transfer_queue_depth")) or "allocated\"" in name or "committed\"" in name:
            if name.startswith("cairn_commits_total"):
                continue
            counts[name] = float(value)
    return counts


def differences(before, after):
    return [f"{name}: {before.get(name, 0)} before, {after.get(name, 0)} after"
            for name in sorted(before.keys() | after.keys())
            if not 0 <= after.get(name, 0) - before.get(name, 0) <= (POOL_PIECES if "/memfd:" in name else 0)]


def settled(server):
    """Returns `held` once leases have expired, cut uploads have ended, transfers have arrived and the connections of
    earlier calls are closed."""
    idle = {"leases", "leased_blocks", "allocated", "committed", "transfers", "queue_depth"}

    def is_settled(counts):
        ended = all(value == 0 for name, value in counts.items() if any(word in name for word in idle))
        return ended and counts["connections"] == 1  # of the call that asks

    latest = []

    def look():
        latest[:] = [held(server)]
        return is_settled(latest[0])

    eventually(look, "all resources to be released")
    return latest[0]


def run_clients(server, options, seconds, tally, sizes):
    """Runs the clients and returns their failures. Appends the server's memory to `sizes` again and again."""
    until = time.monotonic() + seconds
    clients = [Client(server.address, f"{options.seed}.{number}.{len(sizes)}", until, tally)
               for number in range(options.clients)]
    print(f"seed {options.seed}, {options.clients} clients, {seconds:g} s", flush=True)
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        sizes.append(resident_bytes(server.child.pid))
        assert server.child.poll() is None, f"the server ended:\n{server.text()[-3000:]}"
        time.sleep(min(1, seconds / 40))
    return [client.failure for client in clients if client.failure]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("server")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=20260101)
    options = parser.parse_args()
    seconds = options.minutes * 60 + options.seconds or 20
    os.environ["GLIBC_TUNABLES"] = STEADY_MALLOC  # the server inherits it

    with Folder() as folder:
        (folder / "config.json").write_text('{"caches": []}')
        server = Server(options.server, folder, "--config", folder / "config.json", "--runtime", "host",
                        "--threads", "2", "--body-timeout-ms", "2000")
        for name, body in CACHES.items():
            status, answer = server.call("PUT", f"/v1/caches/{name}", {"layout": SHAPE, **body})
            assert status == 201, answer
        tally = collections.Counter()
        failures, sizes = [], []
        # Streams and their threads are created at first use: compare with a server that has done everything once.
        for share in (0.15, 0.85):
            failures += run_clients(server, options, seconds * share, tally, sizes)
            if share < 0.5:
                before = settled(server)
                descriptors_before = descriptors(server.child.pid)
        try:
            eventually(lambda: not differences(before, held(server)), "all resources to be released")
        except AssertionError:
            failures += differences(before, held(server))
        warm = max(sizes[len(sizes) // 4:len(sizes) // 2])
        last = resident_bytes(server.child.pid)
        sanitized = server.call("GET", "/v1/system")[1]["build"]["sanitizer"]
        # A sanitizer keeps freed memory on purpose.
        if sanitized in ("", "none", None) and last > warm + RSS_SLACK_BYTES:
            failures.append(f"memory: {warm >> 20} MiB when warm, {last >> 20} MiB after")
        # The stored blocks are still correct, and the server exits cleanly.
        intact = 0
        for cache in CACHES:
            for number in range(KEYS):
                status, data = server.call("GET", f"/v1/caches/{cache}/keys/{key_of(number)}")
                if status == 200:
                    intact += 1
                    if data != block_of(key_of(number)):
                        failures.append(f"WRONG BYTES under {key_of(number)} of {cache}")
        code = server.stop()
        if code != 0:
            failures.append(f"exit code {code}:\n{server.text()[-3000:]}")

    statuses = {name[7:]: count for name, count in tally.items() if name.startswith("status ")}
    steps = sum(count for name, count in tally.items() if not name.startswith("status "))
    print(f"{steps} steps, {sum(statuses.values())} answers {dict(sorted(statuses.items()))}, {intact} blocks intact")
    print(f"memory {warm >> 20} MiB when warm, {max(sizes) >> 20} MiB at most, {last >> 20} MiB after; "
          f"{sum(descriptors_before.values())} descriptors, {before['threads']} threads")
    print(*failures, sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
