"""The proxy before llama-server, with a llama-server of the tests, against a real Cairn."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any

from cairn.aio import AsyncClient
from cairn.engine.options import Options
from cairn.engine.report import Report
from cairn.llamacpp.cache import PromptCache
from cairn.llamacpp.llama import Llama
from cairn.llamacpp.proxy import Proxy
from cairn.llamacpp.slots import Slots
from cairn.llamacpp.state import (
    NotSliceable,
    StateRefused,
    UnknownVersion,
    checkpoints_of,
    make_state,
    read_state,
)
from fake_llama import FakeLlama
from server import PATIENCE_S, Server, ServerCase

BLOCK_TOKENS = 8
PINNED_BYTES = 16 << 20
LOG = "cairn.llamacpp.test"


class RunningProxy:
    """A proxy in a thread of its own."""

    def __init__(self, llama: FakeLlama, url: str, salt: str, disk_bytes: int = 0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._start(llama, url, salt, disk_bytes))

    async def _start(self, llama: FakeLlama, url: str, salt: str, disk_bytes: int) -> None:
        self._client = AsyncClient(url, timeout=5.0)
        options = Options(url, None, PINNED_BYTES, disk_bytes, None)
        to = Llama(llama.url)
        report = Report(logging.getLogger(LOG))
        self.cache = PromptCache(to, self._client, options, str(llama.folder), BLOCK_TOKENS, salt, report)
        self._proxy = Proxy(to, self.cache)
        self._server = await self._proxy.listen("127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def drained(self) -> None:
        """Waits until every answer's state is stored."""

        async def all_saved() -> None:
            await asyncio.gather(*self._proxy._saves)
            await self.cache.drained()

        self._run(all_saved())

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            await self._proxy.close()
            await self._client.close()

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _run(self, made: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(made, self._loop).result(PATIENCE_S)


class LlamaCase(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        logging.getLogger(LOG).addHandler(logging.NullHandler())
        logging.getLogger(LOG).propagate = False
        folder = tempfile.TemporaryDirectory(prefix="cairn-llama-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.llama = self.fake()
        self.proxy = self.through(self.llama)

    def fake(self, **fields: Any) -> FakeLlama:
        llama = FakeLlama(self.folder)
        self.addCleanup(llama.close)
        for name, value in fields.items():
            setattr(llama, name, value)
        return llama

    def through(self, llama: FakeLlama, url: str | None = None) -> RunningProxy:
        proxy = RunningProxy(llama, url or self.server.unix, self.id())
        self.addCleanup(proxy.close)
        return proxy

    def call(
        self, port: int, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        result = answer.status, answer.getheaders(), answer.read()
        connection.close()
        return result

    def ask(self, text: str, proxy: RunningProxy | None = None, **more: Any) -> str:
        proxy = proxy or self.proxy
        _, _, body = self.call(proxy.port, "/completion", {"prompt": text, **more})
        return str(json.loads(body)["content"])

    def right(self, text: str, **fields: Any) -> str:
        """The answer of a llama-server without Cairn."""
        alone = self.fake(**fields)
        _, _, body = self.call(alone.port, "/completion", {"prompt": text})
        return str(json.loads(body)["content"])

    def files(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]


class Prefixes(LlamaCase):
    def test_the_longest_prefix_is_restored_in_another_slot(self) -> None:
        self.ask("the same beginning of both, then one")
        self.proxy.drained()
        text = "the same beginning of both, then two"
        other = self.through(self.llama)
        self.assertEqual(self.ask(text, other), self.right(text))
        other.drained()
        # 33 characters are common, of which 4 blocks are whole.
        self.assertEqual((self.llama.restored, self.llama.computed[-1]), ([32], len(text) - 32))
        self.assertEqual(self.files(), [])

    def test_a_restart_of_llama_server_finds_what_the_first_one_stored(self) -> None:
        text = "a long prompt that was computed before the restart"
        answer = self.ask(text)
        self.proxy.drained()
        self.llama.restart()
        with self.assertLogs(LOG, "WARNING") as logged:
            self.assertEqual(self.ask(text), answer)
        self.assertIn("started again", logged.output[0])
        self.assertEqual(self.llama.computed[-1], len(text) - len(text) // BLOCK_TOKENS * BLOCK_TOKENS)

    def test_a_second_llama_server_finds_it(self) -> None:
        text = "a long prompt that another server has computed"
        answer = self.ask(text)
        self.proxy.drained()
        other = self.fake()
        self.assertEqual(self.ask(text, self.through(other)), answer)
        self.assertEqual(other.restored, [len(text) // BLOCK_TOKENS * BLOCK_TOKENS])

    def test_the_answer_is_part_of_the_prefix(self) -> None:
        text = "forty characters, which are five blocks."
        answer = self.ask(text, max_tokens=8)
        self.proxy.drained()
        state = self.through(self.fake())
        tokens = [100 + ord(one) for one in text] + [100 + ord(word[0]) for word in answer.split()]
        found = state._run(state.cache.look_up(state._run(state.cache.model()), [*tokens, 1]))
        self.assertEqual(found.held, 48)

    def test_a_slot_that_has_the_prefix_is_used_without_a_restore(self) -> None:
        self.ask("the first conversation, of this length")
        self.ask("another one that has nothing in common")
        self.proxy.drained()
        self.ask("the first conversation, of this length, goes on")
        self.assertEqual((self.llama.restored, self.llama.used), ([], [0, 1, 0]))

    def test_conversations_that_branch_share_blocks(self) -> None:
        system = "s" * 64
        for number in range(20):
            text = f"{system} conversation {number}: {'x' * number} and so on"
            self.assertEqual(self.ask(text), self.right(text))
            self.proxy.drained()
        self.assertTrue(all(one < 60 for one in self.llama.computed[1:]), self.llama.computed)

    def test_transposed_values(self) -> None:
        text = "a prompt whose values are transposed in the file"
        first = self.fake(transposed=True)
        proxy = self.through(first)
        answer = self.ask(text, proxy)
        proxy.drained()
        other = self.fake(transposed=True)
        self.assertEqual(self.ask(text, self.through(other)), answer)
        self.assertEqual(other.restored, [48 - BLOCK_TOKENS])

    def test_chats_and_lists_of_tokens(self) -> None:
        chat = {"messages": [{"role": "user", "content": "a message of some length, say this one"}]}
        first = self.call(self.proxy.port, "/v1/chat/completions", chat)[2]
        self.proxy.drained()
        other = self.fake()
        proxy = self.through(other)
        self.assertEqual(self.call(proxy.port, "/v1/chat/completions", chat)[2], first)
        self.assertEqual(len(other.restored), 1)
        tokens = [100 + ord(one) for one in "<user>a message of some length, say this one<assistant>"]
        self.call(proxy.port, "/completion", {"prompt": tokens})
        self.assertLess(other.computed[-1], 2 * BLOCK_TOKENS)

    def test_another_model_under_the_same_name_is_computed(self) -> None:
        text = "a long prompt that the first model has computed"
        self.ask(text)
        self.proxy.drained()
        self.llama.restart(weights="b")
        with self.assertLogs(LOG, "WARNING"):
            self.assertEqual(self.ask(text), self.right(text, weights="b"))
        self.assertEqual((self.llama.restored, self.llama.computed[-1]), ([], len(text)))
        self.proxy.drained()
        self.llama.restart(weights="a")
        self.assertEqual(self.ask(text), self.right(text))
        self.assertEqual(self.llama.restored, [len(text) // BLOCK_TOKENS * BLOCK_TOKENS])

    def test_a_model_that_comes_between_look_up_and_restore_does_not_get_the_state(self) -> None:
        text = "a long prompt that the first model has computed"
        self.ask(text)
        self.proxy.drained()
        other = self.fake()
        proxy = self.through(other)
        self.ask("x", proxy)
        restore = other.restore

        def restart_first(slot: int, data: bytes) -> int:
            other.restart(weights="b")
            return restore(slot, data)

        other.restore = restart_first  # type: ignore[method-assign]
        with self.assertLogs(LOG, "WARNING"):
            self.assertEqual(self.ask(text, proxy), self.right(text, weights="b"))
        self.assertEqual((len(other.restored), other.computed[-1]), (1, len(text)))

    def test_a_recurrent_model_restores_whole_states(self) -> None:
        text = "the prompt of a model with recurrent states"
        self.llama.is_recurrent = True
        answer = self.ask(text)
        self.proxy.drained()
        other = self.fake(is_recurrent=True)
        goes_on = text + "".join(word[0] for word in answer.split()) + " and more"
        self.assertEqual(self.ask(goes_on, self.through(other)), self.right(goes_on, is_recurrent=True))
        self.assertEqual((other.restored, other.computed[-1]), ([len(text) + 3], len(" and more")))
        branch = text[:-3] + " but another way"
        third = self.fake(is_recurrent=True)
        self.assertEqual(self.ask(branch, self.through(third)), self.right(branch, is_recurrent=True))
        # The whole state, which goes back to its checkpoint: 4 tokens before the prompt's end.
        self.assertEqual((third.restored, third.computed[-1]), ([len(text) + 3], len(branch) - len(text) + 4))


class Passing(LlamaCase):
    def raw(self, port: int, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            client.sendall(request)
            got = b""
            while piece := client.recv(65536):
                got += piece
        return got

    def test_a_stream_passes_byte_for_byte(self) -> None:
        body = json.dumps({"prompt": "a prompt with some tokens in it", "stream": True, "max_tokens": 5}).encode()
        head = b"POST /completion HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        direct = self.raw(self.fake().port, head + body)
        through = self.raw(self.proxy.port, head + body)
        self.assertEqual(through.partition(b"\r\n\r\n")[2], direct.partition(b"\r\n\r\n")[2])
        self.assertTrue(through.endswith(b"0\r\n\r\n"))

    def test_a_stream_comes_as_it_is_made(self) -> None:
        self.llama.may_go_on.clear()
        self.addCleanup(self.llama.may_go_on.set)
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.port, timeout=PATIENCE_S)
        connection.request("POST", "/completion", json.dumps({"prompt": "x" * 20, "stream": True, "max_tokens": 5}))
        answer = connection.getresponse()
        self.assertIn(b"data: ", answer.readline())
        self.llama.may_go_on.set()
        self.assertIn(b"[DONE]", answer.read())
        connection.close()

    def test_unknown_routes_pass_unchanged(self) -> None:
        direct = self.call(self.llama.port, "/odd?a=b", method="GET")
        through = self.call(self.proxy.port, "/odd?a=b", method="GET")
        self.assertEqual((through[0], through[2]), (418, direct[2]))
        odd = [value for name, value in through[1] if name == "X-Odd"]
        self.assertEqual(odd, ["1; q", "2"])
        raw = bytes(range(256)) * 1000
        self.assertEqual(self.call(self.proxy.port, "/echo", raw)[2], raw)
        self.assertEqual(self.call(self.proxy.port, "/nowhere")[0], 404)

    def test_a_request_changes_only_by_its_slot(self) -> None:
        body = b' {"prompt":"a prompt of a few tokens", "temperature":0.10, "x":{"b":1,"a":2}}'
        self.call(self.proxy.port, "/completion", body)
        sent = [raw for _, path, raw in self.llama.seen if path == "/completion"][-1]
        self.assertEqual(sent, body.replace(b"{", b'{"id_slot":0,', 1))

    def test_requests_that_choose_for_themselves_pass_unchanged(self) -> None:
        for more in ({"id_slot": 1}, {"cache_prompt": False}, {"lora": [{"id": 0}]}, {"n": 2}):
            body = json.dumps({"prompt": "a prompt of a few tokens", **more}).encode()
            self.call(self.proxy.port, "/completion", body)
            self.assertEqual([raw for _, path, raw in self.llama.seen if path == "/completion"][-1], body)

    def test_errors_are_those_of_llama_server(self) -> None:
        self.llama.key = "secret"
        status, _, body = self.call(self.proxy.port, "/completion", {"prompt": "x" * 30})
        self.assertEqual((status, json.loads(body)["error"]["message"]), (401, "Invalid API Key"))
        for wrong, right in ((b"GET\r\n\r\n", b" 400 "), (b"GET / HTTP/1.1\r\nA: " + b"x" * 80000, b" 431 ")):
            self.assertIn(right, self.raw(self.proxy.port, wrong)[:40])

    def test_without_llama_server_the_response_is_502(self) -> None:
        self.llama.close()
        status, _, body = self.call(self.proxy.port, "/completion", {"prompt": "x"})
        self.assertEqual((status, json.loads(body)["error"]["code"]), (502, 502))

    def test_a_connection_serves_several_requests(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.port, timeout=PATIENCE_S)
        for _ in range(3):
            connection.request("POST", "/completion", json.dumps({"prompt": "a prompt of a few tokens"}))
            self.assertEqual(connection.getresponse().read().count(b"content"), 1)
        connection.close()

    def test_a_client_that_leaves_ends_the_request(self) -> None:
        self.llama.step_s = 0.05
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.port, timeout=PATIENCE_S)
        connection.request("POST", "/completion", json.dumps({"prompt": "x" * 20, "stream": True, "max_tokens": 200}))
        connection.getresponse().readline()
        connection.close()
        self.assertTrue(self.llama.ended_early.wait(PATIENCE_S))
        self.llama.step_s = 0
        self.assertEqual(self.ask("y" * 20), self.right("y" * 20))

    def test_a_save_does_not_delay_the_answer(self) -> None:
        self.ask("the probe is saved before an answer")
        self.proxy.drained()
        self.llama.may_save.clear()
        self.addCleanup(self.llama.may_save.set)
        for text in ("one prompt whose save is held back", "another, in the other slot"):
            self.assertEqual(self.ask(text), self.right(text))

    def test_many_requests_share_the_slots(self) -> None:
        self.llama.step_s = 0.05
        texts = [f"{number} is the number of this request, and of no other" for number in range(16)]
        answers: dict[str, str] = {}
        threads = [threading.Thread(target=lambda text=text: answers.update({text: self.ask(text)})) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.llama.step_s = 0
        self.assertEqual(answers, {text: self.right(text) for text in texts})
        self.assertEqual((sorted(set(self.llama.used)), self.llama.most_running), ([0, 1], 2))


class Failures(LlamaCase):
    def test_without_cairn_prompts_are_computed_and_the_log_says_so_once(self) -> None:
        proxy = self.through(self.llama, "unix:/nowhere")
        with self.assertLogs(LOG, "WARNING") as logged:
            for number in range(3):
                text = f"a prompt that Cairn cannot keep, number {number}"
                self.assertEqual(self.ask(text, proxy), self.right(text))
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn("Cairn does not answer", logged.output[0])

    def test_cairn_comes_back(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        proxy = self.through(self.llama, server.unix)
        text = "a prompt that is stored before and after Cairn's restart"
        answer = self.ask(text, proxy)
        proxy.drained()
        server.kill()
        self.llama.restart()
        self.assertEqual(self.ask(text, proxy), answer)
        proxy.drained()
        server.start()
        deadline = time.monotonic() + PATIENCE_S
        while not self.llama.restored:
            self.assertLess(time.monotonic(), deadline)
            self.llama.restart()
            self.assertEqual(self.ask(text, proxy), answer)
            proxy.drained()
            time.sleep(0.1)

    def test_an_unknown_version_is_refused_by_name(self) -> None:
        self.llama.version = 99
        with self.assertLogs(LOG, "WARNING") as logged:
            text = "a prompt of a llama-server that is newer than this proxy"
            self.assertEqual(self.ask(text), self.right(text))
        self.assertIn("state files of version 99 are unknown; known: 2, 3, 4", logged.output[0])
        self.assertEqual(self.llama.restored, [])
        self.assertEqual(self.files(), [])

    def test_states_of_another_version_are_not_used(self) -> None:
        text = "a prompt that an older llama-server has computed"
        self.llama.version = 2
        self.ask(text)
        self.proxy.drained()
        newer = self.fake()
        self.assertEqual(self.ask(text, self.through(newer)), self.right(text))
        self.assertEqual(newer.restored, [])

    def test_a_damaged_state_file_is_not_stored(self) -> None:
        text = "a prompt whose state file is damaged on the way"
        self.ask("x")  # learns the form of whole files
        for damage in ("cut_saves", "break_saves"):
            setattr(self.llama, damage, True)
            with self.assertLogs(LOG, "WARNING"):
                self.ask(text)
                self.proxy.drained()
            setattr(self.llama, damage, False)
        other = self.fake()
        self.assertEqual(self.ask(text, self.through(other)), self.right(text))
        self.assertEqual(other.restored, [])

    def test_a_state_that_does_not_begin_with_the_prompt_is_not_stored(self) -> None:
        text = "a prompt whose context is shifted while it is answered"
        self.ask("x")
        answer = self.llama.answer

        def shift(slot: int, count: int) -> list[str]:
            del self.llama.slots[slot][8:16]
            return answer(slot, count)

        self.llama.answer = shift  # type: ignore[method-assign]
        with self.assertLogs(LOG, "WARNING") as logged:
            self.ask(text)
            self.proxy.drained()
        self.assertIn("shifted", logged.output[0])
        other = self.fake()
        self.ask(text, self.through(other))
        self.assertEqual(other.restored, [])

    def test_a_refused_restore_is_computed(self) -> None:
        text = "a prompt whose state is refused by llama-server"
        answer = self.ask(text)
        self.proxy.drained()
        other = self.fake()
        proxy = self.through(other)
        self.ask("x", proxy)

        def refuse(slot: int, data: bytes) -> int:
            raise ValueError("no room")

        other.restore = refuse  # type: ignore[method-assign]
        with self.assertLogs(LOG, "WARNING") as logged:
            self.assertEqual(self.ask(text, proxy), answer)
        self.assertIn("no room", logged.output[0])
        self.assertEqual(other.computed[-1], len(text))

    def test_a_folder_that_is_not_llama_servers(self) -> None:
        with tempfile.TemporaryDirectory() as elsewhere:
            other = self.fake()
            proxy = RunningProxy(other, self.server.unix, self.id())
            self.addCleanup(proxy.close)
            other.folder = Path(elsewhere)
            with self.assertLogs(LOG, "WARNING") as logged:
                self.ask("a prompt of a few tokens", proxy)
            self.assertIn("--slot-save-path", logged.output[0])


class States(unittest.TestCase):
    def llama(self, **fields: Any) -> FakeLlama:
        llama = FakeLlama(Path("/nowhere"))
        self.addCleanup(llama.close)
        for name, value in fields.items():
            setattr(llama, name, value)
        llama.compute(0, list(range(100, 120)), reuse=False)
        return llama

    def test_a_state_is_made_again_from_its_blocks(self) -> None:
        for transposed in (False, True):
            for version in (2, 3, 4):
                data = self.llama(transposed=transposed, version=version).save(0)
                state = read_state(memoryview(data))
                self.assertEqual(list(state.tokens), list(range(100, 120)))
                for block_tokens in (1, 4, 20):
                    blocks = [memoryview(state.block(at, block_tokens)) for at in range(20 // block_tokens)]
                    self.assertEqual({len(block) for block in blocks}, {block_tokens * 32})
                    self.assertEqual(b"".join(make_state(state.form, state.tokens, blocks)), data)

    def test_blocks_of_cells_in_any_order_are_equal(self) -> None:
        llama = self.llama()
        right = read_state(memoryview(llama.save(0))).block(1, 8)
        data = bytearray(llama.save(0))
        begin = 12 + 4 * (20 + 4) + 8  # of the cells
        cells = [data[begin + 12 * at : begin + 12 * at + 12] for at in range(20)]
        swapped = data[:begin] + b"".join([*cells[:9], cells[10], cells[9], *cells[11:]])
        rows = len(swapped) + 16
        swapped += data[len(swapped) : rows]
        for _ in range(4):
            kept = data[rows : rows + 12 + 20 * 8]
            head, cell = kept[:12], [kept[12 + 8 * at : 20 + 8 * at] for at in range(20)]
            swapped += head + b"".join([*cell[:9], cell[10], cell[9], *cell[11:]])
            rows += len(kept)
        swapped += data[rows:]
        self.assertEqual(read_state(memoryview(bytes(swapped))).block(1, 8), right)

    def test_other_files_are_refused(self) -> None:
        data = self.llama().save(0)
        for wrong, error in (
            (b"GGUF" + data[4:], StateRefused),
            (data[:4] + b"\x05" + data[5:], UnknownVersion),
            (data[:8], StateRefused),
            (data[:-1], NotSliceable),
            (data + b"x", NotSliceable),
            (self.llama(is_recurrent=True).save(0), NotSliceable),
        ):
            with self.assertRaises(error):
                read_state(memoryview(wrong))
        for length in range(0, len(data), 7):
            with self.assertRaises(StateRefused):
                read_state(memoryview(data[:length]))

    def test_checkpoints_are_the_end_of_a_file(self) -> None:
        llama = self.llama(is_recurrent=True)
        llama.compute(0, list(range(100, 140)), reuse=True)
        data = llama.save(0)
        self.assertEqual(checkpoints_of(memoryview(data)), [16, 36])
        self.assertEqual(checkpoints_of(memoryview(data[:-1])), [])
        self.assertEqual(checkpoints_of(memoryview(self.llama().save(0))), [])

    def test_a_shifted_context_is_refused(self) -> None:
        data = bytearray(self.llama().save(0))
        begin = 12 + 4 * (20 + 4) + 8
        data[begin + 12] = 30
        with self.assertRaisesRegex(StateRefused, "shifted"):
            read_state(memoryview(bytes(data)))

    def test_slots_are_given_in_order(self) -> None:
        async def run() -> list[int]:
            slots = Slots(1)
            first = await slots.take([])
            order: list[int] = []

            async def use(number: int) -> None:
                slot = await slots.take([])
                order.append(number)
                slots.give_back(slot)

            tasks = [asyncio.create_task(use(number)) for number in range(5)]
            await asyncio.sleep(0)
            tasks[2].cancel()
            slots.give_back(first)
            await asyncio.gather(*tasks, return_exceptions=True)
            return order

        self.assertEqual(asyncio.run(run()), [0, 1, 3, 4])


if __name__ == "__main__":
    unittest.main()
