"""Measures an engine's loads into its own memory, compared with its own memcpy of the same pieces.

The engine (examples/agent.cpp) and the server are separate processes; whole requests are timed. Called by
bench/run; by hand: python3 -B bench/agents.py build/release
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import over_http

BLOCKS, ROUNDS = 1000, 25
# Blocks of 64 KiB in 16 layers of 4 KiB, and of 256 KiB in 32 layers of 8 KiB.
SHAPES = (
    {"num_layers": 16, "outer_dim": 2, "page_size": 16, "inner_dim": 64, "dtype_width_bytes": 2},
    {"num_layers": 32, "outer_dim": 2, "page_size": 16, "inner_dim": 128, "dtype_width_bytes": 2},
)


def block_bytes(shape):
    size = 1
    for extent in shape.values():
        size *= extent
    return size


def measure(build):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        socket = folder / "socket"
        server = over_http.Server(build / "cairn-server", "0-1", folder, "--unix", socket)
        try:
            for shape in SHAPES:
                size = block_bytes(shape)
                cache = f"{server.url}/v1/caches/agents"
                over_http.call(cache, "PUT", {"layout": shape, "tiers": {"pinned": {"num_blocks": BLOCKS}}})
                out = subprocess.run([build / "cairn-example-agent", f"unix:{socket}", "agents", "bench", str(BLOCKS),
                                      str(ROUNDS)], capture_output=True, text=True, check=True)
                told = json.loads(out.stdout)
                rows.append({"name": f"load {BLOCKS} blocks of {size // 1024} KiB into an engine's layers, of its memcpy",
                             "value": told["of_memcpy"], "unit": "ratio", "target": 0.90, "at_least": True,
                             "note": f"{told['gb_per_s']:.2f} GB/s"})
                over_http.call(cache, "DELETE")
        finally:
            server.stop()
    return rows


if __name__ == "__main__":
    for row in measure(pathlib.Path(sys.argv[1])):
        print(json.dumps(row))
