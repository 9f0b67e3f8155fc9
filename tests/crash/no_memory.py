#!/usr/bin/env python3
"""Memory runs out at the n-th allocation of a request, for each kind of request. The server must keep answering
and leave nothing behind: no lease, slot, transfer, group, connection, open file, thread or memory.

usage: no_memory.py CAIRN_SERVER FAULTS_LIBRARY [--tries N] [--seed N] [--only KIND] [--pieces N]
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import mmap
import os
import pathlib
import random
import re
import socket
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ops"))

from kinds import BODY, CACHE, KINDS, TOKEN, data, key  # noqa: E402
from support import PATIENCE_S, Folder, Server, eventually  # noqa: E402

ALL = -1000  # no allocation fails
NEVER = 1 << 40  # in allocations from now
ANSWER_S = 10  # an answer that takes longer counts as lost
WARM_UP = 3  # requests of a kind until its buffers have their final size
AT_REST = 4  # readings of the state that must agree before it is taken as the server's own
MEASURED = 8  # requests of a kind to measure what each legitimately leaves: a transfer's end state, a name
# Tolerance for tables that grow now and then: for a kind, and for each request.
SLACK_BYTES, SLACK_A_REQUEST_BYTES = 8 << 10, 64


class Memory:
    """Controls how many of the server's allocations succeed."""

    def __init__(self, path):
        path.write_bytes(struct.pack("<qqqq", ALL, 0, 0, 0))
        self.file = open(path, "r+b")
        self.shared = mmap.mmap(self.file.fileno(), 32)

    def fail_after(self, count, pieces):
        self.shared[16:24] = struct.pack("<q", pieces)
        self.shared[0:8] = struct.pack("<q", count)

    def stop_failing(self):
        """Returns how many more allocations would have succeeded."""
        left = self.of(0)
        self.shared[0:8] = struct.pack("<q", ALL)
        return left

    def failed(self):
        return self.of(1)

    def held_bytes(self):
        return self.of(3)

    def of(self, number):
        return struct.unpack_from("<q", self.shared, 8 * number)[0]


class UnixConnection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


class Caller:
    def __init__(self, server, unix_path):
        self.server, self.unix_path = server, unix_path

    def open(self, over_unix=False):
        if over_unix:
            return UnixConnection(self.unix_path, timeout=ANSWER_S)
        return http.client.HTTPConnection(self.server.address, timeout=ANSWER_S)

    def __call__(self, method, path, body=None, over_unix=False, over=None, **headers):
        """Returns (status, body), or None if the server closed the connection without an answer. A dict is sent as
        JSON. `over`: a connection to use, which stays open."""
        headers = {"Authorization": f"Bearer {TOKEN}", **{name.replace("_", "-"): headers[name] for name in headers}}
        if isinstance(body, dict):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        elif body is not None:
            headers.setdefault("Content-Type", "application/octet-stream")
        connection = over or self.open(over_unix)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            has_json = text and "json" in (answer.getheader("Content-Type") or "")
            return answer.status, json.loads(text) if has_json else text
        except TimeoutError as late:
            raise AssertionError(f"{method} {path} was never answered") from late
        except (OSError, http.client.HTTPException):
            return None
        finally:
            if over is None:
                connection.close()


