"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TypeVar

from cairn._verbs import async_verb as verb
from cairn.address import parse_address
from cairn.calls import agents as _agents
from cairn.calls import caches as _caches
from cairn.calls import keys as _keys
from cairn.calls import life as _life
from cairn.calls import movement as _movement
from cairn.calls import service as _service
from cairn.client import MAX_KEPT
from cairn.errors import NoAnswer, TimedOut
from cairn.http import (
    PIECE_BYTES,
    Call,
    Request,
    Response,
    ResponseReader,
    head_of,
    may_send_again,
    read_answer,
)
from cairn.model import Event
from cairn.sse import EventReader

T = TypeVar("T")


class _Stream:
    """A connection: a reader and a writer of asyncio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent = 0
        self.got = 0

    @property
    def has_ended(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None or self.writer.is_closing()

    async def begin(self, head: bytes, request: Request) -> ResponseReader:
        if request.files:
            raise ValueError("open files go along with calls of the blocking client only")
        self.sent = self.got = 0
        for piece in (head, *(request.body or ())):
            self.writer.write(piece)
            self.sent += memoryview(piece).nbytes  # how much of it has left is not known here
        # A refusal may come before the whole body was sent: it is read next, or the end is.
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()
        return ResponseReader(request.method)

    async def receive(self, answer: ResponseReader) -> None:
        data = await self.reader.read(min(len(answer.room), PIECE_BYTES * 16))
        answer.room[: len(data)] = data
        self.got += len(data)
        answer.got(len(data))

    def close(self) -> None:
        self.writer.close()


class AsyncClient:
    """`Client` for asyncio: the same parameters, verbs and errors, each verb to be awaited. It belongs to one
    event loop, and to all tasks of that. Open files do not come along with `export`: mapping a tier is
    `TierView`'s, with a `Client`.
    """

    def __init__(self, url: str, token: str | None = None, ca: str | None = None, timeout: float = 30.0) -> None:
        self.url = url
        self.timeout = timeout
        self._address = parse_address(url)
        self._token = token
        self._ca = ca
        self._tls = ssl.create_default_context(cafile=ca) if self._address.tls else None
        self._kept: list[_Stream] = []

    def apart(self) -> AsyncClient:
        """The same server and token, over connections of its own."""
        return AsyncClient(self.url, self._token, self._ca, self.timeout)

    async def perform(self, call: Call[T], /) -> T:
        """Sends a call of `cairn.calls` and reads its answer."""
        try:
            response = await asyncio.wait_for(self._exchange(call.request), self.timeout + call.wait_s)
        except asyncio.TimeoutError:
            raise TimedOut(f"{call.request.method} {call.request.target}: no answer in time") from None
        return read_answer(call, response)

    async def events(
        self, *, cache: str | None = None, after: int | None = None, silence_s: float | None = None
    ) -> AsyncIterator[Event]:
        """As `Client.events`."""
        request = _service.events(cache=cache, after=after).request
        try:
            stream = await asyncio.wait_for(self._connect(), self.timeout)
            with contextlib.closing(stream):
                events = EventReader(await stream.begin(self._head(request), request))
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
            if answer.keeps_alive and len(self._kept) < MAX_KEPT:
                self._kept.append(stream)
            else:
                stream.close()
            return answer.answer()

    async def _take(self) -> tuple[_Stream, bool]:
        while self._kept:
            stream = self._kept.pop()
            if not stream.has_ended:
                return stream, True
            stream.close()
        return await self._connect(), False

    async def _connect(self) -> _Stream:
        address = self._address
        try:
            if address.path:
                return _Stream(*await asyncio.open_unix_connection(address.path))
            name = address.name if self._tls else None
            return _Stream(
                *await asyncio.open_connection(address.name, address.port, ssl=self._tls, server_hostname=name)
            )
        except OSError as error:
            raise NoAnswer(f"{address.path or address.host} cannot be reached: {error}") from error

    def _head(self, request: Request) -> bytes:
        return head_of(request, self._address.host, self._token)

    healthy = verb(_service.healthy)
    ready = verb(_service.ready)
    system = verb(_service.system)
    metrics = verb(_service.metrics)
    openapi = verb(_service.openapi)

    make_cache = verb(_caches.make_cache)
    caches = verb(_caches.caches)
    cache = verb(_caches.cache)
    drop_cache = verb(_caches.drop_cache)
    change_cache = verb(_caches.change_cache)
    leases = verb(_caches.leases)
    pending = verb(_caches.pending)
    miss_ratio = verb(_caches.miss_ratio)
    evict = verb(_caches.evict)
    clear = verb(_caches.clear)
    blocks = verb(_caches.blocks)
    export = verb(_caches.export)
    metadata = verb(_caches.metadata)
    set_metadata = verb(_caches.set_metadata)

    match = verb(_life.match)
    match_tokens = verb(_life.match_tokens)
    allocate = verb(_life.allocate)
    write_slot = verb(_life.write_slot)
    commit = verb(_life.commit)
    renew = verb(_life.renew)
    release = verb(_life.release)
    hint = verb(_life.hint)

    put = verb(_keys.put)
    get = verb(_keys.get)
    has = verb(_keys.has)
    delete = verb(_keys.delete)
    read = verb(_keys.read)
    write = verb(_keys.write)

    transfer = verb(_movement.transfer)
    transfers = verb(_movement.transfers)
    drain = verb(_movement.drain)
    transfer_state = verb(_movement.transfer_state)
    cancel_transfer = verb(_movement.cancel_transfer)
    snapshots = verb(_movement.snapshots)
    make_snapshot = verb(_movement.make_snapshot)
    restore_snapshot = verb(_movement.restore_snapshot)
    drop_snapshot = verb(_movement.drop_snapshot)
    join_group = verb(_movement.join_group)
    groups = verb(_movement.groups)
    group = verb(_movement.group)
    leave_group = verb(_movement.leave_group)
    send = verb(_movement.send)
    recv = verb(_movement.recv)
    broadcast = verb(_movement.broadcast)
    all_gather = verb(_movement.all_gather)
    agree = verb(_movement.agree)
    all_reduce = verb(_movement.all_reduce)

    put_agent = verb(_agents.put_agent)
    agents = verb(_agents.agents)
    agent = verb(_agents.agent)
    drop_agent = verb(_agents.drop_agent)
    load = verb(_agents.load)
    store = verb(_agents.store)
    devices = verb(_agents.devices)
    empty_device_cache = verb(_agents.empty_device_cache)
    reset_device_peaks = verb(_agents.reset_device_peaks)
