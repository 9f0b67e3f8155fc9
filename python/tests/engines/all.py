#!/usr/bin/env python3
"""Runs engines on the CPU with Cairn, against real servers.

usage: all.py PYTHON_WITH_ENGINES CAIRN_SERVER [--long|--short] [NAME...]

A NAME is a module, class or test, for example `vllm_test.VllmOnTheCpu`; without one, all tests run. --long: as
many requests and kills as the documentation describes. --short: the most important tests, in 7 minutes.
"""

from __future__ import annotations

import os
import sys
import unittest

ALL = [
    "classes_test",
    "vllm_test",
    "actions_test",
    "tracing_test",
    "hybrid_test",
    "hybrid_tier_test",
    "sglang_test",
    "llama_test",
    "smollm2_test",
]
# The classes of each engine; and a whole vLLM: correct tokens with preemptions, and blocks from memory and a disk
# that outlived the engine that computed them, also of a model with windows.
VLLM = "vllm_test.VllmOnTheCpu"
SHORT = [
    "classes_test",
    f"{VLLM}.test_tokens_of_shared_prefixes_equal_those_without_cairn",
    f"{VLLM}.test_blocks_outlive_a_killed_engine_and_the_disk_a_killed_server",
    "hybrid_test.Olmo3.test_each_arm_gives_the_same_tokens",
]


def engine_runs() -> bool:
    """Whether a vLLM without Cairn runs on this machine. If it does not, a vLLM with Cairn cannot tell anything
    about Cairn."""
    from vllm_test import VllmOnTheCpu

    return VllmOnTheCpu.runs_here()


def main() -> None:
    os.environ["CAIRN_ENGINE_PYTHON"], os.environ["CAIRN_SERVER_BINARY"] = sys.argv[1:3]
    names = [name for name in sys.argv[3:] if not name.startswith("--")]
    if "--long" in sys.argv[3:]:
        os.environ["CAIRN_ENGINES_LONG"] = "1"
    short = "--short" in sys.argv[3:]
    if short and not engine_runs():
        sys.exit(77)
    every = SHORT if short else ALL
    unittest.main(module=None, argv=[sys.argv[0], *(names or every)], verbosity=2)


if __name__ == "__main__":
    main()
