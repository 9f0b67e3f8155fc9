#!/usr/bin/env python3
"""Runs engines on the CPU with Cairn, against real servers.

usage: all.py PYTHON_WITH_ENGINES CAIRN_SERVER [--long] [NAME...]

NAMES are modules, classes or tests, `vllm_test.VllmOnTheCpu`, say; all without. --long: as many requests and kills
as the pages speak of.
"""

from __future__ import annotations

import os
import sys
import unittest


def main() -> None:
    os.environ["CAIRN_ENGINE_PYTHON"], os.environ["CAIRN_SERVER_BINARY"] = sys.argv[1:3]
    names = [name for name in sys.argv[3:] if name != "--long"]
    if len(names) < len(sys.argv[3:]):
        os.environ["CAIRN_ENGINES_LONG"] = "1"
    unittest.main(module=None, argv=[sys.argv[0], *(names or ["classes_test", "vllm_test"])], verbosity=2)


if __name__ == "__main__":
    main()
