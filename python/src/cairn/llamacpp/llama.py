"""Calls to one llama-server."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from typing import Any

from cairn.address import Token, parse_address
from cairn.llamacpp.wire import Head, Malformed, Reader, read_body, read_head

# The most bytes of a response to a call of ours. The list of a prompt's tokens is the largest.
MAX_ANSWER_BYTES = 64 << 20
CONNECT_S = 5.0
Headers = Sequence[tuple[str, str]]


class LlamaError(Exception):
    """llama-server refused a call (`status` is its status), or gave no response (0)."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Llama:
    """A llama-server. Each call has its own connection, as llama-server closes idle ones after seconds."""

    def __init__(self, url: str, token: Token | None = None) -> None:
        """token: the API key for calls that no client's key is there for."""
        self.url = url
        self._address = parse_address(url)
        self._tls = ssl.create_default_context() if self._address.tls else None
        self._own: Headers = () if token is None else (("Authorization", f"Bearer {token}"),)

    @property
    def host(self) -> str:
        return self._address.host

    async def connect(self) -> tuple[Reader, asyncio.StreamWriter]:
        """A new connection. Raises LlamaError."""
        reader = Reader()
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(reader)
        address = self._address
        try:
            if address.path:
                made = loop.create_unix_connection(lambda: protocol, address.path)
            else:
                name = address.name if self._tls else None
                made = loop.create_connection(
                    lambda: protocol, address.name, address.port, ssl=self._tls, server_hostname=name
                )
            transport, _ = await asyncio.wait_for(made, CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:
            raise LlamaError(f"{self.url} cannot be reached: {error or 'no answer in time'}") from None
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def call(self, method: str, path: str, body: object = None, *, headers: Headers = (), limit_s: float) -> Any:
        """Returns the response's JSON. headers: a client's key, instead of our own. Raises LlamaError."""
        try:
            return await asyncio.wait_for(self._call(method, path, body, headers or self._own), limit_s)
        except asyncio.TimeoutError:
            raise LlamaError(f"{method} {path}: no response in {limit_s:g} s") from None
        except (OSError, Malformed, ValueError) as error:
            raise LlamaError(f"{method} {path}: {error}") from None

    async def _call(self, method: str, path: str, body: object, headers: Headers) -> Any:
        reader, writer = await self.connect()
        try:
            data = b"" if body is None else json.dumps(body).encode()
            sent = [("Host", self.host), *headers, ("Connection", "close"), ("Content-Length", str(len(data)))]
            if data:
                sent.append(("Content-Type", "application/json"))
            writer.write(Head((method, path, "HTTP/1.1"), sent).encode() + data)
            await writer.drain()
            head = await read_head(reader)
            if head is None:
                raise LlamaError(f"{method} {path}: the connection ended without a response")
            answer = await read_body(reader, head, MAX_ANSWER_BYTES, to_end=True)
        finally:
            writer.close()
        if head.words[1] != "200":
            raise LlamaError(f"{method} {path}: {head.words[1]} {_reason(answer)}", int(head.words[1]))
        return json.loads(answer)


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
