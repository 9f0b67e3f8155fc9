"""Actions in the requests of a whole vLLM on the CPU: what they keep, what they bring back, and the ways in which
they reach the connector."""

from __future__ import annotations

import functools
import os
import re
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from rig import ANSWER_S, BLOCK_TOKENS, Engine, EngineCase, prompt, python
from served import ServedCase

from cairn import Client
from cairn.model import CacheChange
from server import PATIENCE_S, ROOT

AGENTS, TURNS = 2, 12
TASK_TOKENS, MESSAGE_TOKENS, ANSWER_TOKENS = 300, 50, 14
# An agent's blocks in the end, twice, are less than a quarter of the cache, which pins may take.
CACHE_BLOCKS = 400
BLOCK_BYTES = 3 * 2 * BLOCK_TOKENS * 128 * 4  # 3 layers, 2 heads of 64 keys and 64 values of 4 bytes
PIN = {"type": "pin", "ttl_ms": 3_600_000}
# The most blocks written at once.
PIECE = 64


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


def enveloped(action: dict[str, Any]) -> dict[str, Any]:
    payload = {name: value for name, value in action.items() if name != "type"}
    return {
        "protocol_version": "1",
        "message_id": "m",
        "actions": [{"action_id": "a", "action_type": action["type"], "action_version": "1", "payload": payload}],
    }


class OtherTraffic:
    """What other engines of the host store in the cache."""

    def __init__(self, client: Client, cache: str) -> None:
        self._client = client
        self._cache = cache
        self._block = os.urandom(BLOCK_BYTES)
        self._written = 0

    def store(self, blocks: int) -> None:
        for begin in range(0, blocks, PIECE):
            keys = []
            for _ in range(min(PIECE, blocks - begin)):
                self._written += 1
                keys.append(b"other traffic" + self._written.to_bytes(19, "big"))
            self._client.write(self._cache, keys, [self._block] * len(keys))


