"""One connection of the blocking client. Each wait has a deadline on the monotonic clock, except a wait for
events."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import ssl
import time

from cairn._forks import in_each_child
from cairn.address import Address
from cairn.errors import NoAnswer, TimedOut
from cairn.http import Buffer, Request, Response, ResponseReader

# Smaller bodies are sent in one piece with the head.
JOINED_BYTES = 64 << 10
# The most open files that the server sends with one answer.
MAX_FILES = 8


def connect(address: Address, tls: ssl.SSLContext | None, deadline: float) -> Connection:
    """Opens a connection. Raises TimedOut or another NoAnswer that says why it failed."""
    where = address.path or address.host
    try:
        if address.path:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.settimeout(_left(deadline))
                made.connect(address.path)
            except BaseException:
                made.close()
                raise
            return Connection(made, passes_files=True)
        made = socket.create_connection((address.name, address.port), _left(deadline))
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                made.settimeout(_left(deadline))
                made = tls.wrap_socket(made, server_hostname=address.name)
            return Connection(made, passes_files=False)
        except BaseException:
            made.close()
            raise
    except TimeoutError as error:
        raise TimedOut(f"{where} did not accept a connection in time") from error
    except OSError as error:
        raise NoAnswer(f"{where} cannot be reached: {error}") from error


class Connection:
    """Used by one thread at a time."""

    def __init__(self, made: socket.socket, *, passes_files: bool) -> None:
        self.reusable = True
        self.sent = 0  # bytes sent of the current request
        self.got = 0  # bytes received of its answer
        self._socket = made
        self._passes_files = passes_files
        self._files: list[int] = []
        # Otherwise a forked child could read the parent's answers, and the server would not notice that the parent
        # ended.
        in_each_child(self.close)

    def is_usable(self) -> bool:
        """True if a kept connection is still usable: the server neither closed it nor sent unexpected bytes."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def exchange(self, head: memoryview, request: Request, deadline: float) -> Response:
        """Sends one request and returns its answer."""
        reader = self.begin(head, request, deadline)
        while not reader.done:
            self.receive(reader, deadline)
        self.reusable = reader.keeps_alive
        response = reader.answer()
        response.files, self._files = self._files, []
        return response

    def begin(self, head: memoryview, request: Request, deadline: float) -> ResponseReader:
        """Sends a request. Pass the reader it returns to `receive` to get the answer."""
        self.sent = self.got = 0
        body = list(request.body or ())
        pieces: list[Buffer] = [head, *body]
        if request.body_bytes <= JOINED_BYTES:
            pieces = [memoryview(b"".join(pieces))]
        if request.files and not self._passes_files:
            raise ValueError("open files can be sent over a unix: address only")
        try:
            for number, piece in enumerate(pieces):
                self._send(memoryview(piece).cast("B"), deadline, request.files if number == 0 else ())
        except (BrokenPipeError, ConnectionResetError):
            # The server may have refused before it read the whole body. The caller reads that answer next, or the
            # end of the connection.
            self.reusable = False
            if self.sent == 0:
                raise NoAnswer("the connection was closed") from None
        except TimeoutError:
            raise TimedOut(f"{request.method} {request.target}: not sent in time") from None
        except OSError as error:
            raise NoAnswer(f"{request.method} {request.target}: {error}") from error
        return ResponseReader(request.method)

    def receive(self, reader: ResponseReader, deadline: float | None) -> None:
        """Waits for more of an answer; without a deadline it waits until some arrives."""
        try:
            self._socket.settimeout(None if deadline is None else _left(deadline))
            count = self._recv_into(reader.room)
        except TimeoutError:
            raise TimedOut(f"no answer in time, after {reader.got_bytes} bytes of it") from None
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error}") from error
        self.got += count
        reader.got(count)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []
        with contextlib.suppress(OSError):
            self._socket.close()

    def _send(self, data: memoryview, deadline: float, files: tuple[int, ...]) -> None:
        while data:
            self._socket.settimeout(_left(deadline))
            # The kernel passes the files with the first byte.
            count = socket.send_fds(self._socket, [data], files) if files else self._socket.send(data)
            files = ()
            self.sent += count
            data = data[count:]

    def _recv_into(self, room: memoryview) -> int:
        if not self._passes_files:
            return self._socket.recv_into(room)
        # CLOEXEC: a program that this process starts meanwhile must not keep a tier's memory alive.
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        count, control, _, _ = self._socket.recvmsg_into([room], socket.CMSG_SPACE(4 * MAX_FILES), flags)
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files = array.array("i")
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
                self._files += files
        return count


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
