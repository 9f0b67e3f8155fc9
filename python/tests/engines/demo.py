#!/usr/bin/env python3
"""Shows a prompt's first and second answer: from a vLLM that computes its blocks, and from another process that
loads them.

usage: demo.py PYTHON_WITH_VLLM CAIRN_SERVER
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rig import Engine, connector, make_model, prompt

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
    return bool(answers[0]["tokens"] == answers[1]["tokens"])


if __name__ == "__main__":
    main()
