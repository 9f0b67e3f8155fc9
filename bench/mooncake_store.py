"""Measures Mooncake Store's TCP path, to compare with bench/shared_tier.py: one process lends memory, another puts
blocks there and gets them back, all blocks of a round in one call. Rounds alternate; medians count. By hand, with
the Python of an environment that has mooncake-transfer-engine-non-cuda:

    python3 -B bench/mooncake_store.py PYTHON [ROUNDS]
"""

import ctypes
import json
import mmap
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import over_http
import shared_tier

BUFFER_BYTES = 16 << 20


def connect(master, lent_bytes):
    # Only the Python of these two processes has it.
    from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415

    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", lent_bytes, BUFFER_BYTES, "tcp", "", master)
    if code != 0:
        raise RuntimeError(f"the store is not reached: {code}")
    return store


def lend(master):
    store = connect(master, 8 * shared_tier.TOTAL_BYTES)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


def work(master):
    """Reads a block size from each line and runs a round with it."""
    store = connect(master, 0)
    memory = mmap.mmap(-1, shared_tier.TOTAL_BYTES)
    memory[:] = b"\x5a" * shared_tier.TOTAL_BYTES
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if store.register_buffer(at, shared_tier.TOTAL_BYTES) != 0:
        raise RuntimeError("the memory is not registered")
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        size = int(line)
        places = [at + offset for offset in range(0, shared_tier.TOTAL_BYTES, size)]
        keys = [f"{number}-{place}" for place in places]
        sizes = [size] * len(keys)
        began = time.perf_counter()
        stored = store.batch_put_from(keys, places, sizes)
        between = time.perf_counter()
        got = store.batch_get_into(keys, places, sizes)
        ended = time.perf_counter()
        if any(stored) or got != sizes:
            raise RuntimeError("not all came")
        store.remove_all()
        taken = {"SET": between - began, "GET": ended - between}
        print(json.dumps({verb: shared_tier.TOTAL_BYTES / seconds for verb, seconds in taken.items()}), flush=True)


class Mooncake:
    """Mooncake's master, the process that lends memory, and the process that puts and gets."""

    def __init__(self, python, folder):
        home = pathlib.Path(python).parent
        port, metrics = over_http.free_port(), over_http.free_port()
        self._log = open(folder / "mooncake.log", "w")  # noqa: SIM115
        master = f"127.0.0.1:{port}"
        command = [home / "mooncake_master", f"--rpc_port={port}", f"--metrics_port={metrics}"]
        self._children = [subprocess.Popen(command, stdout=self._log, stderr=self._log)]
        time.sleep(2)
        for role in ("lend", "work"):
            self._children.append(subprocess.Popen([python, __file__, role, master], stdin=subprocess.PIPE,
                                                   stdout=subprocess.PIPE, stderr=self._log, text=True))
            self._line(lambda line: line == "ready\n")

    def _line(self, wanted):
        for line in self._children[-1].stdout:
            if wanted(line):
                return line
        raise RuntimeError("Mooncake Store ended")

    def measure(self, size):
        self._children[-1].stdin.write(f"{size}\n")
        self._children[-1].stdin.flush()
        return json.loads(self._line(lambda line: line.startswith("{")))

    def stop(self):
        for child in reversed(self._children):
            child.terminate()
            child.wait()
        self._log.close()


def tell(size, what, rates):
    medians = [f"{who} {statistics.median(all_) / 1e9:.2f}" for who, all_ in rates.items()]
    print(f"{size >> 10} KiB {what}, GB/s: " + ", ".join(medians), flush=True)


def compare(python, rounds):
    build = pathlib.Path(__file__).parents[1] / "build/release"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        redis = shared_tier.Redis(folder)
        fleet = shared_tier.Fleet(build / "cairn-server", redis, folder)
        mooncake = Mooncake(python, folder)
        number = 0
        try:
            for size in shared_tier.SHAPES:
                told = {"cairn": [], "redis-benchmark": [], "mooncake": []}
                plain, holders = [], []
                for _ in range(rounds):
                    number += 2
                    ours = fleet.measure(size, number)
                    told["cairn"].append({verb: ours[verb]["rate"] for verb in ours})
                    told["redis-benchmark"].append(redis.benchmark(size))
                    told["mooncake"].append(mooncake.measure(size))
                    plain.append(shared_tier.socket_bytes_per_s(size))
                    holders.append(fleet.measure_holders(size, number + 1)[0])
                for verb, what in (("SET", "put"), ("GET", "get")):
                    tell(size, what, {who: [each[verb] for each in rounds_] for who, rounds_ in told.items()})
                tell(size, "from another", {"cairn with holders": holders, "a plain socket": plain})
        finally:
            mooncake.stop()
            fleet.stop()
            redis.child.terminate()
            redis.child.wait()


if __name__ == "__main__":
    if sys.argv[1] == "lend":
        lend(sys.argv[2])
    elif sys.argv[1] == "work":
        work(sys.argv[2])
    else:
        compare(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
