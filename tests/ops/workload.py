"""Requests to a server under test that change every series that a dashboard shows."""

import json
import subprocess
import threading

from support import PATIENCE_S

BLOCK_BYTES = 256
SHAPE = {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 8, "dtype_width_bytes": 2}


def make_cache(server, name, shared=None, **blocks):
    tiers = {tier: {"num_blocks": count} for tier, count in blocks.items()}
    if "disk" in tiers:
        tiers["disk"]["codec"] = "bytes"
    body = {"layout": SHAPE, "tiers": tiers} | ({} if shared is None else {"shared": shared})
    status, answer = server.call("PUT", f"/v1/caches/{name}", body)
    assert status == 201, answer


def store(server, cache, key, tier=None):
    path = f"/v1/caches/{cache}/keys/{key:016x}" + (f"?tier={tier}" if tier else "")
    return server.call("PUT", path, bytes(BLOCK_BYTES))[0]


def move(server, cache, keys, to, wait_ms=5000):
    return server.call("POST", f"/v1/caches/{cache}/transfers",
                       {"keys": [f"{key:016x}" for key in keys], "to": to, "wait_ms": wait_ms})


class Traffic:
    """Sends small requests of every kind, right and wrong, until it is stopped."""

    CACHE = "traffic"

    def __init__(self, server, shared=None):
        self.server = server
        make_cache(server, self.CACHE, shared, device=8, pinned=16, disk=64)
        status, joined = server.call("POST", "/v1/groups", {"name": "alone", "rank": 0, "world_size": 1})
        assert status == 201, joined
        self.ended = threading.Event()
        self.failure = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            turn = 0
            while not self.ended.is_set():
                self._turn(turn)
                turn += 1
        except Exception as failure:  # stop() raises it
            self.failure = failure

    def _turn(self, turn):
        call, path = self.server.call, f"/v1/caches/{self.CACHE}"
        first = turn % 40
        for key in range(first, first + 4):
            store(self.server, self.CACHE, key)
        keys = [f"{key:016x}" for key in range(first, first + 6)]
        call("POST", f"{path}/match", {"keys": keys, "lease_ms": 30 if turn % 2 else 0})
        # A body that is too long to be sent with its head.
        call("POST", f"{path}/match", {"keys": keys + [f"{key:064x}" for key in range(1000)], "lease_ms": 0})
        call("GET", f"{path}/keys/{keys[0]}")
        move(self.server, self.CACHE, [first], ["disk", "pinned", "device"][turn % 3])
        call("POST", f"{path}/evict", {"keys": [keys[1]], "tier": "device"})
        # Commit a key that exists, and delete another.
        status, held = call("POST", f"{path}/allocate", {"count": 1, "tier": "disk", "lease_ms": 1000})
        if status == 200:
            call("POST", f"{path}/commit", {"lease": held["lease"], "blocks": [{**held["blocks"][0], "key": keys[0]}]})
            call("DELETE", f"/v1/leases/{held['lease']}")
        call("DELETE", f"{path}/keys/{keys[2]}")
        for operation, more in (("broadcast", {"root": 0}), ("agree", {})):
            call("POST", f"/v1/groups/alone/{operation}", {"cache": self.CACHE, "keys": keys, "wait_ms": 1000, **more})
        # Refused: the key does not exist, and there is no room for that many blocks.
        call("GET", f"{path}/keys/ffff")
        call("POST", f"{path}/allocate", {"count": 1000, "tier": "pinned", "lease_ms": 100})

    def stop(self):
        self.ended.set()
        self.thread.join(PATIENCE_S)
        assert self.failure is None, f"the traffic ended with {self.failure!r}"


def replay(program, server):
    """Runs a generated workload and compares every byte."""
    done = subprocess.run([program, "--server", f"http://{server.address}", "--generate", "mixed", "--requests", "60",
                           "--connections", "2", "--block-bytes", "4096", "--device-blocks", "32",
                           "--pinned-blocks", "64", "--disk-blocks", "256", "--json"],
                          capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
