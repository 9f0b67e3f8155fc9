#!/usr/bin/env python3
"""The example engines in C++ and Python share blocks through mapped memory: one reads in place what the other
writes in place, and every byte is compared with the server's answer over HTTP. The engine that registers its own
memory gets blocks copied there; killed in the middle it leaves nothing behind.

usage: examples_test.py CAIRN_SERVER CAIRN_EXAMPLE_ENGINE CAIRN_EXAMPLE_AGENT
"""

import json
import pathlib
import subprocess
import sys

from support import PATIENCE_S, ROOT, Folder, Server, eventually

sys.path.insert(0, str(ROOT / "examples"))
import engine  # noqa: E402

SHAPE = {"num_layers": 3, "outer_dim": 2, "page_size": 4, "inner_dim": 16, "dtype_width_bytes": 2}
PIECE_BYTES = 4 * 16 * 2
BLOCKS = 7
TIERS = {
    "contiguous": {"num_blocks": 64, "layout": "fully_contiguous"},
    "layers": {"num_blocks": 64, "layout": "layer_separate", "block_dim": "second"},
}


def run(server, command, cache, first, prompts, url=None):
    done = subprocess.run([*command, url or f"http://{server.address}", cache, str(first), str(prompts), str(BLOCKS)],
                          capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def expected_block(prompt, index):
    words = SHAPE["num_layers"] * SHAPE["outer_dim"] * PIECE_BYTES // 8
    return engine.words(prompt, index, 0, words)


def check_bytes(server, cache, prompts):
    for prompt in prompts:
        for index in range(BLOCKS):
            status, data = server.call("GET", f"/v1/caches/{cache}/keys/{prompt:016x}{index:016x}")
            assert status == 200 and data == expected_block(prompt, index), f"prompt {prompt}, block {index}"


def check_cache(server, cpp, python, cache, tier):
    status, answer = server.call("PUT", f"/v1/caches/{cache}", {
        "layout": SHAPE, "tiers": {"pinned": tier, "disk": {**tier, "num_blocks": 256}}})
    assert status == 201, answer
    nothing = {"read_in_place": 0, "read_over_http": 0, "written": 0, "duplicates": 0, "wrong_bytes": 0}
    first = run(server, cpp, cache, 0, 3)
    assert first == {**nothing, "written": 3 * BLOCKS}, first
    second = run(server, python, cache, 1, 3)
    assert second == {**nothing, "read_in_place": 2 * BLOCKS, "written": BLOCKS}, second
    third = run(server, cpp, cache, 0, 4)
    assert third == {**nothing, "read_in_place": 4 * BLOCKS}, third
    check_bytes(server, cache, range(4))
    # Blocks moved out of memory are read over HTTP.
    keys = [f"{2:016x}{index:016x}" for index in range(BLOCKS)]
    status, moved = server.call("POST", f"/v1/caches/{cache}/transfers",
                                {"keys": keys, "to": "disk", "mode": "move", "wait_ms": 60_000})
    assert status == 200 and moved["state"] == "done", moved
    # The server drops a copy that is being read after the read.
    look = {"keys": keys, "lease_ms": 0}
    eventually(lambda: all(block["tier"] == "disk" for block in
                           server.call("POST", f"/v1/caches/{cache}/match", look)[1]["blocks"]), "the moves' end")
    for command in (cpp, python):
        mixed = run(server, command, cache, 1, 2)
        assert mixed == {**nothing, "read_in_place": BLOCKS, "read_over_http": BLOCKS}, mixed
    # More prompts than fit in memory: the oldest go to disk and come back correctly.
    for command, prompts in ((python, range(10, 18)), (cpp, range(18, 26))):
        many = run(server, command, cache, prompts[0], len(prompts))
        assert many["written"] == len(prompts) * BLOCKS and many["wrong_bytes"] == 0, many
        check_bytes(server, cache, prompts)
    status, shown = server.call("GET", f"/v1/caches/{cache}")
    assert shown["leases"] == 0 and shown["tiers"]["pinned"]["blocks"]["allocated"] == 0, shown


def check_other_namespace(server, cpp, python, socket):
    """Over the Unix socket the server sends the memory's open file, so it can be mapped where its path is not
    valid."""
    status, answer = server.call("PUT", "/v1/caches/passed", {"layout": SHAPE, "tiers": {"pinned": TIERS["layers"]}})
    assert status == 201, answer
    nothing = {"read_in_place": 0, "read_over_http": 0, "written": 0, "duplicates": 0, "wrong_bytes": 0}
    probe = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True)
    elsewhere = ["unshare", "--pid", "--fork", "--mount-proc"] if probe.returncode == 0 else []
    written = run(server, [*elsewhere, *cpp], "passed", 0, 2, f"unix:{socket}")
    assert written == {**nothing, "written": 2 * BLOCKS}, written
    read = run(server, [*elsewhere, *python], "passed", 0, 2, f"unix:{socket}")
    assert read == {**nothing, "read_in_place": 2 * BLOCKS}, read
    check_bytes(server, "passed", range(2))
    if elsewhere:
        lost = subprocess.run([*elsewhere, *cpp, f"http://{server.address}", "passed", "0", "1", "1"],
                              capture_output=True, text=True, timeout=PATIENCE_S)
        assert lost.returncode == 1 and "/proc/" in lost.stderr, lost.stderr
    return bool(elsewhere)


