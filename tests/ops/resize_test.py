#!/usr/bin/env python3
"""A cache grows and shrinks while clients store and read: no byte is ever wrong, no request is refused because of
it, and the most recently used blocks stay. Without options the test is short.

usage: resize_test.py CAIRN_SERVER [--blocks 4000] [--clients 4]
"""

import argparse
import hashlib
import http.client
import json
import os
import random
import struct
import sys
import threading
import time

from support import PATIENCE_S, Folder, Server

BLOCK_BYTES = 4096
LABELS_BYTES = 8192  # the label of a slot file, twice
SHAPE = {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 128, "dtype_width_bytes": 2}
PREFIX = 8  # blocks in a prefix
CACHE = "/v1/caches/resized"


def key_of(number):
    return hashlib.sha256(b"resize%d" % number).hexdigest()


def block_of(key):
    return hashlib.shake_128(key.encode()).digest(BLOCK_BYTES)


def keys_of(prefix):
    return [key_of(prefix * PREFIX + i) for i in range(PREFIX)]


class Client(threading.Thread):
    """Reads stored prefixes, compares each byte, and stores what is missing."""

    def __init__(self, address, seed, prefixes, ended):
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        self.random = random.Random(seed)
        self.prefixes = prefixes
        self.ended = ended
        self.read = self.wrong = self.written = self.slowest_ms = 0
        self.refused = {}
        self.failure = None

    def call(self, method, path, body=None, kind="application/json"):
        begun = time.monotonic()
        self.connection.request(method, path, body, {"Content-Type": kind} if body else {})
        answer = self.connection.getresponse()
        data = answer.read()
        self.slowest_ms = max(self.slowest_ms, (time.monotonic() - begun) * 1000)
        if answer.status >= 400:
            code = json.loads(data)["code"]
            self.refused[code] = self.refused.get(code, 0) + 1
        return answer.status, data

    def store(self, prefix):
        keys = keys_of(prefix)
        header = json.dumps({"keys": keys}).encode()
        body = struct.pack("<I", len(header)) + header + b"".join(map(block_of, keys))
        status, _ = self.call("POST", f"{CACHE}/write", body, "application/octet-stream")
        self.written += PREFIX if status < 300 else 0

    def look(self, prefix):
        """Returns the number of existing blocks of the prefix, after comparing each."""
        keys = keys_of(prefix)
        status, data = self.call("POST", f"{CACHE}/read", json.dumps({"keys": keys}))
        if status != 200:
            return 0
        count = len(data) // BLOCK_BYTES
        for i in range(count):
            self.read += 1
            self.wrong += data[i * BLOCK_BYTES:(i + 1) * BLOCK_BYTES] != block_of(keys[i])
        return count

    def run(self):
        try:
            while not self.ended.is_set():
                prefix = self.random.choice(self.prefixes)
                if self.look(prefix) < PREFIX:
                    self.store(prefix)
                elif self.random.random() < 0.2:
                    self.lease(prefix)
        except Exception as failure:
            self.failure = failure

    def lease(self, prefix):
        """Leases a prefix for a moment: its blocks must stay until the lease ends."""
        status, data = self.call("POST", f"{CACHE}/match", json.dumps({"keys": keys_of(prefix), "lease_ms": 5000}))
        answer = json.loads(data)
        if status != 200 or not answer["lease"]:
            return
        count = self.look(prefix)
        self.wrong += count < answer["matched"]
        self.call("DELETE", f"/v1/leases/{answer['lease']}")


def metric(server, name, tier):
    text = server.call("GET", "/metrics")[1].decode()
    for line in text.splitlines():
        if line.startswith(name + "{") and f'tier="{tier}"' in line and 'cache="resized"' in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name} of {tier}")


def resize(server, tier, blocks):
    begun = time.monotonic()
    status, answer = server.call("PATCH", CACHE, {"tiers": {tier: {"num_blocks": blocks}}})
    assert status == 200, answer
    assert answer["tiers"][tier]["num_blocks"] == blocks, answer
    return time.monotonic() - begun


def run(program, tier, blocks, clients):
    grown, shrunk = blocks * 3 // 2, blocks // 2
    with Folder() as folder:
        server = Server(program, folder)
        try:
            # An order that learns may prefer blocks read once just now to those read again and again.
            status, answer = server.call("PUT", CACHE, {"layout": SHAPE, "offload": "never", "eviction": "lru",
                                                        "tiers": {tier: {"num_blocks": blocks}}})
            assert status == 201, answer
            filler = Client(server.address, 0, [], threading.Event())
            for prefix in range(blocks // PREFIX):
                filler.store(prefix)
            assert filler.written == blocks // PREFIX * PREFIX, filler.refused
            # The clients use their prefixes repeatedly and the other blocks never.
            used = list(range(0, blocks // PREFIX, 4))
            ended = threading.Event()
            all_clients = [Client(server.address, seed, used, ended) for seed in range(1, clients + 1)]
            for client in all_clients:
                client.start()
            time.sleep(0.5)
            grow_s = resize(server, tier, grown)
            # New blocks fit now, and all earlier ones stay.
            for prefix in range(blocks // PREFIX, grown // PREFIX):
                filler.store(prefix)
            whole_after_growth = sum(filler.look(prefix) == PREFIX for prefix in range(grown // PREFIX))
            # The most recently used ones, which must stay.
            for prefix in used:
                filler.look(prefix)
            shrink_s = resize(server, tier, shrunk)
            time.sleep(0.5)
            ended.set()
            for client in all_clients:
                client.join(PATIENCE_S)
                assert client.failure is None, repr(client.failure)
            whole_used = sum(filler.look(prefix) == PREFIX for prefix in used)
            capacity = metric(server, "cairn_block_capacity", tier)
            found = 0
            if tier == "disk":
                found = os.path.getsize(folder / "data" / "disk" / "resized")
            server.stop(how=9)
            server = Server(program, folder)
            after_kill = sum(filler_of(server).look(prefix) == PREFIX for prefix in used) if tier == "disk" else None
        finally:
            server.stop()
    everyone = [filler, *all_clients]
    refused = {}
    for client in everyone:
        for code, count in client.refused.items():
            refused[code] = refused.get(code, 0) + count
    report = {"tier": tier, "blocks": blocks, "grown": grown, "shrunk": shrunk, "grow_s": round(grow_s, 3),
              "shrink_s": round(shrink_s, 3), "blocks_read": sum(c.read for c in everyone),
              "wrong": sum(c.wrong for c in everyone), "refused": refused,
              "slowest_request_ms": round(max(c.slowest_ms for c in all_clients)),
              "prefixes_whole_after_growth": f"{whole_after_growth} of {grown // PREFIX}",
              "used_prefixes_kept": f"{whole_used} of {len(used)}", "capacity": capacity, "file_bytes": found,
              "used_prefixes_after_kill": after_kill}
    print(json.dumps(report))
    assert report["wrong"] == 0, report
    assert capacity == shrunk, report
    assert whole_after_growth == grown // PREFIX, report
    assert whole_used == len(used), report
    assert not refused, report
    if tier == "disk":
        assert found == LABELS_BYTES + shrunk * (4096 + BLOCK_BYTES), report
        assert after_kill == len(used), report


def filler_of(server):
    return Client(server.address, 0, [], threading.Event())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--clients", type=int, default=3)
    arguments = parser.parse_args()
    for tier in ("pinned", "disk"):
        run(arguments.program, tier, arguments.blocks, arguments.clients)


if __name__ == "__main__":
    sys.exit(main())
