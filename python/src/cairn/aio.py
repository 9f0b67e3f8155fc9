"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, TypeVar

from cairn._base import ClientBase
from cairn._forks import in_each_child, notice_fork
from cairn.address import token_from
from cairn.calls import service
from cairn.client import MAX_KEPT
from cairn.errors import NoAnswer, Refused, TimedOut, WrongArgument
from cairn.http import (
    PIECE_BYTES,
    Call,
    Request,
    Response,
    ResponseReader,
    may_send_again,
    pause_before_retry_s,
    read_answer,
)
from cairn.model import Event
from cairn.named import AsyncCache
from cairn.sse import EventReader

T = TypeVar("T")

# Connections in use at once. Further calls wait within their timeout. By default a server accepts 1,024
# connections from all its clients together.
MAX_CONNECTIONS = 32


class _Reader(asyncio.StreamReader):
    """A StreamReader that counts the bytes it received."""

    received_bytes = 0

    def feed_data(self, data: Any) -> None:
        self.received_bytes += len(data)
        super().feed_data(data)


class _Stream:
    """A connection: asyncio's reader and writer."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent = 0
        self.got = 0
        self._taken_bytes = 0  # bytes taken from the reader since the connection opened
        in_each_child(self.leave)

    @property
    def is_usable(self) -> bool:
        """True if a kept connection is still usable: the server neither closed it nor sent unexpected bytes."""
        ended = self.reader.at_eof() or self.reader.exception() is not None or self.writer.is_closing()
        return not ended and self.reader.received_bytes == self._taken_bytes

    async def begin(self, head: memoryview, request: Request) -> ResponseReader:
        if request.files:
            raise ValueError("only the blocking client can send open files")
        self.sent = self.got = 0
        for piece in (head, *(request.body or ())):
            self.writer.write(piece)
            self.sent += memoryview(piece).nbytes  # asyncio does not say how many of them left the process
        # The server may refuse before it has read the whole body. The caller reads that answer next, or the end of
        # the connection.
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()
        return ResponseReader(request.method)

    async def receive(self, answer: ResponseReader) -> None:
        data = await self.reader.read(min(len(answer.room), PIECE_BYTES * 16))
        answer.room[: len(data)] = data
        self.got += len(data)
        self._taken_bytes += len(data)
        answer.got(len(data))

    def close(self) -> None:
        self.writer.close()

    def leave(self) -> None:
        """Drops the connection without its event loop, which has ended or belongs to the parent process. A forked
        child shares the parent's epoll: closing the transport would remove the parent's socket from it."""
        made = self.writer.get_extra_info("socket")
        if made is None or made.fileno() < 0:
            return  # the connection is closed already
        with contextlib.suppress(OSError), open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), made.fileno(), inheritable=False)


class AsyncClient(ClientBase):
    """`Client` for asyncio, with the same parameters, methods and errors; await each method. All tasks of one
    event loop may share it. It can move to another loop after that one has ended, and works in a forked child.
    `export` returns no open files: to map a tier, use `TierView` with a `Client`.

    max_connections: the most connections at once, not counting those of `events`. Further calls wait for a free
    one within their `timeout`.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        ca: str | None = None,
        timeout: float = 30.0,
        max_connections: int = MAX_CONNECTIONS,
        *,
        retries: int = 0,
    ) -> None:
        token = token_from(token, "token")  # replaces the text, which a traceback's local variables would show
        if max_connections < 1:
            raise WrongArgument(f"max_connections is {max_connections}; it must be at least 1")
        self._max_connections = max_connections
        super().__init__(url, token, ca, timeout, retries)

    def _begin(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kept: list[_Stream] = []
        self._free = asyncio.Semaphore(self._max_connections)

    def __reduce__(self) -> tuple[object, ...]:
        made = functools.partial(type(self), retries=self.retries)
        return made, (self.url, self._token, self._ca, self.timeout, self._max_connections)

    def apart(self) -> AsyncClient:
        """A client of the same server and token with its own connections."""
        return AsyncClient(
            self.url, self._token, self._ca, self.timeout, self._max_connections, retries=self.retries
        )

    async def perform(self, call: Call[T], /) -> T:
        """Sends a call made by `cairn.calls` and returns its decoded answer."""
        end = time.monotonic() + min(self.timeout, call.limit_s) + call.wait_s
        left = self.retries
        while True:
            try:
                left_s = end - time.monotonic()
                response = await asyncio.wait_for(self._exchange(call.request), left_s)
            except asyncio.TimeoutError:
                raise TimedOut(f"{call.request.method} {call.request.target}: no answer in time") from None
            try:
                answer = read_answer(call, response, self._token)
            except Refused as error:
                pause_s = pause_before_retry_s(error, left, end)
                if pause_s is None:
                    raise
                left -= 1
                await asyncio.sleep(pause_s)
                continue
            if not isinstance(answer, Call):
                return answer
            call = answer

    def cache(self, name: str) -> AsyncCache:
        """The cache with this name as an object, which has the verbs of one cache. It sends nothing."""
        return AsyncCache(self, name)

    async def events(
        self, *, cache: str | None = None, after: int | None = None, silence_s: float | None = None
    ) -> AsyncIterator[Event]:
        """Like `Client.events`."""
        request = service.events(cache=cache, after=after).request
        try:
            stream = await asyncio.wait_for(self._connect(), self.timeout)
            with contextlib.closing(stream):
                events = EventReader(await stream.begin(self._head(request), request), self._token)
                while True:
                    await asyncio.wait_for(stream.receive(events.answer), silence_s)
                    for event in events.take():
                        yield event
        except asyncio.TimeoutError:
            raise TimedOut("no event in time") from None
        except OSError as error:
            raise NoAnswer(f"{self.url}: {error}") from error

    async def close(self) -> None:
        """Closes the kept connections. The client can still be used."""
        self._enter()
        kept, self._kept = self._kept, []
        for stream in kept:
            stream.close()
        for stream in kept:
            with contextlib.suppress(OSError):
                await stream.writer.wait_closed()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _exchange(self, request: Request) -> Response:
        self._enter()
        async with self._free:
            return await self._exchange_now(request)

    def _enter(self) -> None:
        """Starts over if the client is used from a new event loop."""
        notice_fork()
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise RuntimeError("another running event loop uses this AsyncClient; make one client per loop")
        for stream in self._kept:
            stream.leave()
        self._begin()
        self._loop = loop

    async def _exchange_now(self, request: Request) -> Response:
        head = self._head(request)
        while True:
            stream, kept = await self._take()
            try:
                answer = await stream.begin(head, request)
                while not answer.done:
                    await stream.receive(answer)
            except (NoAnswer, OSError) as error:
                stream.close()
                if may_send_again(request, kept=kept, sent_bytes=stream.sent, got_bytes=stream.got):
                    continue
                if isinstance(error, NoAnswer):
                    raise
                raise NoAnswer(f"{self.url}: {error}") from error
            except BaseException:
                stream.close()
                raise
            if answer.keeps_alive and (len(self._kept) < MAX_KEPT or self._free.locked()):
                self._kept.append(stream)
            else:
                stream.close()
            return answer.answer()

    async def _take(self) -> tuple[_Stream, bool]:
        while self._kept:
            stream = self._kept.pop()
            if stream.is_usable:
                return stream, True
            stream.close()
        return await self._connect(), False

    async def _connect(self) -> _Stream:
        address = self._address
        try:
            loop = asyncio.get_running_loop()
            reader = _Reader()
            protocol = asyncio.StreamReaderProtocol(reader)
            if address.path:
                transport, _ = await loop.create_unix_connection(lambda: protocol, address.path)
            else:
                name = address.name if self._tls else None
                transport, _ = await loop.create_connection(
                    lambda: protocol, address.name, address.port, ssl=self._tls, server_hostname=name
                )
            return _Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        except OSError as error:
            raise NoAnswer(f"{address.path or address.host} cannot be reached: {error}") from error
