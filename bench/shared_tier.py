"""Measures blocks on their way to and from a shared store beside redis-benchmark on the same node and beside a plain
socket.

Two servers and one redis-server share the machine's cores; redis-benchmark gets as many connections as a server has for
values. Rounds in turn, medians of the ratios. Called by bench/run; by hand: python3 -B bench/shared_tier.py
build/release
"""

import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import over_http

CONNECTIONS = 2  # shared.connections
ROUNDS = 5
TOTAL_BYTES = 128 << 20
LOOK_AHEAD = 512  # keys of one match that a store is asked for
SHAPES = {
    64 << 10: {"num_layers": 4, "outer_dim": 2, "page_size": 16, "inner_dim": 256, "dtype_width_bytes": 2},
    512 << 10: {"num_layers": 16, "outer_dim": 2, "page_size": 16, "inner_dim": 512, "dtype_width_bytes": 2},
    2 << 20: {"num_layers": 32, "outer_dim": 2, "page_size": 16, "inner_dim": 1024, "dtype_width_bytes": 2},
}
PATIENCE_S = 120


class Redis:
    def __init__(self, folder):
        self.port = over_http.free_port()
        self.child = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", str(folder)],
            stdout=subprocess.DEVNULL)
        until(self._connects)

    def _connects(self):
        try:
            self._connection = socket.create_connection(("127.0.0.1", self.port))
        except ConnectionRefusedError:
            return False
        return True

    def ask(self, command):
        """The first line of the answer."""
        self._connection.sendall(command.encode() + b"\r\n")
        return self._connection.recv(4096).decode().splitlines()[0]

    def benchmark(self, size):
        """Bytes a second of SET and of GET."""
        count = max(200, TOTAL_BYTES // size)
        done = subprocess.run(["redis-benchmark", "-p", str(self.port), "-t", "set,get", "-d", str(size), "-n", str(count),
                               "-c", str(CONNECTIONS), "-r", "64", "--csv"], capture_output=True, text=True, check=True)
        rates = dict(re.findall(r'^"(SET|GET)","([0-9.]+)"', done.stdout, re.MULTILINE))
        return {name: float(rate) * size for name, rate in rates.items()}


def until(there):
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S} s")
        time.sleep(0.002)


def socket_bytes_per_s(size):
    """Of one thread that sends pieces of that size to another over the loopback interface."""
    count = TOTAL_BYTES // size
    listener = socket.create_server(("127.0.0.1", 0))
    data = bytes(size)

    def send():
        with socket.create_connection(listener.getsockname()) as out:
            for _ in range(count):
                out.sendall(data)

    began = time.perf_counter()
    sender = threading.Thread(target=send)
    sender.start()
    into = memoryview(bytearray(size))
    with listener, listener.accept()[0] as source:
        left = TOTAL_BYTES
        while left > 0:
            left -= source.recv_into(into)
    sender.join()
    return TOTAL_BYTES / (time.perf_counter() - began)


class Fleet:
    """One server stores, the other fetches."""

    def __init__(self, binary, redis, folder):
        self.redis = redis
        self.servers = []
        for name in ("one", "other"):
            home = folder / name
            home.mkdir()
            self.servers.append(over_http.Server(binary, "0-1", home, "--shared", f"redis://127.0.0.1:{redis.port}"))

    def stop(self):
        for server in self.servers:
            server.stop()

    def measure(self, size, number):
        """Bytes a second to the store and back."""
        self.redis.ask("flushall")
        count = TOTAL_BYTES // size
        keys = [f"{number:08x}{block:024x}" for block in range(count)]
        body = {"layout": SHAPES[size], "tiers": {"pinned": {"num_blocks": count}},
                "shared": {"store": "redis", "placement": "values", "write": "second_use", "namespace": str(number)}}
        caches = [f"{server.url}/v1/caches/c" for server in self.servers]
        for cache in caches:
            over_http.call(cache, "PUT", body)
        data = b"\x5a" * size
        for block, key in enumerate(keys):
            parent = f"?parent={keys[block - 1]}" if block else ""
            over_http.call(f"{caches[0]}/keys/{key}{parent}", "PUT", data, "application/octet-stream")
        put = self._timed(lambda: over_http.call(f"{caches[0]}/match", "POST", {"keys": keys, "lease_ms": 0}),
                          lambda: self.redis.ask("dbsize") == f":{count}")
        deadline = time.monotonic() + PATIENCE_S

        def fetch():
            got = 0
            # The store's word may be late on a busy machine: then a match finds nothing more, and is asked again.
            while got < count and time.monotonic() < deadline:
                body = {"keys": keys[: got + LOOK_AHEAD], "lease_ms": 0, "wait_ms": 60_000}
                got = json.loads(over_http.call(f"{caches[1]}/match", "POST", body)[0])["matched"]
            return got == count

        get = self._timed(lambda: None, fetch)
        for cache in caches:
            over_http.call(cache, "DELETE")
        return {"SET": TOTAL_BYTES / put, "GET": TOTAL_BYTES / get}

    @staticmethod
    def _timed(act, done):
        began = time.perf_counter()
        act()
        until(done)
        return time.perf_counter() - began


def measure(build):
    rows = []
    number = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        redis = Redis(folder)
        fleet = Fleet(build / "cairn-server", redis, folder)
        try:
            for size in SHAPES:
                ours, theirs, plain = [], [], []
                for _ in range(ROUNDS):
                    number += 1
                    ours.append(fleet.measure(size, number))
                    theirs.append(redis.benchmark(size))
                    plain.append(socket_bytes_per_s(size))
                for verb, what in (("SET", "to"), ("GET", "from")):
                    ratio = statistics.median(a[verb] / b[verb] for a, b in zip(ours, theirs))
                    of_plain = statistics.median(a[verb] / b for a, b in zip(ours, plain))
                    rows.append({"name": f"blocks of {size >> 10} KiB {what} a shared store, of redis-benchmark {verb}",
                                 "value": ratio, "unit": "ratio", "target": 0.90, "at_least": True,
                                 "note": f"{statistics.median(a[verb] for a in ours) / 1e9:.2f} GB/s; "
                                         f"of a plain socket {of_plain:.2f}"})
        finally:
            fleet.stop()
            redis.child.terminate()
            redis.child.wait()
    return rows


if __name__ == "__main__":
    for row in measure(pathlib.Path(sys.argv[1])):
        print(json.dumps(row))
