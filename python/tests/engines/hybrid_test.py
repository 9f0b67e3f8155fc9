"""Models whose layers do not all remember the same, in vLLM on the CPU with the connector, against a real server.
Their answers must equal those without the connector."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from rig import BLOCK_TOKENS, HERE, Engine, EngineCase, full_blocks, prompt, python

from cairn import Client
from cairn.model import CacheInfo, Tier
from server import PATIENCE_S


class HybridCase(EngineCase):
    MODEL: ClassVar[str]

    @classmethod
    def make_model(cls) -> None:
        cls.model = cls.folder / cls.MODEL
        subprocess.run([python(), str(HERE / "hybrid_model.py"), str(cls.model), cls.MODEL], check=True)

    def cache(self) -> CacheInfo:
        with Client(self.server.unix) as client:
            (cache,) = client.caches()
            return cache

    def stored(self, tier: Tier = "pinned") -> dict[str, int]:
        """How many blocks of each group a tier has."""
        return {name: use.blocks for name, use in self.cache().tiers[tier].kv_groups.items()}

    def until_all_stored(self, full: int, tier: Tier = "pinned") -> None:
        """Waits until each full group has so many blocks, and nothing more is committed."""
        deadline = time.monotonic() + PATIENCE_S
        before: dict[str, int] = {}
        while (now := self.stored(tier)) != before or any(
            count < full for name, count in now.items() if name.startswith("full")
        ):
            assert time.monotonic() < deadline, now
            before = now
            time.sleep(0.5)

    def generate(self, engine: Engine, prompts: Sequence[list[int]], **more: Any) -> list[dict[str, Any]]:
        return [engine.generate(one, **more) for one in prompts]

    def check(
        self, arm: str, answers: list[dict[str, Any]], right: list[list[int]], lengths: Sequence[int]
    ) -> None:
        """Checks the tokens and prints the share of the prompts that was not computed."""
        self.assertEqual([answer["tokens"][0] for answer in answers], right, arm)
        hits = sum(answer["cached"][0] for answer in answers)
        firsts = [answer["first_s"][0] for answer in answers]
        print(f"{self.MODEL}, {arm}: {hits / sum(lengths):.1%} of the tokens found, first tokens after {firsts} s")


class Ladder:
    """Arms of one engine after the other. Each must give the tokens of the engine without Cairn."""

    def test_every_arm_gives_the_same_tokens(self: Any) -> None:
        prompts = [prompt(1, 900), prompt(2, 700), [*prompt(1, 900), *prompt(3, 300)]]
        lengths = [len(one) for one in prompts]
        right = self.right(prompts)
        self.assertEqual(len({tuple(tokens) for tokens in right}), len(prompts))
        first = self.engine()
        cold = [first.generate(one) for one in prompts]
        self.check("cold", cold, right, lengths)
        self.check("own cache", self.generate(first, prompts), right, lengths)
        found = [0, 0, full_blocks(900) * BLOCK_TOKENS]
        self.assertEqual([answer["cached"][0] for answer in cold], found)
        self.until_all_stored(1200 // BLOCK_TOKENS + 700 // BLOCK_TOKENS)
        print(f"{self.MODEL}: stored blocks {self.stored()}")
        first.kill()

        whole = [full_blocks(length) * BLOCK_TOKENS for length in lengths]
        for arm in ("second engine", "server killed and restarted"):
            engine = self.engine()
            answers = self.generate(engine, prompts, forget=True)
            self.check(arm, answers, right, lengths)
            self.assertEqual([answer["cached"][0] for answer in answers], whole, arm)
            self.assertEqual(answers[-1]["counts"].get("load_failed_blocks", 0), 0)
            engine.kill()
            self.until_all_stored(1200 // BLOCK_TOKENS + 700 // BLOCK_TOKENS, "disk")
            self.server.kill()
            self.server.start()


class Gemma3(Ladder, HybridCase):
    MODEL = "gemma3"


class Lfm2(Ladder, HybridCase):
    MODEL = "lfm2"


class Olmo3(Ladder, HybridCase):
    MODEL = "olmo3"
