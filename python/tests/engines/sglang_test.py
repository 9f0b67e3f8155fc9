"""A whole SGLang on the CPU with the storage, against a real server. Its answers must equal those without the
storage."""

from __future__ import annotations

import time
from typing import Any

from rig import Engine, EngineCase, prompt

from server import PATIENCE_S

PAGE_TOKENS = 32


class SglangEngine(Engine):
    SCRIPT = "sglang_engine.py"


class SglangOnTheCpu(EngineCase):
    ENGINE = SglangEngine
    # Values of 4 bytes: different ways to compute the same differ too little to change a token.
    DEFAULTS: dict[str, Any] = {"dtype": "float32", "page_size": PAGE_TOKENS}  # noqa: RUF012

    def transfer(self, url: str, role: str, options: dict[str, Any]) -> dict[str, Any]:
        storage = {"backend_name": "cairn", "module_path": "cairn.sglang", "class_name": "CairnStorage"}
        return {**storage, "interface_v1": 1, "cairn.url": url, **options}

    def test_this_engine_and_the_next_load_computed_blocks_also_after_a_restart(self) -> None:
        prompts = [prompt(1, 900), prompt(2, 700)]
        right = self.right(prompts)
        pages = [(len(one) - 1) // PAGE_TOKENS for one in prompts]
        whole = [count * PAGE_TOKENS for count in pages]
        first = self.engine()
        cold = first.generate(*prompts)
        self.assertEqual((cold["tokens"], cold["storage"]), (right, [0, 0]))
        self.until_stored(sum(pages))
        again = first.generate(*prompts, forget=True)
        self.assertEqual((again["tokens"], again["storage"]), (right, whole))
        first.kill()

        second = self.engine()
        warm = second.generate(*prompts)
        self.assertEqual((warm["tokens"], warm["storage"]), (right, whole))
        self.until_stored(sum(pages), "disk")
        self.server.kill()
        alone = second.generate(*prompts, forget=True)
        self.assertEqual((alone["tokens"], alone["storage"]), (right, [0, 0]))
        self.server.start()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = second.generate(*prompts, forget=True)
            self.assertEqual(answer["tokens"], right)
            if answer["storage"] == whole:
                break
            self.assertLess(time.monotonic(), deadline, answer)
