"""The proxy: passes everything on to llama-server unchanged, and chooses the slots of prompts that may be kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any
from urllib.parse import urlsplit

from cairn.llamacpp.cache import Prompt, PromptCache
from cairn.llamacpp.llama import Llama, LlamaError
from cairn.llamacpp.prompts import request_of, tokens_of
from cairn.llamacpp.slots import Slot, TooManyWaiting
from cairn.llamacpp.wire import OF_CONNECTION, Head, Malformed, Reader, body_pieces, read_body, read_head

# Clients at once. Each has one connection here and one to llama-server.
MAX_CONNECTIONS = 1024
# A larger request passes through, and its prompt is not kept.
MAX_BODY_BYTES = 64 << 20
# How long a connection may be idle between requests.
IDLE_S = 75.0
# Headers with a client's key for llama-server.
OF_CLIENT = frozenset({"authorization", "x-api-key"})
# POSTs that use no slot.
WITHOUT_SLOT = frozenset({"/tokenize", "/detokenize", "/apply-template"})


class Proxy:
    """Serves llama-server's HTTP. Used by one event loop."""

    def __init__(self, llama: Llama, cache: PromptCache) -> None:
        self._llama = llama
        self._cache = cache
        self._connections: set[asyncio.Task[None]] = set()
        self._saves: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Accepts connections. Raises OSError."""
        loop = asyncio.get_running_loop()

        def connected() -> asyncio.StreamReaderProtocol:
            reader = Reader()
            return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._accept(reader, writer), loop=loop)

        return await loop.create_server(connected, host, port)

    async def close(self) -> None:
        """Ends the connections, and waits for the saves."""
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.gather(*self._saves, return_exceptions=True)
        await self._cache.close()

    def _accept(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connection(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                writer.write(_error(503, "the proxy has as many connections as it may have"))
                return
            while True:
                head = await asyncio.wait_for(read_head(reader), IDLE_S)
                if head is None or not await _while_connected(reader, self._request(head, reader, writer)):
                    return
        except Malformed as error:
            writer.write(_error(error.status, str(error)))
        except (OSError, asyncio.TimeoutError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _request(self, head: Head, reader: Reader, writer: asyncio.StreamWriter) -> bool:
        """Serves one request. Returns whether the connection can serve another."""
        method, target, _ = head.words
        path = urlsplit(target).path
        if (head.get("expect") or "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        may_be_kept = method == "POST" and path.rstrip("/").endswith(("/completion", "/completions"))
        if not may_be_kept or (head.length or 0) > MAX_BODY_BYTES:
            uses_slot = method == "POST" and path not in WITHOUT_SLOT
            return await self._pass(head, body_pieces(reader, head), writer, uses_slot=uses_slot)
        body = await read_body(reader, head, MAX_BODY_BYTES)
        head = _with_length(head, len(body))
        try:
            prepared = await self._prepare(head, path, body)
        except TooManyWaiting:
            writer.write(_error(503, "too many requests wait for a slot"))
            return False
        if prepared is None:
            return await self._pass(head, _once(body), writer, uses_slot=True)
        prompt, slot, request = prepared
        headers = _client_headers(head)
        is_whole = False
        try:
            await self._cache.restore(prompt, slot, headers)
            body = _with_slot(body, request, slot.id)
            keeps = await self._pass(_with_length(head, len(body)), _once(body), writer, uses_slot=False)
            is_whole = True
            return keeps
        except LlamaError as error:
            writer.write(_error(502, str(error)))
            return False
        finally:
            task = asyncio.get_running_loop().create_task(self._finish(prompt, slot, headers, is_whole=is_whole))
            self._saves.add(task)
            task.add_done_callback(self._saves.discard)

    async def _prepare(self, head: Head, path: str, body: bytes) -> tuple[Prompt, Slot, dict[str, Any]] | None:
        """Finds the prompt and takes a slot; None if the request passes through unchanged."""
        request = request_of(path, body)
        if request is None:
            return None
        asked = asyncio.ensure_future(self._cache.model())  # together with the tokens, as both are calls
        try:
            tokens = await tokens_of(self._llama, path, request, _client_headers(head))
        except (LlamaError, KeyError, TypeError):
            asked.cancel()
            return None  # llama-server says what is wrong with the request
        model = await asked
        if model is None:
            return None
        prompt = await self._cache.look_up(model, tokens)
        return prompt, await model.slots.take(tokens), request

    async def _finish(self, prompt: Prompt, slot: Slot, headers: list[tuple[str, str]], *, is_whole: bool) -> None:
        """After an answer, or after its client has gone."""
        try:
            if is_whole:
                await self._cache.save(prompt, slot, headers)
            else:
                slot.tokens = ()
        finally:
            prompt.model.slots.give_back(slot)

    async def _pass(
        self, head: Head, body: AsyncIterator[bytes], writer: asyncio.StreamWriter, *, uses_slot: bool
    ) -> bool:
        """Passes a request to llama-server and its response to the client. Returns whether the client's connection
        can serve another request. uses_slot: the request may change what slots hold."""
        if uses_slot:
            self._cache.forget_slots()
        try:
            reader, upstream = await self._llama.connect()
        except LlamaError as error:
            writer.write(_error(502, str(error)))
            return False
        try:
            sent = head.without(OF_CONNECTION)
            sent.headers.append(("Connection", "close"))
            upstream.write(sent.encode())
            async for piece in body:
                upstream.write(piece)
                with contextlib.suppress(ConnectionError):  # it may respond before it has read everything
                    await upstream.drain()
            return await _answer(head, reader, writer)
        finally:
            upstream.close()
            if uses_slot:
                self._cache.forget_slots()


async def _answer(asked: Head, reader: Reader, writer: asyncio.StreamWriter) -> bool:
    """Passes a response on. Each piece goes to the client when it comes."""
    try:
        head = await read_head(reader)
        while head is not None and head.words[1] == "100":
            head = await read_head(reader)
    except (Malformed, OSError) as error:
        head = None
        reason = str(error)
    else:
        reason = "llama-server ended the connection without a response"
    if head is None:
        writer.write(_error(502, reason))
        return False
    has_body = asked.words[0] != "HEAD" and head.words[1] not in ("204", "304")
    has_end = not has_body or head.is_chunked or head.length is not None
    keeps = has_end and asked.keeps_alive
    shown = head.without(OF_CONNECTION)
    shown.headers.append(("Connection", "keep-alive" if keeps else "close"))
    writer.write(shown.encode())
    if has_body:
        try:
            async for piece in body_pieces(reader, head, to_end=True):
                writer.write(piece)
                await writer.drain()
        except Malformed as error:  # the client sees that the response is not whole
            raise ConnectionError(str(error)) from None
    await writer.drain()
    return keeps


async def _while_connected(reader: Reader, request: Coroutine[Any, Any, bool]) -> bool:
    """Runs `request`, and ends it if the client goes away: llama-server then stops to compute."""
    serving = asyncio.ensure_future(request)
    ended = asyncio.ensure_future(reader.ended.wait())
    try:
        await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            return serving.result()
        return False
    finally:
        ended.cancel()
        if not serving.done():
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await serving


def _client_headers(head: Head) -> list[tuple[str, str]]:
    return [(name, value) for name, value in head.headers if name.lower() in OF_CLIENT]


def _with_length(head: Head, length: int) -> Head:
    changed = head.without(frozenset({"content-length", "transfer-encoding"}))
    changed.headers.append(("Content-Length", str(length)))
    return changed


def _with_slot(body: bytes, request: dict[str, Any], slot: int) -> bytes:
    """The body with `id_slot`. The rest stays as it is, with its numbers and its order."""
    if "id_slot" in request:
        return json.dumps(request | {"id_slot": slot}).encode()
    begin = body.index(b"{") + 1
    return body[:begin] + b'"id_slot":%d,' % slot + body[begin:]


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _error(status: int, text: str) -> bytes:
    """A response in the form of llama-server's errors."""
    body = json.dumps({"error": {"code": status, "message": text, "type": "proxy_error"}}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
    return Head(("HTTP/1.1", str(status), "Error"), headers).encode() + body