class Conversation:
    """An agent's task, to which each turn adds a tool's answer."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tokens: list[int] = []
        self.turns = 0
        self.known = 0  # tokens in full blocks that the turns before have stored

    def ask(self) -> list[int]:
        """The prompt of the next turn."""
        new = TASK_TOKENS if self.turns == 0 else MESSAGE_TOKENS
        self.turns += 1
        return [*self.tokens, *prompt(1000 * self.seed + self.turns, new)]

    def answered(self, asked: list[int], answer: list[int]) -> None:
        self.tokens = [*asked, *answer]
        # The engine never computes the last token of an answer.
        self.known = (len(self.tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


class Agents(EngineCase):
    SIZES = {"cairn.pinned_bytes": CACHE_BLOCKS * BLOCK_BYTES}  # noqa: RUF012

    def setUp(self) -> None:
        super().setUp()
        self.client = Client(self.server.unix)
        self.addCleanup(self.client.close)

    def cache(self) -> str:
        (cache,) = self.client.caches()
        return cache.name

    def has_pins(self, count: int) -> bool:
        return len(self.client.pins(self.cache(), limit=1000).pins) == count

    def test_the_turns_of_agents_are_found_after_traffic_larger_than_the_cache(self) -> None:
        engine = self.engine()
        cache = self.cache()
        # An order that learns may keep by itself what comes back again and again.
        self.client.change_cache(cache, CacheChange(eviction="lru"))
        traffic = OtherTraffic(self.client, cache)
        engine.generate(prompt(1, 600), max_tokens=4)  # warms the engine up
        without = self.run_agents("without actions", engine, traffic, pins=False)
        with_pins = self.run_agents("with a pin", engine, traffic, pins=True)
        self.assertEqual(with_pins["tokens"], without["tokens"])
        self.assertEqual(with_pins["tokens"], self.right_answers())
        self.assertEqual((without["share"], with_pins["share"]), (0.0, 1.0))
        counts = engine.generate(prompt(1, 40))["counts"]
        self.assertEqual(counts["actions_accepted"], AGENTS * TURNS)
        self.assertEqual(counts.get("actions_failed", 0), 0)
        print(
            f"first token of a turn after {TASK_TOKENS} to {len(self.last) - ANSWER_TOKENS} tokens, medians: "
            f"{without['first_s']:.4f} s computed again, {with_pins['first_s']:.4f} s pinned, "
            f"{with_pins['warm_s']:.4f} s a warm hit of the same length; "
            f"pinned / warm {with_pins['first_s'] / with_pins['warm_s']:.2f}"
        )

    def run_agents(self, arm: str, engine: Engine, traffic: OtherTraffic, *, pins: bool) -> dict[str, Any]:
        """Runs all turns in turn. Between two turns other engines fill the cache, and the engine forgets its own.
        Half of the agents send a pin in `kv_transfer_params`, half in vLLM's envelope."""
        cache = self.cache()
        agents = [Conversation(seed) for seed in range(1, AGENTS + 1)]
        tokens, firsts, warm, found, known = [], [], [], 0, 0
        for turn in range(TURNS):
            for number, agent in enumerate(agents):
                asked = agent.ask()
                more: dict[str, Any] = {}
                if pins:
                    more = {"params": {"actions": [PIN]}} if number % 2 == 0 else {"hints": enveloped(PIN)}
                done = engine.generate(asked, max_tokens=ANSWER_TOKENS, forget=True, salt=arm, **more)
                tokens.append(done["tokens"][0])
                found, known = found + done["cached"][0], known + agent.known
                if turn > 0:
                    firsts.append(done["first_s"][0])
                    if pins:
                        # The same length, found right after its use.
                        other = [*agent.tokens, *prompt(5000 * number + turn, MESSAGE_TOKENS)]
                        again = engine.generate(other, max_tokens=1, forget=True, salt=arm)
                        warm.append(again["first_s"][0])
                        self.assertEqual(again["cached"], done["cached"])
                agent.answered(asked, done["tokens"][0])
                if pins:
                    # A tool takes longer than this.
                    eventually(functools.partial(self.has_pins, AGENTS * turn + number + 1))
                eventually(lambda: self.client.cache_info(cache).leases == 0)
                traffic.store(CACHE_BLOCKS * 6 // 5)
        self.last = agents[-1].tokens
        print(f"{arm}: {found} of {known} tokens of earlier turns found, first tokens after {firsts} s")
        return {
            "tokens": tokens,
            "share": found / known,
            "first_s": statistics.median(firsts),
            "warm_s": statistics.median(warm) if warm else None,
        }

    def right_answers(self) -> list[list[int]]:
        """The answers of an engine without Cairn, in the same order."""
        agents, answers = [Conversation(seed) for seed in range(1, AGENTS + 1)], []
        for _ in range(TURNS):
            for agent in agents:
                asked = agent.ask()
                (answer,) = self.right([asked], ANSWER_TOKENS)
                agent.answered(asked, answer)
                answers.append(answer)
        return answers

    def test_a_prefetch_in_another_request_brings_a_conversation_up(self) -> None:
        engine = self.engine(**{"cairn.disk_bytes": 4 * CACHE_BLOCKS * BLOCK_BYTES})
        cache = self.cache()
        self.client.change_cache(cache, CacheChange(eviction="lru"))
        agent = Conversation(1)
        asked = agent.ask()
        done = engine.generate(asked, max_tokens=ANSWER_TOKENS, params={"session": "agent-1"})
        agent.answered(asked, done["tokens"][0])
        self.until_stored(agent.known // BLOCK_TOKENS, "disk")
        listed = self.client.blocks(cache, limit=1000).blocks  # in both tiers
        keys = list({block.key for block in listed if block.key is not None})
        self.assertEqual(len(keys), agent.known // BLOCK_TOKENS)
        OtherTraffic(self.client, cache).store(CACHE_BLOCKS * 6 // 5)
        self.assertEqual(set(self.client.contains(cache, keys)), {"k"})

        action = {"type": "prefetch", "target": {"session": "agent-1"}, "deadline_ms": 60_000}
        engine.generate(prompt(9, 20), max_tokens=1, params={"cairn": {"actions": [action]}})
        eventually(lambda: set(self.client.contains(cache, keys)) == {"p"})
        asked = agent.ask()
        again = engine.generate(asked, max_tokens=ANSWER_TOKENS, forget=True)
        self.assertEqual((again["cached"], again["tokens"]), ([agent.known], self.right([asked], ANSWER_TOKENS)))


class Served(ServedCase):
    CONNECTOR = {"cairn.pinned_bytes": CACHE_BLOCKS * BLOCK_BYTES}  # noqa: RUF012

    def setUp(self) -> None:
        super().setUp()
        self.client = Client(self.server.unix)
        self.addCleanup(self.client.close)
        self.serve(self.server.unix)

    def pins(self) -> list[int]:
        (cache,) = self.client.caches()
        return sorted(pin.blocks for pin in self.client.pins(cache.name, limit=1000).pins)

    def test_actions_arrive_through_http_and_the_pages_examples_run(self) -> None:
        asked = [value % 200 + 3 for value in prompt(1, 300)]
        whole = (300 + 8 - 1) // BLOCK_TOKENS
        self.complete(asked, actions=[PIN])
        eventually(lambda: self.pins() == [whole])
        self.complete(asked, actions=[{"type": "unpin"}])
        eventually(lambda: self.pins() == [])
        self.complete(asked, kv_hints=enveloped(PIN))
        eventually(lambda: self.pins() == [whole])
        self.complete(asked, actions=[{"type": "unpin"}], cache_control={"type": "ephemeral", "ttl": "5m"})
        eventually(lambda: len(self.pins()) == 1)
        self.complete(asked, actions=[{"type": "unpin"}])
        eventually(lambda: self.pins() == [])
        # vLLM ignores an envelope beside the fields that it knows.
        self.post("/v1/completions", model="MODEL", prompt=asked, max_tokens=8, kv_hints=enveloped(PIN))
        self.complete(asked, actions=[{"type": "paint"}])
        eventually(
            lambda: re.search(r'actions_total{.*outcome="rejected"} 1$', self.client.metrics(), re.M) is not None
        )
        self.assertEqual(self.pins(), [])

        chat, agent = self.examples()
        self.run_example(chat)
        eventually(lambda: len(self.pins()) == 1)
        (system,) = self.pins()
        self.run_example(agent)
        # With the task its pins end; that of the system prompt stays. An answer that comes back as text may be
        # other tokens; then its own blocks stay pinned.
        eventually(lambda: 'type="unpin",outcome="accepted"} 4' in self.client.metrics())
        left = self.pins()
        left.remove(system)
        self.assertLessEqual(max(left, default=0), 64 // BLOCK_TOKENS + 1, (left, system))
        # vLLM collects what was counted with the steps of the next request.
        self.complete(asked)
        # The unknown one, and a demotion: this cache has no tier below.
        eventually(lambda: self.metric("actions_rejected") == 2)
        self.assertEqual(self.metric("actions_failed"), 0)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^vllm:cairn_{name}(?:_total)?{{.*}} ([\d.e+]+)$", text, re.M)
        return sum(float(value) for value in found)

    def examples(self) -> list[str]:
        """The page's examples that speak to an engine."""
        page = (ROOT / "docs" / "actions.md").read_text()
        return re.findall(r"^```python needs=gpu\n(.*?)^```", page, re.M | re.S)

    def run_example(self, text: str) -> None:
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        done = subprocess.run([python(), "-B", "-c", text], capture_output=True, text=True, timeout=ANSWER_S)
        self.assertEqual(done.returncode, 0, done.stderr)
