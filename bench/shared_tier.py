"""Compares transfers of blocks to and from a shared store with redis-benchmark on the same node and with a plain
socket.

Two servers and one redis-server share the machine's cores. redis-benchmark gets as many connections as a server
has for values and does the same work: the same number of new values into an empty store, and of different values
out of it. (By default it writes 64 names repeatedly and reads them from the processor's cache; the note has that
figure too.) Rounds alternate; medians of the ratios count. Called by bench/run; by hand: python3 -B
bench/shared_tier.py build/release
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
ROUNDS = 9
TOTAL_BYTES = 128 << 20
LOOK_AHEAD = 512  # the most keys that one match looks up in a store
SHAPES = {
    64 << 10: {"num_layers": 4, "outer_dim": 2, "page_size": 16, "inner_dim": 256, "dtype_width_bytes": 2},
    512 << 10: {"num_layers": 16, "outer_dim": 2, "page_size": 16, "inner_dim": 512, "dtype_width_bytes": 2},
    2 << 20: {"num_layers": 32, "outer_dim": 2, "page_size": 16, "inner_dim": 1024, "dtype_width_bytes": 2},
}
PATIENCE_S = 120
# The deadline is long because this measures bytes: on two busy cores the store may answer a match too late, and
# the server would then fetch nothing for 50 ms.
MATCH_DEADLINE_US = 100_000


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
        """Sends a command and returns the first line of the answer."""
        self._connection.sendall(command.encode() + b"\r\n")
        return self._connection.recv(4096).decode().splitlines()[0]

    def blocks(self):
        """The number of names that are blocks. With `holders`, servers are names too and are not counted."""
        return int(self.ask("eval \"return redis.call('dbsize') - #redis.call('keys', 'cairn-server:*')\" 0")[1:])

    def fill(self, size):
        """Stores a round's number of values, under the names that redis-benchmark uses."""
        value = b"\x5a" * size
        for number in range(TOTAL_BYTES // size):
            name = f"key:{number:012d}".encode()
            self._connection.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" %
                                     (len(name), name, size, value))
            assert self._connection.recv(16) == b"+OK\r\n"

    def benchmark(self, size):
        """Bytes per second of SET and of GET, with new values and different ones."""
        count = TOTAL_BYTES // size
        self.ask("flushall")
        # With this many names, hardly any is drawn twice.
        rates = {"SET": self._rate(size, count, "-r", str(10**9), "-t", "set")}
        self.ask("flushall")
        self.fill(size)
        rates["GET"] = self._rate(size, count, "-r", str(count), "-t", "get")
        return rates

    def usual_benchmark(self, size):
        """The same with 64 names, whose values fit into a processor's cache."""
        count = max(200, TOTAL_BYTES // size)
        return {verb: self._rate(size, count, "-r", "64", "-t", verb.lower()) for verb in ("SET", "GET")}

    def _rate(self, size, count, *words):
        done = subprocess.run(["redis-benchmark", "-p", str(self.port), "-d", str(size), "-n", str(count), "-c",
                               str(CONNECTIONS), "--csv", *words], capture_output=True, text=True, check=True)
        return float(re.findall(r'^"(?:SET|GET)","([0-9.]+)"', done.stdout, re.MULTILINE)[0]) * size


def until(there):
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S} s")
        time.sleep(0.002)


def socket_bytes_per_s(size):
    """The speed of one thread that sends pieces of that size to another over the loopback interface."""
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