class Site:
    def __init__(self, server, unix_path, memory, peer, pieces, imports):
        self.call = Caller(server, unix_path)
        self.imports = imports
        self.server, self.memory, self.peer, self.pieces = server, memory, peer, pieces
        self.answers = {}
        self.process = pathlib.Path(f"/proc/{server.child.pid}")

    def prepare(self):
        for number in range(1, 5):
            answer = self.call("PUT", f"{CACHE}/keys/{key(number)}?tier=pinned", data(number))
            assert answer[0] in (200, 201), answer

    def ready(self):
        """Waits until the server serves: it refuses requests while it is short of memory."""
        deadline = time.monotonic() + PATIENCE_S
        while (self.call("GET", CACHE) or (0,))[0] != 200:
            assert time.monotonic() < deadline, f"it still refuses work:\n{self.server.text()[-3000:]}"
            time.sleep(0.005)

    def attempt(self, kind, fail_after):
        """Sends one request. Returns (allocations it made if none failed, whether one failed)."""
        self.prepare()
        send, undo = kind(self)
        before = self.memory.failed()
        self.memory.fail_after(fail_after, self.pieces)
        try:
            answer = send()
        finally:
            left = self.memory.stop_failing()
        assert self.server.child.poll() is None, f"it ended:\n{self.server.text()[-3000:]}"
        said = answer[0] if answer else "closed"
        self.answers[said] = self.answers.get(said, 0) + 1
        self.ready()
        undo(answer)
        return fail_after - left, self.memory.failed() > before

    def state(self):
        """Everything that a request might leave behind, asked over one connection: the files of others that are still
        closing would count."""
        with contextlib.closing(self.call.open()) as connection:
            return self.state_over(connection)

    def state_over(self, connection):
        def asked(path):
            return self.call("GET", path, over=connection)[1]

        cache = asked(CACHE)
        metrics = asked("/metrics").decode().splitlines()
        rows = {row.rsplit(" ", 1)[0]: float(row.rsplit(" ", 1)[1]) for row in metrics if not row.startswith("#")}
        return {
            "leases": cache["leases"],
            "slots": {tier: tier_state["blocks"] for tier, tier_state in cache["tiers"].items()},
            "transfers": asked("/v1/system")["transfers"],
            "caches": [cache["name"] for cache in asked("/v1/caches")["caches"]],
            "groups": asked("/v1/groups")["groups"],
            "agents": asked("/v1/agents")["agents"],
            "connections": rows["cairn_http_connections"],
            "bodies": {row: value for row, value in rows.items() if row.startswith("cairn_allocator_allocated_bytes")},
            "open files": len(list((self.process / "fd").iterdir())),
            "threads": len(list((self.process / "task").iterdir())),
        }

    def state_at_rest(self):
        """The state once it stays the same, with no connection but the one that asks."""
        deadline = time.monotonic() + PATIENCE_S
        seen = []
        while len(seen) < AT_REST or any(one != seen[-1] for one in seen) or seen[-1]["connections"] != 1:
            assert time.monotonic() < deadline, f"it does not come to rest: {seen[-1]}"
            seen = [*seen, self.state()][-AT_REST:]
            time.sleep(0.02)
        return seen[-1]

    def held(self):
        """The server's memory with an empty cache."""
        assert self.call("POST", CACHE + "/clear", {})[0] == 200
        before = None
        while before != (now := self.memory.held_bytes()):  # waits until connections and transfers have ended
            before = now
            time.sleep(0.02)
        return now

    def check_routes(self):
        """Checks that every route was requested."""
        paths = self.call("GET", "/openapi.json")[1]["paths"]
        there = {(method.upper(), path) for path, methods in paths.items() for method in methods
                 if method in ("get", "head", "put", "post", "delete", "patch")}
        counted = [dict(re.findall(r'(\w+)="([^"]*)"', row))
                   for row in self.call("GET", "/metrics")[1].decode().splitlines()
                   if row.startswith("cairn_http_requests_total")]
        asked = {(labels["method"], labels["route"]) for labels in counted}
        assert there <= asked, f"no kind asks for {sorted(there - asked)}"

    def try_kind(self, name, kind, tries, chance):
        for _ in range(WARM_UP):
            made, _ = self.attempt(kind, NEVER)
        self.state_at_rest()  # what the questions keep is not the requests'
        unharmed = self.held()
        for _ in range(MEASURED):
            self.attempt(kind, NEVER)
        self.state_at_rest()
        live, before = self.held(), self.state_at_rest()
        each = max(0, live - unharmed) / MEASURED
        # The server's other threads allocate too: allow a little more than the request needs.
        places = range(made + 4)
        if tries and tries < len(places):
            places = sorted(chance.sample(places, tries))
        failures = 0
        for place in places:
            try:
                failures += self.attempt(kind, place)[1]
            except AssertionError as failure:
                raise AssertionError(f"{name}, allocation {place}: {failure}") from failure
        expected = live + SLACK_BYTES + (each + SLACK_A_REQUEST_BYTES) * len(places)
        try:
            eventually(lambda: self.held() <= expected and self.state() == before, "nothing to be left")
        except AssertionError as failure:
            raise AssertionError(f"{name} left {self.held() - expected} bytes and {self.state()}, not {before}\n"
                                 f"{self.server.text()[-3000:]}") from failure
        print(f"{name:30} {made:5} allocations, {failures:5} failed, {self.held() - live:7} bytes kept", flush=True)
        return failures


def start_peer(program, folder):
    """The other rank of groups; its memory is not limited."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"caches": []}))
    peer = Server(program, folder, "--runtime", "host", "--threads", "1", "--config", folder / "config.json")
    status, answer = peer.call("PUT", CACHE, BODY)
    assert status == 201, answer
    return peer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("server")
    parser.add_argument("faults")
    parser.add_argument("--tries", type=int, default=0, help="of each kind, at random places; 0: at every allocation")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--pieces", type=int, default=1,
                        help="of the reserve's 16 that are given up before there is memory again")
    parser.add_argument("--only")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with Folder() as folder:
        peer = start_peer(options.server, folder / "peer")
        memory = Memory(folder / "memory")
        (folder / "config.json").write_text(json.dumps({"caches": []}))
        (folder / "tokens.json").write_text(json.dumps({"tokens": [
            {"name": "all", "role": "admin", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]}))
        (folder / "imports").mkdir()
        server = Server(options.server, folder, "--runtime", "host", "--threads", "1", "--config",
                        folder / "config.json", "--tokens", folder / "tokens.json", "--unix", folder / "socket",
                        "--import-folders", folder / "imports",
                        env={**os.environ, "LD_PRELOAD": options.faults, "CAIRN_FAULTS_MEMORY": str(folder / "memory")})
        site = Site(server, str(folder / "socket"), memory, peer, options.pieces, folder / "imports")
        answer = site.call("PUT", CACHE, BODY)
        assert answer[0] == 201, answer
        total = 0
        chance = random.Random(options.seed)
        for name, kind in KINDS.items():
            if options.only is None or name == options.only:
                total += site.try_kind(name, kind, options.tries, chance)
        assert total > 0, "no allocation failed: the library was not taken"
        if options.only is None:
            site.check_routes()
        assert server.stop() == 0, server.text()[-3000:]
        assert peer.stop() == 0, peer.text()[-3000:]
        print(f"{total} allocations failed in {len(KINDS)} kinds of requests; answers: "
              f"{dict(sorted(site.answers.items(), key=str))}")


if __name__ == "__main__":
    main()
