#!/usr/bin/env python3
"""Shows a prompt's first and second answer: from a vLLM that computes its blocks, and from another process that
loads them. Then loads the prompt's blocks into memory that a third process registers as an agent.

usage: demo.py PYTHON_WITH_VLLM CAIRN_SERVER
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rig import Engine, connector, make_model, prompt

from cairn import AgentMemory, AgentRegion, Client
from server import Server

LAYERS, HIDDEN, PROMPT_TOKENS = 8, 512, 3000
BLOCK_TOKENS = 128
OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "block_size": BLOCK_TOKENS, "max_model_len": 4096}
SIZES: dict[str, Any] = {"cairn.pinned_bytes": 256 << 20}


def main() -> None:
    os.environ["CAIRN_ENGINE_PYTHON"], os.environ["CAIRN_SERVER_BINARY"] = sys.argv[1:3]
    server = Server()
    try:
        with tempfile.TemporaryDirectory(prefix="cairn-demo-") as folder:
            same = show(Path(folder), server)
    finally:
        server.close()
    sys.exit(0 if same else "the answers differ")


def show(folder: Path, server: Server) -> bool:
    print(f"A model of {LAYERS} layers with random weights, a prompt of {PROMPT_TOKENS} tokens, vLLM on this CPU.")
    model = make_model(folder / "model", LAYERS, HIDDEN)
    kv = connector(server.unix, **SIZES)
    asked = prompt(1, PROMPT_TOKENS)
    answers = []
    for name in ("first", "second"):
        print(f"Starting the {name} engine…", flush=True)
        engine = Engine(model, folder / f"{name}.log", kv, **OPTIONS).started()
        try:
            engine.generate(prompt(2, 100))  # warms the engine up
            answer = engine.generate(asked)
            server.until_stored(PROMPT_TOKENS // BLOCK_TOKENS, "pinned")
        finally:
            engine.kill()
        answers.append(answer)
        print(
            f"  first token after {answer['first_s'][0]:.2f} s, {answer['cached'][0]} tokens found, "
            f"answer {answer['tokens'][0]}",
            flush=True,
        )
    with Client(server.unix) as client:
        blocks = load_into_own_memory(client)
        counted = client.system().parts["agents"]["blocks"]
    print(f"The server copied {blocks} blocks into memory of this process, with equal bytes; it counts {counted}.")
    return bool(answers[0]["tokens"] == answers[1]["tokens"])


def load_into_own_memory(client: Client) -> int:
    """Plays an engine that lets the server copy. Returns how many blocks it did, all there are."""
    (cache,) = client.caches()
    layout = client.cache_info(cache.name).layout
    assert layout is not None, "the model has one KV group"
    shape = replace(layout, shards=None)  # whole blocks
    keys = [block.key for block in client.blocks(cache.name, tier="pinned").blocks if block.key is not None]
    layer_bytes = len(keys) * shape.outer_dim * shape.piece_bytes
    file = os.memfd_create("engine", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, shape.num_layers * layer_bytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        starts = [layer * layer_bytes for layer in range(shape.num_layers)]
        layers = [AgentRegion("shm", start, layer_bytes, descriptor=0) for start in starts]
        with AgentMemory(client, "demo", shape, len(keys), layers, [file]):
            client.load(cache.name, keys, "demo", range(len(keys)), wait_ms=60_000)
            size = layer_bytes // len(keys)
            for number, key in enumerate(keys):
                pieces = [os.pread(file, size, start + number * size) for start in starts]
                assert b"".join(pieces) == client.get(cache.name, key), "another block's bytes"
    finally:
        os.close(file)
    return len(keys)


if __name__ == "__main__":
    main()