def check_agent(server, agent, socket):
    """The agent's own blocks come back correctly. Killed during loads and stores it leaves nothing, and other
    agents' bytes are correct."""
    for cache, tier in TIERS.items():
        status, answer = server.call("PUT", f"/v1/caches/agents-{cache}", {
            "layout": SHAPE, "tiers": {"pinned": {**tier, "num_blocks": 40}, "disk": {**tier, "num_blocks": 256}}})
        assert status == 201, answer
        command = [*agent, f"unix:{socket}", f"agents-{cache}", "engine"]
        keys = [f"a9e27000{number:024x}" for number in range(8)]
        for rounds in ("0", "3"):  # in the second run some of the loaded blocks are on disk
            done = subprocess.run([*command, "32", rounds], capture_output=True, text=True, timeout=PATIENCE_S)
            assert done.returncode == 0 and json.loads(done.stdout)["right"], f"{done.stdout}{done.stderr}"
            status, moved = server.call("POST", f"/v1/caches/agents-{cache}/transfers",
                                        {"keys": keys, "to": "disk", "mode": "move", "wait_ms": 60_000})
            assert status == 200 and moved["state"] == "done", moved
        others = {f"{number:032x}": bytes([number]) * (PIECE_BYTES * 6) for number in range(8)}
        for key, data in others.items():
            assert server.call("PUT", f"/v1/caches/agents-{cache}/keys/{key}", data)[0] == 201
        for kill_after in (1, 40):
            moved = loads(server)
            killed = subprocess.Popen([*command, "32", "1000000"], stdout=subprocess.DEVNULL)
            eventually(lambda: loads(server) >= moved + kill_after * 32, "loads")
            killed.kill()
            killed.wait()
            eventually(lambda: server.call("GET", "/v1/agents")[1]["agents"] == [], "the agent's end")
            eventually(lambda: is_at_rest(server, f"agents-{cache}"), "its slots, leases and transfers to be free")
        for key, data in others.items():
            assert server.call("GET", f"/v1/caches/agents-{cache}/keys/{key}") == (200, data), key


def loads(server):
    """The number of blocks copied into agents' memory."""
    text = server.call("GET", "/metrics")[1].decode()
    row = next(row for row in text.splitlines() if row.startswith('cairn_agent_blocks_total{direction="load",outcome="done"}'))
    return float(row.split()[-1])


def is_at_rest(server, cache):
    shown = server.call("GET", f"/v1/caches/{cache}")[1]
    held = [tier["blocks"]["allocated"] + tier["blocks"]["committed"] for tier in shown["tiers"].values()]
    moving = server.call("GET", "/v1/system")[1]["transfers"]
    return shown["leases"] == 0 and not any(held) and not any(moving.values())


def check_refusals(server, command):
    done = subprocess.run([*command, f"http://{server.address}", "nowhere", "0", "1", "1"], capture_output=True,
                          text=True, timeout=PATIENCE_S)
    assert done.returncode == 1 and "unknown_cache" in done.stderr, done.stderr


def check_words():
    """numpy computes the same values as the standard library."""
    numpy = engine.numpy
    # Both wrap around at 64 bits; 0 and 1 words must work too.
    for prompt, index, first, count in [(0, 0, 0, 64), (3, 5, 17, 1), (1 << 40, 6, 0, 0), ((1 << 44) - 1, 9, 1 << 20, 33)]:
        with_numpy = engine.words(prompt, index, first, count)
        engine.numpy = None
        alone = engine.words(prompt, index, first, count)
        engine.numpy = numpy
        assert with_numpy == alone, f"prompt {prompt}, block {index}"


def main():
    program, example, agent = sys.argv[1:]
    cpp = [example]
    script = str(ROOT / "examples" / "engine.py")
    pythons = {"alone": [sys.executable, "-B", "-c", "import runpy, sys; sys.modules['numpy'] = None; "
                         f"runpy.run_path({script!r}, run_name='__main__')"]}
    if engine.numpy:
        pythons["numpy"] = [sys.executable, "-B", script]
        check_words()
    with Folder() as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text('{"caches": []}')
        socket = pathlib.Path(folder) / "socket"
        server = Server(program, folder, "--config", config, "--unix", socket)
        for form, python in pythons.items():
            for cache, tier in TIERS.items():
                check_cache(server, cpp, python, f"{cache}-{form}", tier)
            check_refusals(server, python)
        check_refusals(server, cpp)
        check_agent(server, [agent], socket)
        apart = check_other_namespace(server, cpp, pythons["alone"], socket)
        assert server.stop() == 0, server.text()
    print("with the standard library alone" + (", and with numpy" if engine.numpy else "; numpy is not installed")
          + ("; from another PID namespace" if apart else "; not from another PID namespace, which takes root"))


if __name__ == "__main__":
    main()
