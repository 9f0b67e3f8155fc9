#!/usr/bin/env python3
"""Memory runs out at the n-th allocation of a request, for each kind of request and every n: the server goes
on answering, and no lease, slot or transfer is left behind.

usage: no_memory.py CAIRN_SERVER FAULTS_LIBRARY [--pieces N] [--only ROUTE]
"""

import argparse
import http.client
import json
import mmap
import os
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ops"))

from ledger import BLOCK_BYTES, SHAPE  # noqa: E402
from support import Folder, Server, eventually  # noqa: E402

ALL = -1000  # nothing fails
CACHE = "/v1/caches/small"
BODY = {"layout": SHAPE, "tiers": {"device": {"num_blocks": 16}, "pinned": {"num_blocks": 16},
                                   "disk": {"num_blocks": 32}}}
PATIENCE_S = 10  # of a client whose answer was lost


class Memory:
    """How many allocations of the server's succeed."""

    def __init__(self, path):
        path.write_bytes(struct.pack("<qqq", ALL, 0, 0))
        self.file = open(path, "r+b")
        self.shared = mmap.mmap(self.file.fileno(), 24)

    def fail_after(self, count, pieces):
        self.shared[16:24] = struct.pack("<q", pieces)
        self.shared[0:8] = struct.pack("<q", count)

    def stop_failing(self):
        self.shared[0:8] = struct.pack("<q", ALL)

    def failed(self):
        return struct.unpack("<q", self.shared[8:16])[0]


class Caller:
    def __init__(self, server):
        self.server = server

    def __call__(self, method, path, body=None):
        """(status, body), or None where the connection was closed without an answer."""
        try:
            return self.server.call(method, path, body, timeout_s=PATIENCE_S)
        except TimeoutError as late:
            raise AssertionError(f"{method} {path} was never answered") from late
        except (OSError, http.client.HTTPException):
            return None


