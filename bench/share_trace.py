#!/usr/bin/env python3
"""Replays a request trace over four servers that share blocks in a group, and checks every byte.

Each request goes to the next server. It computes (here: makes up from the block's id) what the match
did not find, and a broadcast gives it to the others; in the end every block is read on every server.
Exits 1 where a block was computed twice, did not arrive, or has a wrong byte.
"""

import argparse
import hashlib
import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

BUILD = pathlib.Path(__file__).resolve().parent.parent / "build" / "release"
LAYOUTS = [{"layout": "fully_contiguous"}, {"layout": "layer_separate", "block_dim": "first"},
           {"layout": "layer_separate", "block_dim": "second"}, {"layout": "fully_contiguous"}]
SHAPE = {"num_layers": 4, "outer_dim": 2, "page_size": 16, "inner_dim": 64, "dtype_width_bytes": 2}
BLOCK_BYTES = 4 * 2 * 16 * 64 * 2


def key(number):
    return hashlib.sha256(b"block %d" % number).hexdigest()


def block(number):
    return hashlib.shake_128(b"bytes %d" % number).digest(BLOCK_BYTES)


class Server:
    def __init__(self, program, data_dir):
        config = pathlib.Path(data_dir) / "config.json"
        config.write_text(json.dumps({"caches": []}))
        self.process = subprocess.Popen(
            [program, "--listen", "127.0.0.1:0", "--data-dir", data_dir + "/data", "--runtime", "host", "--config", str(config)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = int(self.process.stdout.readline().rsplit(":", 1)[1])
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, method, path, body=None, good=(200, 201, 202)):
        raw = isinstance(body, bytes)
        self.connection.request(method, path, body if raw or body is None else json.dumps(body),
                                {"Content-Type": "application/octet-stream" if raw else "application/json"})
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status not in good:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
        return data if answer.getheader("Content-Type") == "application/octet-stream" else json.loads(data or b"null")


def ended(server, transfer):
    while transfer["state"] in ("queued", "running"):
        transfer = server.ask("GET", f"/v1/transfers/{transfer['transfer']}?wait_ms=10000")
    return transfer


def replay(servers, requests, num_blocks):
    everyone = ThreadPoolExecutor(len(servers))
    for rank, server in enumerate(servers):
        server.ask("PUT", "/v1/caches/c", {"layout": SHAPE, "tiers": {"pinned": {"num_blocks": num_blocks, **LAYOUTS[rank]}}})
    unique_id = None
    for rank, server in enumerate(servers):
        body = {"name": "g", "rank": rank, "world_size": len(servers), "device_id": 0}
        joined = server.ask("POST", "/v1/groups", body | ({"unique_id": unique_id} if unique_id else {}))
        unique_id = unique_id or joined["unique_id"]
    computed = {}
    shared_bytes = 0
    start = time.monotonic()
    for turn, ids in enumerate(requests):
        root = turn % len(servers)
        keys = [key(n) for n in ids]
        matched = servers[root].ask("POST", "/v1/caches/c/match", {"keys": keys, "lease_ms": 0})["matched"]
        fresh = ids[matched:]
        if not fresh:
            continue
        for n, parent in zip(fresh, ids[matched - 1:] if matched else [None] + ids):
            computed[n] = computed.get(n, 0) + 1
            servers[root].ask("PUT", f"/v1/caches/c/keys/{key(n)}" + (f"?parent={key(parent)}" if parent is not None else ""), block(n))
        body = {"cache": "c", "keys": keys[matched:], "root": root, "wait_ms": 10000}
        for transfer in everyone.map(lambda s: ended(s, s.ask("POST", "/v1/groups/g/broadcast", body)), servers):
            if transfer["state"] != "done":
                raise RuntimeError(f"request {turn}: {transfer}")
        shared_bytes += len(fresh) * BLOCK_BYTES
    seconds = time.monotonic() - start
    twice = [n for n, times in computed.items() if times > 1]
    wrong = [n for n in computed for server in servers
             if server.ask("GET", f"/v1/caches/c/keys/{key(n)}", good=(200, 404)) != block(n)]
    return {"requests": len(requests), "blocks": len(computed), "computed_twice": len(twice), "wrong_or_missing": len(wrong),
            "read": len(computed) * len(servers), "shared_bytes": shared_bytes, "seconds": round(seconds, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", required=True, help="JSON lines with hash_ids")
    parser.add_argument("--limit", type=int, default=300, help="requests (default 300)")
    parser.add_argument("--program", default=BUILD / "cairn-server")
    arguments = parser.parse_args()
    with open(arguments.trace) as lines:
        requests = [json.loads(line)["hash_ids"] for line, _ in zip(lines, range(arguments.limit))]
    num_blocks = len({n for ids in requests for n in ids})
    with tempfile.TemporaryDirectory() as folder:
        servers = []
        try:
            for rank in range(4):
                (pathlib.Path(folder) / str(rank)).mkdir()
                servers.append(Server(arguments.program, f"{folder}/{rank}"))
            result = replay(servers, requests, num_blocks)
        finally:
            for server in servers:
                server.process.terminate()
                server.process.wait()
    print(json.dumps(result))
    sys.exit(1 if result["computed_twice"] or result["wrong_or_missing"] else 0)


if __name__ == "__main__":
    main()
