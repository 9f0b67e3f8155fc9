"""A real model in vLLM on the CPU: what it answers is text, and each arm must give the same. Its log-probabilities
must be those of an engine that had as much in its own cache, to the last bit."""

from __future__ import annotations

import math
import unittest
from collections.abc import Sequence
from typing import Any

from rig import BLOCK_TOKENS, HERE, Engine, EngineCase, full_blocks, python
from shared_store import Redis, scatter
from smollm2 import model_of, texts_of, tokens_of

from server import Server

DOCS = HERE.parents[2] / "docs"
# Pages, and what is asked about them one after the other. Conversations about one page share it.
ASKED = [
    ("sizing.md", ["What is this page about? Answer in one sentence."]),
    ("faq.md", ["Summarize this page in two sentences.", "Which question comes first?"]),
    ("faq.md", ["Name one question of this page."]),
]
ANSWER_TOKENS = 24


class Smollm2(EngineCase):
    SIZES = {"cairn.pinned_bytes": 512 << 20, "cairn.disk_bytes": 512 << 20, "cairn.codec": "bytes"}  # noqa: RUF012
    texts: list[str]

    @classmethod
    def make_model(cls) -> None:
        try:
            cls.model = model_of(python())
        except FileNotFoundError as why:
            raise unittest.SkipTest(str(why)) from None

    def setUp(self) -> None:
        super().setUp()
        self.prompts, self.texts = [], []
        for page, questions in ASKED:
            said = [{"role": "user", "content": f"{(DOCS / page).read_text()}\n\n---\n{questions[0]}"}]
            for following in [*questions[1:], None]:
                (tokens,) = tokens_of(python(), [said])
                self.prompts.append(tokens)
                (answer,) = texts_of(python(), self.right([tokens], ANSWER_TOKENS))
                self.texts.append(answer)
                if following is not None:
                    said = [*said, {"role": "assistant", "content": answer}, {"role": "user", "content": following}]

    def ask(self, engine: Engine, **more: Any) -> list[dict[str, Any]]:
        return [engine.generate(each, max_tokens=ANSWER_TOKENS, logprobs=True, **more) for each in self.prompts]

    def check(self, arm: str, answers: Sequence[dict[str, Any]]) -> list[list[float]]:
        """Compares the texts. Returns the log-probabilities."""
        cached = [answer["cached"][0] for answer in answers]
        firsts = [answer["first_s"][0] for answer in answers]
        logprobs: list[list[float]] = [answer["logprobs"][0] for answer in answers]
        perplexities = [math.exp(-sum(each) / len(each)) for each in logprobs]
        print(f"SmolLM2, {arm}: {cached} tokens found, first tokens after {firsts} s, perplexities {perplexities}")
        self.assertEqual(texts_of(python(), [answer["tokens"][0] for answer in answers]), self.texts, arm)
        return logprobs

    def whole(self) -> list[int]:
        return [full_blocks(len(each)) * BLOCK_TOKENS for each in self.prompts]

    def blocks(self) -> int:
        """How many different blocks the prompts have, at least."""
        return len({tuple(each[:at]) for each in self.prompts for at in range(32, len(each), BLOCK_TOKENS)})

    def test_each_arm_gives_the_same_text(self) -> None:
        for text in self.texts:
            print(f"SmolLM2: {text!r}")
        first = self.engine()
        self.check("cold", self.ask(first))
        own = self.check("own cache", self.ask(first))
        self.until_stored(self.blocks())
        first.kill()

        second = self.engine()
        answers = self.ask(second, forget=True)
        self.assertEqual([answer["cached"][0] for answer in answers], self.whole())
        self.assertEqual(self.check("second engine", answers), own)

        self.until_stored(self.blocks(), "disk")
        self.server.kill()
        self.server.start()
        self.until_cached(second, self.prompts[0])
        answers = self.ask(second, forget=True)
        self.assertEqual([answer["cached"][0] for answer in answers], self.whole())
        self.assertEqual(self.check("server killed and restarted, blocks of the codec from disk", answers), own)
        self.assertEqual(answers[-1]["counts"].get("load_failed_blocks", 0), 0)

    def test_blocks_of_a_shared_store_suffice(self) -> None:
        redis = Redis(self.server.folder)
        self.addCleanup(redis.close)

        def host() -> None:
            self.server = Server("--shared", redis.url)
            self.addCleanup(self.server.close)
            self.server.until_shared()

        options = {"cairn.shared": True}
        host()
        first = self.engine(**options)
        self.check("shared store, cold", self.ask(first))
        own = self.check("own cache", self.ask(first))
        redis.until_it_has(self.blocks())
        first.kill()
        host()
        second = self.engine(**options)
        answers = self.ask(second, forget=True)
        self.assertEqual([answer["cached"][0] for answer in answers], self.whole())
        self.assertEqual(self.check("Redis only, blocks of the codec", answers), own)
        self.until_stored(self.blocks(), "disk")
        places = scatter(self.server, seed=1)
        answers = self.ask(second, forget=True)
        self.assertEqual([answer["cached"][0] for answer in answers], self.whole())
        self.assertEqual(self.check(f"mixed, {places}", answers), own)

    def test_blocks_on_disk_alone_suffice(self) -> None:
        engine = self.engine(**{"cairn.pinned_bytes": 0})
        self.check("disk only, cold", self.ask(engine))
        own = self.check("own cache", self.ask(engine))
        self.until_stored(self.blocks(), "disk")
        answers = self.ask(engine, forget=True)
        self.assertEqual([answer["cached"][0] for answer in answers], self.whole())
        self.assertEqual(self.check("disk only, blocks of the codec", answers), own)

    def test_an_engine_that_loads_or_computes_gives_the_same_text(self) -> None:
        engine = self.engine(**{"cairn.load": "if_faster"})
        self.check("load or compute, cold", self.ask(engine))
        self.until_stored(self.blocks())
        for _ in range(3):
            answers = self.ask(engine, forget=True)
            self.check("load or compute", answers)
        self.assertGreater(answers[-1]["counts"]["prompt_tokens"], 0)


if __name__ == "__main__":
    unittest.main()