def data(number):
    return number.to_bytes(4, "little") * (BLOCK_BYTES // 4)


def key(number):
    return f"{number:016x}"


def keys(first, count):
    return [key(number) for number in range(first, first + count)]


def batch(first, count):
    header = json.dumps({"keys": keys(first, count), "tier": "pinned"}).encode()
    return struct.pack("<I", len(header)) + header + b"".join(data(first + i) for i in range(count))


def hold(call, count=2, tier="pinned"):
    answer = call("POST", CACHE + "/allocate", {"count": count, "tier": tier, "lease_ms": 60000})
    assert answer[0] == 200, answer
    return answer[1]


def commit_of(call):
    held = hold(call, 1)
    return "POST", CACHE + "/commit", {"lease": held["lease"], "blocks": [{**held["blocks"][0], "key": key(700)}]}


def slot_of(call):
    held = hold(call, 1)
    at = held["blocks"][0]
    return "PUT", f"{CACHE}/slots/pinned/{at['slot']}/data?generation={at['generation']}&lease={held['lease']}", data(1)


def lease_path(call, rest):
    return f"/v1/leases/{hold(call)['lease']}{rest}"


# What is asked, made anew before each time. Blocks 1 to 4 are in the pinned tier.
ROUTES = {
    "healthz": lambda call: ("GET", "/healthz"),
    "system": lambda call: ("GET", "/v1/system"),
    "metrics": lambda call: ("GET", "/metrics"),
    "openapi": lambda call: ("GET", "/openapi.json"),
    "status page": lambda call: ("GET", "/"),
    "caches": lambda call: ("GET", "/v1/caches"),
    "cache": lambda call: ("GET", CACHE),
    "put cache": lambda call: ("PUT", "/v1/caches/other", BODY),
    "delete cache": lambda call: (call("PUT", "/v1/caches/other", BODY) and None) or ("DELETE", "/v1/caches/other"),
    "match": lambda call: ("POST", CACHE + "/match", {"keys": keys(1, 4), "lease_ms": 60000}),
    "match tokens": lambda call: ("POST", CACHE + "/match", {"tokens": list(range(64)), "lease_ms": 60000}),
    "onboard": lambda call: ("POST", CACHE + "/match", {"keys": keys(1, 4), "onboard": "device", "wait_ms": 5000,
                                                        "lease_ms": 60000}),
    "allocate": lambda call: ("POST", CACHE + "/allocate", {"count": 4, "tier": "pinned", "lease_ms": 60000}),
    "allocate by eviction": lambda call: ("POST", CACHE + "/allocate", {"count": 15, "tier": "pinned",
                                                                       "lease_ms": 60000}),
    "write slot": slot_of,
    "commit": commit_of,
    "renew": lambda call: ("POST", lease_path(call, "/renew"), {"lease_ms": 60000}),
    "release": lambda call: ("POST", lease_path(call, "/release"), {}),
    "end lease": lambda call: ("DELETE", lease_path(call, "")),
    "put key": lambda call: ("PUT", f"{CACHE}/keys/{key(500)}?tier=pinned", data(500)),
    "put key to the device": lambda call: ("PUT", f"{CACHE}/keys/{key(501)}?tier=device", data(501)),
    "put key to disk": lambda call: ("PUT", f"{CACHE}/keys/{key(502)}?tier=disk", data(502)),
    "get key": lambda call: ("GET", f"{CACHE}/keys/{key(1)}"),
    "head key": lambda call: ("HEAD", f"{CACHE}/keys/{key(1)}"),
    "delete key": lambda call: ("DELETE", f"{CACHE}/keys/{key(500)}"),
    "read": lambda call: ("POST", CACHE + "/read", {"keys": keys(1, 4)}),
    "write": lambda call: ("POST", CACHE + "/write", batch(600, 3)),
    "transfer": lambda call: ("POST", CACHE + "/transfers", {"keys": keys(1, 2), "to": "disk", "wait_ms": 5000}),
    "evict": lambda call: ("POST", CACHE + "/evict", {"keys": keys(1, 2)}),
    "clear": lambda call: ("POST", CACHE + "/clear", {"tier": "pinned"}),
    "blocks": lambda call: ("GET", CACHE + "/blocks?limit=100"),
    "metadata": lambda call: ("PUT", f"{CACHE}/keys/{key(1)}/metadata", {"a": 1}),
    "get metadata": lambda call: ("GET", f"{CACHE}/keys/{key(1)}/metadata"),
    "snapshot": lambda call: (call("DELETE", CACHE + "/snapshots/one") and None) or
                             ("POST", CACHE + "/snapshots", {"name": "one"}),
    "snapshots": lambda call: ("GET", CACHE + "/snapshots"),
    "groups": lambda call: ("GET", "/v1/groups"),
    "nothing there": lambda call: ("GET", "/v1/nothing"),
    "malformed": lambda call: ("POST", CACHE + "/match", b"{"),
}


class Site:
    def __init__(self, server, memory, pieces):
        self.call, self.server, self.memory, self.pieces = Caller(server), server, memory, pieces
        self.answers = {}

    def prepare(self):
        for number in range(1, 5):
            assert self.call("PUT", f"{CACHE}/keys/{key(number)}?tier=pinned", data(number))[0] in (200, 201)

    def tidy(self):
        """No lease, no slot, no movement is left. A cache made anew has nothing to hide behind."""
        def idle():
            status, cache = self.call("GET", CACHE)
            system = self.call("GET", "/v1/system")[1]
            held = {tier: told["blocks"] for tier, told in cache["tiers"].items()}
            self.left = {"leases": cache["leases"], "tiers": held, "transfers": system["transfers"]}
            return (status == 200 and cache["leases"] == 0 and system["transfers"] == {"queued": 0, "running": 0} and
                    all(blocks["allocated"] == blocks["committed"] == 0 for blocks in held.values()))
        try:
            eventually(idle, "nothing to be held")
        except AssertionError as failure:
            raise AssertionError(f"left behind: {self.left}\n{self.server.text()[-3000:]}") from failure

    def end_leases(self, answer):
        """What a client would do with what it was told."""
        lease = answer[1].get("lease") if answer and isinstance(answer[1], dict) else None
        if lease:
            self.call("DELETE", f"/v1/leases/{lease}")

    def try_route(self, name, make):
        failures, quiet, count = 0, 0, 0
        while quiet < 2 and count < 2000:
            self.prepare()
            method, path, *body = make(self.call)
            before = self.memory.failed()
            self.memory.fail_after(count, self.pieces)
            try:
                answer = self.call(method, path, *body)
            finally:
                self.memory.stop_failing()
            assert self.server.child.poll() is None, f"ended in {name}, allocation {count}:\n{self.server.text()[-3000:]}"
            failed = self.memory.failed() - before
            failures += failed > 0
            quiet = 0 if failed else quiet + 1
            self.answers[answer[0] if answer else "closed"] = self.answers.get(answer[0] if answer else "closed", 0) + 1
            self.end_leases(answer)
            if body and isinstance(body[0], dict):
                self.end_leases((0, body[0]))
            if "lease=" in path:
                self.call("DELETE", "/v1/leases/" + path.split("lease=")[1])
            elif path.startswith("/v1/leases/"):
                self.call("DELETE", "/v1/leases/" + path.split("/")[3])
            self.ready()
            count += 1
        self.tidy()
        return failures

    def ready(self):
        """The server says so itself when it is short of memory, until it is no more."""
        eventually(lambda: (self.call("GET", CACHE) or (0,))[0] == 200, "the server to take on work again")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("server")
    parser.add_argument("faults")
    parser.add_argument("--pieces", type=int, default=1,
                        help="of the reserve that are given up before there is memory again; 99: none ever is")
    parser.add_argument("--only")
    options = parser.parse_args()
    with Folder() as folder:
        memory = Memory(folder / "memory")
        (folder / "config.json").write_text(json.dumps({"caches": []}))
        server = Server(options.server, folder, "--runtime", "host", "--threads", "1", "--config",
                        folder / "config.json",
                        env={**os.environ, "LD_PRELOAD": options.faults, "CAIRN_FAULTS_MEMORY": str(folder / "memory")})
        status, answer = server.call("PUT", CACHE, BODY)
        assert status == 201, answer
        site = Site(server, memory, options.pieces)
        total = 0
        for name, make in ROUTES.items():
            if options.only and name != options.only:
                continue
            failures = site.try_route(name, make)
            total += failures
            print(f"{name:24} {failures:5} allocations failed", flush=True)
        assert total > 0, "no allocation failed: the library was not taken"
        assert server.stop() == 0, server.text()[-3000:]
        print(f"{total} allocations failed in {len(ROUTES)} kinds of requests; answers: "
              f"{dict(sorted(site.answers.items(), key=str))}")


if __name__ == "__main__":
    main()
