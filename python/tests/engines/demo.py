#!/usr/bin/env python3
"""Asks SmolLM2 about a page of the documentation, twice: a vLLM computes the page, and another process loads its
blocks. Then loads these blocks into memory that a third process registers as an agent.

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

from rig import HERE, Engine, connector, prompt
from smollm2 import model_of, texts_of, tokens_of

from cairn import AgentMemory, AgentRegion, Client
from server import Server

PAGE = HERE.parents[2] / "docs" / "concepts.md"
QUESTION = "What is a block, and what is a lease? Answer in two sentences."
BLOCK_TOKENS, ANSWER_TOKENS = 128, 60
OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "block_size": BLOCK_TOKENS, "max_model_len": 8192}
# The page takes 100 MiB.
SIZES: dict[str, Any] = {"cairn.pinned_bytes": 512 << 20}


def main() -> None:
    python = os.environ["CAIRN_ENGINE_PYTHON"] = sys.argv[1]
    os.environ["CAIRN_SERVER_BINARY"] = sys.argv[2]
    try:
        model_of(python)
    except FileNotFoundError as why:
        print(f"skipped: {why}", file=sys.stderr)
        sys.exit(77)
    server = Server()
    try:
        with tempfile.TemporaryDirectory(prefix="cairn-demo-") as folder:
            same = show(Path(folder), server)
    finally:
        server.close()
    sys.exit(0 if same else "the answers differ")


def show(folder: Path, server: Server) -> bool:
    python = sys.argv[1]
    asked = [{"role": "user", "content": f"{PAGE.read_text()}\n\n---\n{QUESTION}"}]
    (tokens,) = tokens_of(python, [asked])
    print(f"SmolLM2-135M in vLLM on this CPU reads docs/{PAGE.name}, {len(tokens)} tokens with the question:")
    print(f"  {QUESTION}")
    kv = connector(server.unix, **SIZES)
    answers = []
    for name in ("first", "second"):
        print(f"Starting the {name} engine…", flush=True)
        engine = Engine(model_of(python), folder / f"{name}.log", kv, **OPTIONS).started()
        try:
            engine.generate(prompt(2, 100))  # warms the engine up
            answer = engine.generate(tokens, max_tokens=ANSWER_TOKENS)
            server.until_stored(len(tokens) // BLOCK_TOKENS, "pinned")
        finally:
            engine.kill()
        (text,) = texts_of(python, answer["tokens"])
        answers.append(text)
        first_s, cached = answer["first_s"][0], answer["cached"][0]
        print(f"  {text}")
        print(f"  first token after {first_s:.2f} s, {cached} tokens from Cairn", flush=True)
    with Client(server.unix) as client:
        blocks = load_into_own_memory(client)
        counted = client.system().parts["agents"]["blocks"]
    print(f"The server copied {blocks} blocks into memory of this process, with equal bytes; it counts {counted}.")
    return bool(answers[0] == answers[1])


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
