#!/usr/bin/env python3
"""vLLM on the CPU: the time to the first token of prompts that another process computed, and the throughput of
prompts that nobody computed. Each alternates with its yardstick in the same run. Prints a JSON line for each
figure.

usage: vllm.py PYTHON_WITH_ENGINES CAIRN_SERVER [first_token] [throughput] [lmcache]   (default: all)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python/tests/engines"), str(ROOT / "python/tests"), str(ROOT / "python/src")]

from rig import Engine, connector, make_model, prompt, python  # noqa: E402

from server import Server  # noqa: E402

LAYERS, HIDDEN = 8, 512
BLOCK_TOKENS = 128  # vLLM's default on a CPU
OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "block_size": BLOCK_TOKENS, "max_model_len": 4096}
PROMPT_TOKENS = 3000
# For each kind. With the engine's two processes and the server on two cores, one in four takes three times as
# long, whether cold, loaded or warm; so a median of 5 is sometimes one of those.
PROMPTS = 15
SETTLE_S = 0.2  # time to finish the previous request's saves
SIZES = {"cairn.pinned_bytes": 1 << 30}
new_seed = itertools.count(1000).__next__  # the seed of a prompt that no engine has seen

THROUGHPUT_TOKENS, THROUGHPUT_AT_ONCE, THROUGHPUT_ROUNDS = 500, 4, 10
# Two processes of the same engine without a connector differ in speed by up to a tenth for their whole life,
# because of how the start allocates pages and caches. So the result is the median over several starts.
THROUGHPUT_STARTS = 7
# Both engines get huge pages from malloc if the system has them. Otherwise only one of the two might have its
# weights on huge pages by chance, which gains more than the connector costs.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

LMCACHE_START_S = 120


def main() -> None:
    os.environ["CAIRN_ENGINE_PYTHON"], os.environ["CAIRN_SERVER_BINARY"] = sys.argv[1:3]
    wanted = sys.argv[3:] or ["first_token", "throughput", "lmcache"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cairn-engines-")))
        model = make_model(folder / "tiny", LAYERS, HIDDEN)
        server = Server()
        stack.callback(server.close)
        ours = connector(server.unix, **SIZES)
        first = None
        if "first_token" in wanted or "lmcache" in wanted:
            first = first_token(model, folder, "cairn", ours)
            say("first token in a new process, of cold", first["new"] / first["cold"], "<= 0.12", first)
            say("first token in a new process, of vLLM's own warm", first["new"] / first["warm"], "<= 1.3", first)
        if "lmcache" in wanted:
            assert first is not None
            with ExitStack() as other:
                theirs = first_token(model, folder, "lmcache", lmcache(folder, other))
            say("first token in a new process, of LMCache's", first["new"] / theirs["new"], "<= 0.5", theirs)
        if "throughput" in wanted:
            throughput(model, folder, ours)


def say(what: str, ratio: float, target: str, figures: dict[str, float]) -> None:
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({"what": what, "ratio": round(ratio, 3), "target": target, **rounded}), flush=True)


def first_token(model: Path, folder: Path, name: str, kv: dict[str, Any]) -> dict[str, float]:
    """Returns medians of the seconds to the first token: cold, in a new process, and a second time in that
    process."""
    known = [prompt(seed, PROMPT_TOKENS) for seed in range(PROMPTS)]
    unknown = [prompt(100 + seed, PROMPT_TOKENS) for seed in range(PROMPTS)]
    first = Engine(model, folder / f"{name}-1.log", kv, **OPTIONS).started()
    computed = [first.generate(one)["tokens"] for one in known]
    time.sleep(5)  # time to finish the saves
    first.kill()
    second = Engine(model, folder / f"{name}-2.log", kv, **OPTIONS).started()
    second.generate(prompt(99, 200))  # warms the engine up
    times: dict[str, list[float]] = {"cold": [], "new": [], "warm": []}
    same = 0
    for one, other, tokens in zip(known, unknown, computed, strict=True):
        answers = {}
        for kind, asked in (("cold", other), ("new", one), ("warm", one)):
            time.sleep(SETTLE_S)
            answer = second.generate(asked)
            times[kind].append(answer["first_s"][0])
            found = answer["cached"][0]
            assert (found >= PROMPT_TOKENS * 4 // 5) == (kind != "cold"), f"{kind}: {found} tokens were found"
            answers[kind] = answer["tokens"]
        # vLLM's own cache is the yardstick: in 16 bits, a prompt that is computed in other pieces may end in another
        # token where two are nearly equal, with Cairn as without it.
        assert answers["new"] == answers["warm"], "other tokens than from vLLM's own cache"
        same += answers["new"] == tokens
    assert same >= PROMPTS - 1, f"{PROMPTS - same} prompts have other tokens than computed ones"
    second.close()
    return {kind: statistics.median(seconds) for kind, seconds in times.items()}


def lmcache(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Starts LMCache's own server and returns its connector's configuration."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(str(Path(python()).parent / "lmcache"), "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--l1-size-gb", "1", "--eviction-policy", "LRU", "--chunk-size", "256"),
        *("--supported-transfer-mode", "auto"),
    ]
    log = folder / "lmcache-server.log"
    with open(log, "wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out)
    stack.callback(child.wait)
    stack.callback(child.kill)
    deadline = time.monotonic() + LMCACHE_START_S
    while "erver is running" not in log.read_text() and "ready" not in log.read_text():
        if child.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"LMCache's server did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.5)
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port},
    }


def throughput(model: Path, folder: Path, kv: dict[str, Any]) -> None:
    starts = [throughput_of_a_start(model, folder, kv, f"start-{number}") for number in range(THROUGHPUT_STARTS)]
    # Other load on the machine changes the speed by the second, but the processor time much less.
    for kind, what in (
        ("wall", "throughput without a hit, of vLLM's without a connector"),
        ("cpu", "the same by processor time"),
    ):
        ratios = sorted(ratio_of(start[kind]) for start in starts)
        plain, cairn = zip(*(tokens_a_second(start[kind]) for start in starts), strict=True)
        figures = {"plain": statistics.median(plain), "cairn": statistics.median(cairn)}
        figures |= {f"start_{number}": ratio for number, ratio in enumerate(ratios)}
        say(what, statistics.median(ratios), ">= 0.97", figures)


def throughput_of_a_start(model: Path, folder: Path, kv: dict[str, Any], name: str) -> dict[str, list[list[float]]]:
    """Returns seconds and processor seconds of each round, without a connector and with it."""
    engines = [
        Engine(model, folder / f"{name}-plain.log", environment=HUGE_PAGES, **OPTIONS).started(),
        Engine(model, folder / f"{name}-cairn.log", kv, environment=HUGE_PAGES, **OPTIONS).started(),
    ]
    wall: list[list[float]] = [[], []]
    cpu: list[list[float]] = [[], []]
    for number in range(-1, THROUGHPUT_ROUNDS):  # the first one warms the engine up
        prompts = [prompt(new_seed(), THROUGHPUT_TOKENS) for _ in range(THROUGHPUT_AT_ONCE)]
        for which in (0, 1) if number % 2 else (1, 0):
            before = cpu_seconds(engines[which])
            seconds = engines[which].generate(*prompts, max_tokens=16)["seconds"]
            if number >= 0:
                wall[which].append(seconds)
                cpu[which].append(cpu_seconds(engines[which]) - before)
    for engine in engines:
        engine.close()
    return {"wall": wall, "cpu": cpu}


def ratio_of(times: Sequence[Sequence[float]]) -> float:
    return statistics.median(plain / ours for plain, ours in zip(*times, strict=True))


def tokens_a_second(times: Sequence[Sequence[float]]) -> list[float]:
    """Returns tokens per second, without a connector and with it."""
    return [THROUGHPUT_AT_ONCE * (THROUGHPUT_TOKENS + 16) / statistics.median(one) for one in times]


def cpu_seconds(engine: Engine) -> float:
    """The processor time of all the engine's processes, which form one session."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended in the meantime
            fields = process.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == engine.child.pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
