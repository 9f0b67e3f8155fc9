#!/usr/bin/env python3
"""vLLM on the CPU with the connector, against a real server: what it answers is what it answers without.

usage: vllm_test.py PYTHON_WITH_VLLM CAIRN_SERVER [NAME...]   (names of tests; all without)
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "src")]

from cairn import Client  # noqa: E402
from server import PATIENCE_S, Server  # noqa: E402

HERE = Path(__file__).resolve().parent
PYTHON = os.environ.get("CAIRN_ENGINE_PYTHON", "")
BLOCK_TOKENS = 32  # the smallest that vLLM has on a CPU
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def prompt(seed: int, tokens: int) -> list[int]:
    values = random.Random(seed)
    return [values.randrange(3, 2000) for _ in range(tokens)]


class Engine:
    """A vLLM of its own process. Its log is shown where a test fails."""

    def __init__(
        self, folder: Path, url: str | None, *, options: dict[str, Any] | None = None, **more: Any
    ) -> None:
        model = folder / "tiny"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(MODEL))
        self.log = folder / f"engine-{len(list(folder.glob('engine-*')))}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(HERE.parents[1] / "src")),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        environment.pop("PYTHONHASHSEED", None)
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                [PYTHON, "-B", str(HERE / "vllm_engine.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        connector = None
        if url is not None:
            connector = {
                "kv_connector": "CairnConnector",
                "kv_connector_module_path": "cairn.vllm",
                "kv_role": more.pop("role", "kv_both"),
                "kv_connector_extra_config": {"cairn.url": url, **more},
            }
        given = {"max_model_len": 2048, "block_size": BLOCK_TOKENS, **(options or {})}
        self.ask({"model": str(model), "connector": connector, "options": given})

    def ask(self, work: dict[str, Any]) -> dict[str, Any]:
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps(work) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise AssertionError(f"the engine ended:\n{self.log.read_text()[-6000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def generate(self, *prompts: list[int], max_tokens: int = 8, **more: Any) -> dict[str, Any]:
        return self.ask({"prompts": list(prompts), "max_tokens": max_tokens, **more})

    def close(self) -> None:
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.close()
        self.child.wait(60)
        self.child.stdout.close()


class VllmOnTheCpu(unittest.TestCase):
    SIZES = {"cairn.pinned_bytes": 64 << 20, "cairn.disk_bytes": 64 << 20}  # noqa: RUF012

    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)

    def engine(self, url: str | None, **more: Any) -> Engine:
        engine = Engine(self.server.folder, url, **({**self.SIZES, **more} if url else more))
        self.addCleanup(engine.close)
        return engine

    def test_prefixes_outlive_engines_and_the_server(self) -> None:
        prompts = [prompt(1, 900), prompt(2, 700)]
        first = self.engine(self.server.unix)
        cold = [first.generate(one) for one in prompts]
        self.assertEqual([one["cached"] for one in cold], [[0], [0]])
        first.close()
        self.until_on_disk(907 // BLOCK_TOKENS + 707 // BLOCK_TOKENS)
        self.server.kill()
        self.server.start()

        second = self.engine(self.server.unix)
        warm = [second.generate(one) for one in prompts]
        self.assertEqual([one["tokens"] for one in warm], [one["tokens"] for one in cold])
        # All full blocks but what the last token is in.
        self.assertEqual([one["cached"] for one in warm], [[899 // 32 * 32], [699 // 32 * 32]])
        self.assertEqual(warm[1]["counts"].get("load_failed_blocks", 0), 0)
        print(
            f"cold {cold[0]['seconds']} and {cold[1]['seconds']} s, "
            f"in a new process {warm[0]['seconds']} and {warm[1]['seconds']} s"
        )

    def test_what_an_engine_forgot_comes_back_also_after_a_restart_of_the_server(self) -> None:
        one = prompt(1, 900)
        blocks = 899 // BLOCK_TOKENS
        engine = self.engine(self.server.unix)
        cold = engine.generate(one)
        self.assertEqual(cold["cached"], [0])
        warm = self.until_cached(engine, one, blocks)
        self.assertEqual(warm["tokens"], cold["tokens"])
        self.server.kill()
        alone = engine.generate(one, forget=True)
        self.assertEqual((alone["tokens"], alone["cached"], alone["finished"]), (cold["tokens"], [0], ["length"]))
        self.server.start()
        again = self.until_cached(engine, one, blocks)
        self.assertEqual(again["tokens"], cold["tokens"])
        self.assertEqual(again["counts"].get("load_failed_blocks", 0), 0)
        salted = engine.generate(one, salt="other")
        self.assertEqual((salted["tokens"], salted["cached"]), (cold["tokens"], [0]))
        print(
            f"cold {cold['seconds']} s, from the server {warm['seconds']} s, "
            f"after its restart {again['seconds']} s"
        )

    def until_on_disk(self, blocks: int) -> None:
        """Blocks are written through to the disk a little after they were committed."""
        deadline = time.monotonic() + PATIENCE_S
        with Client(self.server.unix) as client:
            while True:
                (cache,) = client.caches()
                on_disk = cache.tiers["disk"].blocks
                if on_disk is not None and on_disk.evictable >= blocks:
                    return
                self.assertLess(time.monotonic(), deadline, cache)
                time.sleep(0.1)

    def until_cached(self, engine: Engine, tokens: list[int], blocks: int) -> dict[str, Any]:
        """Blocks are committed beside the engine, and a server that was silent is asked again after a pause."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = engine.generate(tokens, forget=True)
            if answer["cached"] == [blocks * BLOCK_TOKENS] or time.monotonic() > deadline:
                self.assertEqual(answer["cached"], [blocks * BLOCK_TOKENS], answer)
                return answer

    def test_two_ranks_over_http(self) -> None:
        parallel = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
        one = prompt(1, 600)
        first = self.engine(self.server.http, options=parallel)
        cold = first.generate(one)
        first.close()
        second = self.engine(self.server.http, options=parallel)
        warm = second.generate(one)
        self.assertEqual(warm["tokens"], cold["tokens"])
        self.assertEqual(warm["cached"], [599 // 32 * 32])


def main() -> None:
    global PYTHON
    PYTHON, os.environ["CAIRN_SERVER_BINARY"] = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)


if __name__ == "__main__":
    main()
