#!/usr/bin/env python3
"""vLLM on the CPU with blocks on a slow disk: the time to the first token of an engine that decides by itself, of
one that loads everything it finds, and of one that computes everything. The three take turns in the same run, and
the median of each counts. Prints a JSON line for each speed of the disk and each length of a prompt.

usage: load_or_compute.py PYTHON_WITH_ENGINES CAIRN_SERVER DISK_FAULTS_LIBRARY [--smollm2] [MB_PER_S...]
       (default: 50 5)

--smollm2: SmolLM2-135M in bf16 instead of a small model with random weights. The library is libcairn_disk_faults.so of tests/crash.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python/tests/engines"), str(ROOT / "python/tests"), str(ROOT / "python/src")]

from rig import Engine, connector, make_model, prompt  # noqa: E402
from smollm2 import model_of  # noqa: E402

from server import Server  # noqa: E402

LAYERS, HIDDEN = 4, 256
BLOCK_TOKENS = 32
OPTIONS: dict[str, Any] = {"dtype": "float32", "block_size": BLOCK_TOKENS, "max_model_len": 8192}
LENGTHS = (500, 1000, 2000, 4000, 8000)
# The larger model computes longer.
SMOLLM2_LENGTHS = LENGTHS[:-1]
# The first rounds teach the engine that decides, and do not count.
LEARN, ROUNDS = 2, 5
SIZES = {"cairn.pinned_bytes": 0, "cairn.disk_bytes": 1 << 30}
TARGET = 1.1


def main() -> None:
    os.environ["CAIRN_ENGINE_PYTHON"], os.environ["CAIRN_SERVER_BINARY"] = sys.argv[1:3]
    library, more = Path(sys.argv[3]).resolve(), sys.argv[4:]
    is_smollm2 = "--smollm2" in more
    rates = [float(one) for one in more if one != "--smollm2"] or [50.0, 5.0]
    options = OPTIONS | ({"dtype": "bfloat16"} if is_smollm2 else {})
    lengths = SMOLLM2_LENGTHS if is_smollm2 else LENGTHS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cairn-engines-")))
        model = model_of(sys.argv[1]) if is_smollm2 else make_model(folder / "tiny", LAYERS, HIDDEN)
        server = Server("--disk-engine", "threads")
        stack.callback(server.close)
        ways = {
            "computes": connector(server.unix, "kv_producer", **SIZES),
            "loads": connector(server.unix, **SIZES, **{"cairn.load": "always"}),
            "decides": connector(server.unix, **SIZES),
        }
        engines = {way: Engine(model, folder / f"{way}.log", kv, **options) for way, kv in ways.items()}
        for engine in engines.values():
            stack.callback(engine.close)
            engine.started()
        prompts = {length: prompt(length, length) for length in lengths}
        right = {length: engines["computes"].generate(one)["tokens"] for length, one in prompts.items()}
        server.until_stored(sum(length // BLOCK_TOKENS for length in lengths), "disk")
        for mb_per_s in rates:
            slow = {
                "LD_PRELOAD": str(library),
                "CAIRN_FAULTS_UNDER": str(server.folder),
                "CAIRN_FAULTS_READ_BYTES_PER_S": str(int(mb_per_s * 1e6)),
            }
            server.kill()
            with mock.patch.dict(os.environ, slow):
                server.start()
            for line in measure(engines, prompts, right):
                print(json.dumps({"disk_mb_s": mb_per_s, **line}), flush=True)


def measure(
    engines: dict[str, Engine], prompts: dict[int, list[int]], right: dict[int, list[list[int]]]
) -> list[dict[str, Any]]:
    ways = list(engines)
    times: dict[tuple[str, int], list[float]] = {(way, length): [] for way in ways for length in prompts}
    loaded: dict[int, list[bool]] = {length: [] for length in prompts}
    for turn in range(LEARN + ROUNDS):
        for length, one in prompts.items():
            for way in (*ways[turn % 3 :], *ways[: turn % 3]):
                answer = engines[way].generate(one, forget=True)
                assert answer["tokens"] == right[length], f"{way}: other tokens after {length}"
                print(turn, length, way, answer["first_s"][0], answer["cached"][0], file=sys.stderr, flush=True)
                if turn >= LEARN:
                    times[way, length].append(answer["first_s"][0])
                    if way == "decides":
                        loaded[length].append(answer["cached"][0] > length // 2)
    lines = []
    for length in prompts:
        seconds = {way: statistics.median(times[way, length]) for way in ways}
        ratio = seconds["decides"] / min(seconds["loads"], seconds["computes"])
        shown = {f"{way}_s": round(one, 3) for way, one in seconds.items()}
        share = sum(loaded[length]) / ROUNDS
        lines.append({"tokens": length, **shown, "loaded": share, "ratio": round(ratio, 3), "target": TARGET})
    return lines


if __name__ == "__main__":
    main()
