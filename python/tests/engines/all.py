#!/usr/bin/env python3
"""Runs engines on the CPU with Cairn, against real servers.

usage: all.py PYTHON_WITH_ENGINES CAIRN_SERVER [--long|--short] [NAME...]

NAMES are modules, classes or tests, `vllm_test.VllmOnTheCpu`, say; all without. --long: as many requests and kills
as the pages speak of. --short: those that matter most, in 5 minutes.
"""

from __future__ import annotations

import os
import sys
import unittest

# Each engine's own classes; and of a whole vLLM: right tokens among preemptions, and from memory and a disk that
# outlived the engine that computed them.
VLLM = "vllm_test.VllmOnTheCpu"
SHORT = [
    "classes_test",
    f"{VLLM}.test_tokens_of_shared_prefixes_are_those_of_an_engine_without",
    f"{VLLM}.test_an_engine_that_was_killed_leaves_its_blocks_and_the_disk_outlives_all",
]


def engine_runs() -> bool:
    """Whether a vLLM without Cairn runs here: else it says nothing of Cairn that one with it does not."""
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
    every = SHORT if short else ["classes_test", "vllm_test", "sglang_test"]
    unittest.main(module=None, argv=[sys.argv[0], *(names or every)], verbosity=2)


if __name__ == "__main__":
    main()
