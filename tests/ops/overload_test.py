#!/usr/bin/env python3
"""Ten times as much as each bound allows: the excess is refused with 429 or 503 and a Retry-After, everything
accepted is served, and afterwards the next request is served at once.

usage: overload_test.py CAIRN_SERVER
"""

import http.client
import json
import socket
import sys

from support import PATIENCE_S, Folder, Server, eventually

MAX_CONNECTIONS = 16
MAX_LEASES = 8
MAX_TRANSFERS = 2
CONFIG = {"caches": [], "http": {"max_connections": MAX_CONNECTIONS},
          "blocks": {"max_leases": MAX_LEASES, "max_transfers": MAX_TRANSFERS}}
# Blocks of 4 MiB: moving a few takes long enough for other requests to arrive.
LAYOUT = {"num_layers": 32, "outer_dim": 2, "page_size": 16, "inner_dim": 2048, "dtype_width_bytes": 2}
BLOCK_BYTES = 4 << 20
NUM_BLOCKS = 6


def connections(server):
    """Idle connections make room. If all are busy, new ones get 503, except for health checks."""
    host, port = server.address.split(":")
    crowd = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(10 * MAX_CONNECTIONS)]
    status, group = server.call("POST", "/v1/groups", {"name": "g", "rank": 0, "world_size": 2})
    assert status in (200, 201), group
    # The operation waits for a rank that never comes.
    status, waited = server.call("POST", "/v1/groups/g/recv", {"cache": "c", "keys": ["ee"], "peer": 1})
    wait = f"GET /v1/transfers/{waited['transfer']}?wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    waiting = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(MAX_CONNECTIONS)]
    for peer in waiting:
        peer.sendall(wait)
    eventually(lambda: asked(server, "GET", "/v1/caches") == (503, "1"), "a refused request")
    for path in ("/healthz", "/readyz", "/metrics") * 10:
        assert asked(server, "GET", path)[0] == 200, path
    for peer in crowd + waiting:
        peer.close()
    eventually(lambda: asked(server, "GET", "/v1/caches")[0] == 200, "a response after the crowd")
    print(f"connections: {len(waiting)} wait, and more are refused")


def asked(server, method, path, body=None):
    """Returns status and Retry-After; None if the connection is not accepted."""
    connection = http.client.HTTPConnection(server.address, timeout=PATIENCE_S)
    try:
        connection.request(method, path, json.dumps(body) if body else None,
                           {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("Retry-After")
    except OSError:
        return None, None
    finally:
        connection.close()


def next_answer(stream):
    """Returns status and Retry-After of the next of several answers."""
    status = int(stream.readline().split()[1])
    headers = http.client.parse_headers(stream)
    stream.read(int(headers["Content-Length"]))
    return status, headers["Retry-After"]


def leases(server):
    held, refused = [], 0
    for _ in range(10 * MAX_LEASES):
        status, answer = server.call("POST", "/v1/caches/c/match", {"keys": ["00"], "lease_ms": 600000})
        if status == 200:
            held.append(answer["lease"])
        else:
            assert status == 429, answer
            refused += 1
    assert len(held) == MAX_LEASES, f"{len(held)} held, {refused} refused"
    assert server.call("GET", "/v1/caches/c/keys/00")[0] == 200, "a read needs no lease"
    for lease in held:
        assert server.call("DELETE", f"/v1/leases/{lease}")[0] in (200, 204)
    status, answer = server.call("POST", "/v1/caches/c/match", {"keys": ["00"], "lease_ms": 1})
    assert status == 200, answer
    print(f"leases: {len(held)} held, {refused} refused")


def transfers(server):
    keys = [f"{number:02x}" for number in range(NUM_BLOCKS)]
    outcomes = []

    body = json.dumps({"keys": keys, "to": "disk"})
    request = (f"POST /v1/caches/c/transfers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(body)}\r\n\r\n{body}").encode()

    def crowd():
        # All on one connection: the server reads them faster than it moves the first one's bytes.
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as peer:
            peer.sendall(request * (10 * MAX_TRANSFERS))
            with peer.makefile("rb") as stream:
                outcomes.extend(next_answer(stream) for _ in range(10 * MAX_TRANSFERS))
        eventually(lambda: sum(server.call("GET", "/v1/system")[1]["transfers"].values()) == 0, "the transfers' end")
        server.call("POST", "/v1/caches/c/evict", {"keys": keys, "tier": "disk"})
        return any(status == 429 for status, _ in outcomes)

    eventually(crowd, "a refused transfer")
    for status, retry_after in outcomes:
        assert status in (200, 202, 429), outcomes
        assert status != 429 or retry_after, "a 429 has no Retry-After"
    assert any(status in (200, 202) for status, _ in outcomes), outcomes
    status, answer = server.call("POST", "/v1/caches/c/transfers", {"keys": keys[:1], "to": "disk", "wait_ms": 60000})
    assert status == 200 and answer["state"] == "done", answer
    refused = sum(status == 429 for status, _ in outcomes)
    print(f"transfers: {len(outcomes) - refused} accepted, {refused} refused")


def main():
    with Folder() as folder:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        server = Server(sys.argv[1], folder, "--config", folder / "config.json", "--runtime", "host")
        tiers = {"pinned": {"num_blocks": NUM_BLOCKS}, "disk": {"num_blocks": (MAX_TRANSFERS + 1) * NUM_BLOCKS}}
        status, answer = server.call("PUT", "/v1/caches/c", {"layout": LAYOUT, "tiers": tiers})
        assert status == 201, answer
        for number in range(NUM_BLOCKS):
            assert server.call("PUT", f"/v1/caches/c/keys/{number:02x}", bytes([number]) * BLOCK_BYTES)[0] == 201
        leases(server)
        transfers(server)
        connections(server)
        for number in range(NUM_BLOCKS):
            status, data = server.call("GET", f"/v1/caches/c/keys/{number:02x}")
            assert (status, data) == (200, bytes([number]) * BLOCK_BYTES), "bytes changed under load"
        assert server.stop() == 0, server.text()


if __name__ == "__main__":
    main()
