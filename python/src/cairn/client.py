"""The blocking client."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Generator
from types import TracebackType
from typing import TypeVar

from cairn._base import ClientBase
from cairn._forks import notice_fork
from cairn.address import token_from
from cairn.calls import service
from cairn.connection import Connection, connect
from cairn.errors import NoAnswer, Refused, TimedOut
from cairn.http import Call, Request, Response, may_send_again, pause_before_retry_s, read_answer
from cairn.model import Event
from cairn.named import Cache
from cairn.sse import EventReader

T = TypeVar("T")

# Idle connections kept for later calls. If more threads call at once, they open connections and close them again.
MAX_KEPT = 16


class Client(ClientBase):
    """The API of one server. Safe from several threads: each call uses its own connection. Idle connections are
    kept; after a server's restart, and in a forked child, the client opens new ones. It can be pickled, token
    included.

    url: `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:/PATH`.
    token: the bearer token, if the server requires one. Surrounding white space is removed.
    ca: a PEM file of CA certificates to verify the server with, instead of the system's.
    timeout: the most seconds a call may take, in addition to the time the server was asked to wait (`wait_ms`).
    retries: how often a call is sent again, within its time, that the server refused with a `Retry-After` (429,
    503, 507): after that time. A refused call has changed nothing.

    Every call raises a subclass of `Refused` (say `UnknownCache`) if the server refuses it, `NoAnswer` if no whole
    answer comes in time, and `WrongArgument`, before anything is sent, for an argument that the API cannot accept.
    If a kept connection turns out to be dead, the call is sent once more, provided that it is idempotent or that
    none of it was sent.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        ca: str | None = None,
        timeout: float = 30.0,
        *,
        retries: int = 0,
    ) -> None:
        token = token_from(token, "token")  # replaces the text, which a traceback's local variables would show
        super().__init__(url, token, ca, timeout, retries)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Connection] = []

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(type(self), retries=self.retries), (self.url, self._token, self._ca, self.timeout)

    def apart(self) -> Client:
        """A client of the same server and token with its own connections."""
        return Client(self.url, self._token, self._ca, self.timeout, retries=self.retries)

    def perform(self, call: Call[T], /) -> T:
        """Sends a call made by `cairn.calls` and returns its decoded answer."""
        notice_fork()
        deadline = time.monotonic() + min(self.timeout, call.limit_s) + call.wait_s
        left = self.retries
        while True:
            response = self._exchange(call.request, deadline)
            try:
                answer = read_answer(call, response, self._token)
            except Refused as error:
                pause_s = pause_before_retry_s(error, left, deadline)
                if pause_s is None:
                    raise
                left -= 1
                time.sleep(pause_s)
                continue
            finally:
                for file in response.files:  # those that `call.read` did not take over
                    os.close(file)
            if not isinstance(answer, Call):
                return answer
            call = answer

    def cache(self, name: str) -> Cache:
        """The cache with this name as an object, which has the verbs of one cache. It sends nothing."""
        return Cache(self, name)

    def events(
        self, *, cache: str | None = None, after: int | None = None, silence_s: float | None = None
    ) -> Generator[Event, None, None]:
        """Yields events of one cache, or of all, from now on, or those after the event with id `after`. Raises
        NoAnswer if the server ends the stream or sends nothing for `silence_s` seconds (None: waits without
        limit). Pass the last event's id as `after` to resume."""
        request = service.events(cache=cache, after=after).request
        deadline = time.monotonic() + self.timeout
        connection = self._connect(deadline)
        with contextlib.closing(connection):
            events = EventReader(connection.begin(self._head(request), request, deadline), self._token)
            while True:
                connection.receive(events.answer, None if silence_s is None else time.monotonic() + silence_s)
                yield from events.take()

    def close(self) -> None:
        """Closes the kept connections. The client can still be used."""
        with self._lock:
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, request: Request, deadline: float) -> Response:
        head = self._head(request)
        while True:
            connection, kept = self._take(deadline)
            try:
                response = connection.exchange(head, request, deadline)
            except TimedOut:
                connection.close()
                raise
            except NoAnswer:
                connection.close()
                if may_send_again(request, kept=kept, sent_bytes=connection.sent, got_bytes=connection.got):
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            self._keep(connection)
            return response

    def _connect(self, deadline: float) -> Connection:
        return connect(self._address, self._tls, deadline)

    def _take(self, deadline: float) -> tuple[Connection, bool]:
        while True:
            with self._lock:
                connection = self._kept.pop() if self._kept else None
            if connection is None:
                return self._connect(deadline), False
            if connection.is_usable():
                return connection, True
            connection.close()

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            if connection.reusable and len(self._kept) < MAX_KEPT:
                self._kept.append(connection)
                return
        connection.close()
