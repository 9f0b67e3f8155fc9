"""What hints and actions are worth to agents: sessions as public traces describe them (cairn-replay --generate agents)
against a server, with the blocks loaded into the memory of a simulated engine.

First in memory alone, at three capacities, without waiting: LRU, the default order, the default order with `within_ms`
at each pause, and with a pin at each pause. Then with a disk below the same memory and the trace's own times, SPEED
times as fast: without and with a prefetch before each turn. Last, sessions that go to disk at each pause, with larger
blocks and less compressed time: there a prefetch has to make the loads of the slowest requests much faster. Takes
twelve minutes. Called by bench/run; by hand: python3 -B bench/agent_sessions.py build/release [--requests 2000]

A time is from the request to the last byte in the engine. `real` is the time of the server's calls (match and load).
`both` adds a virtual time that nobody waits for: TOKEN_US for each token that was not found, and BLOCK_US for each
block that was.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import over_http

REQUESTS = 2000
# Where an LRU finds about 30, 60 and 90% of the first 2,000 requests; of 20,000 it does at 2,000, 4,000 and 8,000.
CAPACITIES = (1450, 3250, 6700)
BLOCK_BYTES = 64 << 10
DISK_BLOCKS = 24_000  # more than the requests have
TOKEN_US = 50  # 20,000 tokens a second
BLOCK_US = 670  # 512 tokens of 64 KiB to a GPU at 50 GB/s
SPEED = 30  # half an hour of the trace in a minute
CONNECTIONS = 8
IN_MEMORY = (
    ("lru", "lru", ()),
    ("default order", "class_hazard", ()),
    ("default order, within_ms", "class_hazard", ("--actions", "within=1")),
    ("default order, pin", "class_hazard", ("--actions", "pin=1")),
)
WITH_DISK = (("disk below", ()), ("disk below, prefetch", ("--actions", "prefetch=1")))
# Sessions leave the memory when they pause, so that all that a turn finds was on disk. The memory has room for the
# prefetches of a burst in the quarter of it that they may take.
ON_DISK = {"requests": 400, "speed": 8, "block_bytes": 256 << 10, "memory_blocks": 6000}
MAX_OF_NONE = 0.3
MAX_WASTED = 0.1


def replay(build, socket, *flags):
    command = [build / "cairn-replay", "--server", f"unix:{socket}", "--json", "--generate", "agents", "--read-via", "load",
               "--device-blocks", "0", "--engine", f"token_us={TOKEN_US},block_us={BLOCK_US}", *flags]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def figures(result):
    times = result["engine_us"]
    ms = {name: {p: times[name][p] / 1e3 for p in ("p50", "p99")} for name in ("real", "both")}
    match = result["match"]
    found = {tier: match[tier] / result["blocks_asked"] for tier in ("pinned", "disk")}
    return {"hit": result["hit_rate"], "ms": ms, "found": found, "prefetched": result.get("prefetched_blocks")}


def wasted(prefetched):
    """The share of the prefetched blocks that left memory unused, by bytes too: all have one size."""
    came = sum(prefetched[word] for word in ("used", "late", "wasted"))
    return prefetched["wasted"] / came if came else 0.0


def rows_of(name, got):
    both, real = got["ms"]["both"], got["ms"]["real"]
    note = f"p50 {both['p50']:.0f} ms, p99 {both['p99']:.0f} ms; of it real {real['p50']:.1f}, {real['p99']:.1f} ms"
    if got["found"]["disk"] > 0:
        note += f"; {100 * got['found']['disk']:.0f}% from disk"
    if got["prefetched"] and got["prefetched"]["used"]:
        note += f"; {100 * wasted(got['prefetched']):.1f}% of {got['prefetched']['used']:,} prefetched wasted"
    print(f"{name}: {100 * got['hit']:.1f}% found; {note}", file=sys.stderr, flush=True)
    return [{"name": f"agents, {name}: blocks found", "value": 100 * got["hit"], "unit": "%", "target": None, "note": note}]


def measure(build, requests=REQUESTS):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        socket = folder / "socket"
        server = over_http.Server(build / "cairn-server", "0-1", folder, "--unix", socket)

        def run(*flags):
            return figures(replay(build, socket, *flags))

        with_disk = ("--connections", CONNECTIONS, "--disk-blocks", DISK_BLOCKS)
        try:
            for capacity in CAPACITIES:
                memory = ("--requests", requests, "--block-bytes", BLOCK_BYTES, "--pinned-blocks", capacity)
                for name, order, more in IN_MEMORY:
                    got = run(*memory, "--disk-blocks", 0, "--connections", 1, "--eviction", order, *more)
                    rows += rows_of(f"{capacity} blocks, {name}", got)
                for name, more in WITH_DISK:
                    rows += rows_of(f"{capacity} blocks, {name}", run(*memory, *with_disk, "--speed", SPEED, *more))
            on_disk = ("--requests", min(requests, ON_DISK["requests"]), "--block-bytes", ON_DISK["block_bytes"],
                       "--pinned-blocks", ON_DISK["memory_blocks"], *with_disk, "--speed", ON_DISK["speed"], "--actions")
            none = run(*on_disk, "demote=1")
            fetched = run(*on_disk, "demote=1,prefetch=1")
        finally:
            server.stop()
    rows += rows_of("on disk at each pause", none)
    rows += rows_of("on disk at each pause, prefetch", fetched)
    p99 = [got["ms"]["real"]["p99"] for got in (none, fetched)]
    rows.append({"name": "p99 of a load with prefetch, of that from disk (real)", "value": p99[1] / p99[0], "unit": "ratio",
                 "target": MAX_OF_NONE, "at_least": False, "note": f"{p99[1]:.1f} of {p99[0]:.1f} ms"})
    rows.append({"name": "prefetched bytes that nobody used", "value": wasted(fetched["prefetched"]), "unit": "ratio",
                 "target": MAX_WASTED, "at_least": False})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    arguments = parser.parse_args()
    for row in measure(arguments.build, arguments.requests):
        print(json.dumps(row))
