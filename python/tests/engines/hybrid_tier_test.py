"""Models whose layers do not all remember the same, with CairnTier below vLLM's own CPU tier, in whole engines on
the CPU. Their answers must equal those without the tier."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from hybrid_test import HybridCase
from rig import BLOCK_TOKENS, full_blocks, prompt

from cairn import Client


class Tiers:
    # vLLM's number of the group that attends to everything.
    FULL: ClassVar[int]

    def transfer(self: Any, url: str, role: str, options: dict[str, Any]) -> dict[str, Any]:
        tier = {"type": "CairnTier", "module_path": "cairn.vllm", "cairn.url": url, **options}
        extra = {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_copies",
            "cpu_bytes_to_use": 16 << 20,
            "secondary_tiers": [tier],
        }
        return {"kv_connector": "OffloadingConnector", "kv_role": role, "kv_connector_extra_config": extra}

    def chunks(self: Any) -> Counter[int]:
        """How many chunks of each of vLLM's groups the only cache has."""
        with Client(self.server.unix) as client:
            (cache,) = client.caches()
            listed = client.blocks(cache.name, tier="pinned", limit=1000).blocks
        return Counter(int.from_bytes(block.key[-4:], "big") for block in listed if block.key is not None)

    def test_a_second_engine_finds_what_the_first_stored_also_after_a_restart(self: Any) -> None:
        one = prompt(1, 900)
        # The last one is longer than what is stored by more than a window; later engines compute it first.
        prompts = [one, prompt(2, 700), [*one, *prompt(3, 600)]]
        lengths = [len(each) for each in prompts]
        cold, warm = self.plain(prompts, forget=True), self.plain(prompts)
        first = self.engine()
        self.check("tiers, cold", self.one_by_one(first, prompts[:2]), cold[:2], lengths[:2])
        self.until_stored(sum(length // BLOCK_TOKENS for length in lengths[:2]))
        self.assertEqual(self.chunks()[self.FULL], sum(length // BLOCK_TOKENS for length in lengths[:2]))
        print(f"{self.MODEL}: chunks by group {dict(self.chunks())}")
        first.kill()

        whole = [full_blocks(length) * BLOCK_TOKENS for length in (900, 700, 900)]
        second = self.engine()
        answers = [second.generate(each) for each in reversed(prompts)]
        self.check("tiers, second engine", answers, [cold[2], warm[1], warm[0]], lengths[::-1])
        self.assertEqual([answer["cached"][0] for answer in answers], whole[::-1])
        second.kill()
        self.server.until_stored(sum(length // BLOCK_TOKENS for length in lengths[:2]), "disk")
        self.server.kill()
        self.server.start()
        third = self.engine()
        answers = self.one_by_one(third, prompts[:2])
        self.check("tiers, third engine after a restart of the server", answers, warm[:2], lengths[:2])
        self.assertEqual([answer["cached"][0] for answer in answers], whole[:2])


class Olmo3Tiers(Tiers, HybridCase):
    MODEL, FULL = "olmo3", 3