def keys_of(size, number):
    return [f"{number:08x}{block:024x}" for block in range(TOTAL_BYTES // size)]


class Fleet:
    """Two servers: one stores, the other fetches."""

    def __init__(self, binary, redis, folder):
        self.redis = redis
        self.folder = folder
        self.servers = []
        for name in ("one", "other"):
            home = folder / name
            home.mkdir()
            config = home / "config.json"
            config.write_text(json.dumps({"shared": {"match_deadline_us": MATCH_DEADLINE_US}}))
            self.servers.append(over_http.Server(binary, "0-1", home, "--config", config, "--shared",
                                                 f"redis://127.0.0.1:{redis.port}"))

    def stop(self):
        for server in self.servers:
            server.stop()

    def measure(self, size, number):
        """Measures storing blocks and fetching them."""
        keys = keys_of(size, number)
        caches = self._make(size, len(keys), {"placement": "values", "write": "second_use", "namespace": str(number)})
        self._put(caches[0], keys, size)
        self.redis.ask("flushall")
        puts = self._timed(0, lambda: self._store(caches[0], keys))
        gets = self._timed(1, lambda: self._fetch(caches[1], keys))
        self._drop(caches)
        return {"SET": puts, "GET": gets}

    def measure_holders(self, size, number):
        """Bytes per second from one server's tier into the other's, and of reading the same blocks over HTTP."""
        keys = keys_of(size, number)
        self.redis.ask("flushall")
        caches = self._make(size, len(keys), {"placement": "holders", "namespace": str(number)})
        self._put(caches[0], keys, size)
        until(lambda: self.redis.blocks() == len(keys))
        fetched = self._timed(1, lambda: self._fetch(caches[1], keys))
        read = self._read(caches[0], keys, size)
        self._drop(caches)
        return fetched["rate"], read

    def _make(self, size, count, shared):
        caches = [f"{server.url}/v1/caches/c" for server in self.servers]
        for cache in caches:
            over_http.call(cache, "PUT", {"layout": SHAPES[size], "tiers": {"pinned": {"num_blocks": count}},
                                          "shared": {"store": "redis", **shared}})
        return caches

    @staticmethod
    def _put(cache, keys, size):
        for block, key in enumerate(keys):
            parent = f"?parent={keys[block - 1]}" if block else ""
            over_http.call(f"{cache}/keys/{key}{parent}", "PUT", b"\x5a" * size, "application/octet-stream")

    @staticmethod
    def _drop(caches):
        for cache in caches:
            over_http.call(cache, "DELETE")

    def _read(self, cache, keys, size):
        """Reads with wrk, with as many connections as a server has to another, one key after the other."""
        script = self.folder / "keys.lua"
        script.write_text("local at, paths = 0, {}\n" + "".join(f'paths[#paths + 1] = "/v1/caches/c/keys/{key}"\n' for key in keys)
                          + "request = function() at = at % #paths + 1; return wrk.format('GET', paths[at]) end\n")
        done = subprocess.run(["wrk", "-t1", f"-c{CONNECTIONS}", "-d1s", "-s", str(script), cache], capture_output=True,
                              text=True, check=True)
        return float(re.findall(r"Requests/sec:\s*([0-9.]+)", done.stdout)[0]) * size

    def _store(self, cache, keys):
        over_http.call(f"{cache}/match", "POST", {"keys": keys, "lease_ms": 0})
        until(lambda: self.redis.blocks() == len(keys))

    @staticmethod
    def _fetch(cache, keys):
        got = 0
        deadline = time.monotonic() + PATIENCE_S
        # On a busy machine the store may answer late; the match then finds no further blocks and is repeated.
        while got < len(keys):
            body = {"keys": keys[: got + LOOK_AHEAD], "lease_ms": 0, "wait_ms": 60_000}
            got = json.loads(over_http.call(f"{cache}/match", "POST", body)[0])["matched"]
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {PATIENCE_S} s")

    def _timed(self, server, act):
        """Returns bytes per second, and the processor time of the server and of the store for each MiB."""
        pids = (self.servers[server].process.pid, self.redis.child.pid)
        before = [over_http.cpu_seconds(pid) for pid in pids]
        began = time.perf_counter()
        act()
        rate = TOTAL_BYTES / (time.perf_counter() - began)
        used = [over_http.cpu_seconds(pid) - b for pid, b in zip(pids, before)]
        return {"rate": rate, "cpu_us_mib": [1e6 * seconds / (TOTAL_BYTES >> 20) for seconds in used]}


def holders_row(fleet, size, number):
    rounds = [fleet.measure_holders(size, 1_000 + number + each) for each in range(ROUNDS)]
    return {"name": f"blocks of {size >> 10} KiB from another server, of its own HTTP read",
            "value": statistics.median(fetched / read for fetched, read in rounds), "unit": "ratio", "target": 0.90,
            "at_least": True, "note": f"{statistics.median(fetched for fetched, _ in rounds) / 1e9:.2f} GB/s"}


def hiredis_row(build, redis, size):
    """The cost of letting hiredis read values, which copies each of them twice."""
    out = subprocess.run([build / "cairn-bench-store", str(redis.port), str(size), str(TOTAL_BYTES // size)],
                         capture_output=True, text=True, check=True).stdout
    rounds = {which: [(float(rate), float(cpu)) for name, rate, cpu in map(str.split, out.splitlines()) if name == which]
              for which in ("ours", "hiredis")}
    medians = {which: [statistics.median(part) for part in zip(*each)] for which, each in rounds.items()}
    return {"name": f"GET of {size >> 10} KiB, one at a time, of hiredis' own", "unit": "ratio", "target": None,
            "value": statistics.median(a[0] / b[0] for a, b in zip(rounds["ours"], rounds["hiredis"])),
            "note": f"processor time a MiB {medians['ours'][1]:.0f} us, hiredis' {medians['hiredis'][1]:.0f} us"}


def measure(build):
    rows = []
    number = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        redis = Redis(folder)
        fleet = Fleet(build / "cairn-server", redis, folder)
        try:
            for size in SHAPES:
                ours, theirs, usual, plain = [], [], [], []
                for _ in range(ROUNDS):
                    number += 1
                    ours.append(fleet.measure(size, number))
                    theirs.append(redis.benchmark(size))
                    usual.append(redis.usual_benchmark(size))
                    plain.append(socket_bytes_per_s(size))
                rows.append(holders_row(fleet, size, number))
                for verb, what in (("SET", "to"), ("GET", "from")):
                    rates = [each[verb]["rate"] for each in ours]
                    of_same = statistics.median(a / b[verb] for a, b in zip(rates, theirs))
                    of_usual = statistics.median(a / b[verb] for a, b in zip(rates, usual))
                    of_plain = statistics.median(a / b for a, b in zip(rates, plain))
                    cpu = [statistics.mean(each[verb]["cpu_us_mib"][i] for each in ours) for i in (0, 1)]
                    rows.append({"name": f"blocks of {size >> 10} KiB {what} a shared store, of redis-benchmark {verb}",
                                 "value": of_same, "unit": "ratio", "target": 0.90, "at_least": True,
                                 "note": f"{statistics.median(rates) / 1e9:.2f} GB/s; of 64 values again and again "
                                         f"{of_usual:.2f}; of a plain socket {of_plain:.2f}; processor time a MiB "
                                         f"{cpu[0]:.0f} us here, {cpu[1]:.0f} us in the store"})
                rows.append(hiredis_row(build, redis, size))
        finally:
            fleet.stop()
            redis.child.terminate()
            redis.child.wait()
    return rows


if __name__ == "__main__":
    for row in measure(pathlib.Path(sys.argv[1])):
        print(json.dumps(row))
