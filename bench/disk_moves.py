"""Measures transfers that clients wait for: onboards from disk, and allocations that wait for offloads.

Called by bench/run; by hand: python3 -B bench/disk_moves.py build/release/cairn-server
"""

import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import disk
import disk_reads
import over_http

ROUNDS = 5  # of onboards, alternating with fio; the median counts
BATCH = 64  # blocks that one request moves up
WANTED = 16  # blocks in one allocation
PINNED = 256
ALLOCATIONS = 300


class Client:
    """One persistent connection."""

    def __init__(self, url):
        self.http = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)

    def post(self, path, body):
        return json.loads(self.post_text(path, json.dumps(body)))

    def post_text(self, path, text):
        self.http.request("POST", path, text, {"Content-Type": "application/json"})
        answer = self.http.getresponse()
        body = answer.read()
        if answer.status // 100 != 2:
            raise RuntimeError(f"{path}: {answer.status} {body.decode()}")
        return body


def seconds_of(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def onboards(binary, folder):
    rows = []
    for block_bytes in disk_reads.BLOCKS:
        store = disk_reads.Disk(binary, folder / f"onboards{block_bytes}", block_bytes, {"device": {"num_blocks": BATCH}})
        try:
            client = Client(store.server.url)
            # Build the requests before the timing, and parse the answers after it.
            requests = [json.dumps({"keys": [disk_reads.key(n) for n in range(first, first + BATCH)], "to": "device",
                                    "wait_ms": 60000}) for first in range(0, store.count, BATCH)]

            def bring_all():
                began = time.perf_counter()
                answers = [client.post_text("/v1/caches/reads/transfers", request) for request in requests]
                took = time.perf_counter() - began
                for answer in answers:
                    if json.loads(answer)["state"] != "done":
                        raise RuntimeError(f"a transfer did not end: {answer}")
                return took

            yard, ours = [], []
            for number in range(-1, ROUNDS):  # the first one creates fio's file and does not count
                yardstick = disk.fio(folder, "read", min(block_bytes, disk.PIECE_BYTES))
                took = bring_all()
                if number >= 0:
                    yard.append(yardstick)
                    ours.append(store.count * block_bytes / took)
            of = disk_reads.label(block_bytes)
            rows.append(disk.row(f"onboard of {BATCH} blocks of {of} from disk to a device, of fio at depth {disk.DEPTH}",
                                 statistics.median(ours) / statistics.median(yard), 0.90,
                                 note=f"fio {statistics.median(yard) / 1e6:.0f} MB/s, Cairn {statistics.median(ours) / 1e6:.0f} MB/s"))
        finally:
            store.server.stop()
    return rows


def allocations(binary, folder):
    """Measures an allocation that waits until as many blocks are written to disk: alone, and with 64 readers of
    the disk."""
    block_bytes = 64 << 10
    store = disk_reads.Disk(binary, folder / "allocations", block_bytes, {"pinned": {"num_blocks": PINNED}},
                            spare_blocks=PINNED + (1 + 2 * ALLOCATIONS) * WANTED)
    rows, made = [], 0
    try:
        client = Client(store.server.url)

        def allocate():
            nonlocal made
            given = {}
            took = seconds_of(lambda: given.update(client.post(
                "/v1/caches/reads/allocate", {"count": WANTED, "tier": "pinned"})))
            blocks = [{**at, "key": f"a{made + i:015x}"} for i, at in enumerate(given["blocks"])]
            client.post("/v1/caches/reads/commit", {"lease": given["lease"], "blocks": blocks, "release": True})
            made += WANTED
            return took

        for _ in range(PINNED // WANTED):  # fills the tier; no block is on disk yet
            allocate()
        for readers, name in ((0, "alone"), (64, "beside 64 readers of the disk")):
            load = store.wrk(readers, 3600) if readers else None
            try:
                if load:
                    time.sleep(1)
                times = sorted(allocate() for _ in range(ALLOCATIONS))
            finally:
                if load:
                    load.kill()
                    load.wait()
            rows.append({"name": f"p99 of an allocation of {WANTED} blocks of 64 KiB that waits for offloads, {name}",
                         "value": times[len(times) * 99 // 100] * 1e3, "unit": "ms", "target": None,
                         "note": f"p50 {times[len(times) // 2] * 1e3:.2f}, most {times[-1] * 1e3:.2f}"})
    finally:
        store.server.stop()
    return rows


def measure(binary):
    with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=pathlib.Path.cwd()) as name:
        folder = pathlib.Path(name)
        return onboards(binary, folder) + allocations(binary, folder)


if __name__ == "__main__":
    for found in measure(sys.argv[1]):
        print(found["name"], f"{found['value']:.3g}", found["unit"], found["note"])
