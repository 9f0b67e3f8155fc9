"""HTTP/1.1 without sockets: what a request looks like, and how an answer is read as its bytes arrive.

The two clients move bytes; everything that they agree on stands here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import quote, quote_plus

from cairn.errors import BadAnswer, WrongArgument, refusal

T = TypeVar("T")
# Or any other object with a C-contiguous buffer: an array of numpy's, say.
Buffer = bytes | bytearray | memoryview

# Heads of this server are below 2 KiB; what is longer is no server of ours.
MAX_HEAD_BYTES = 64 << 10
# Twice what one request may name in the largest blocks that are in use.
MAX_BODY_BYTES = 64 << 30
# What is received at a time where the length is not known: a head, and the hot verbs' answers with it.
PIECE_BYTES = 16 << 10


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: tuple[Buffer, ...] | None = field(default=None, repr=False)
    # Done twice it leaves the same as done once, and its answer says the same.
    idempotent: bool = False
    # Open files that go along, over a Unix socket (SCM_RIGHTS); they stay the caller's.
    files: tuple[int, ...] = ()

    @property
    def body_bytes(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.body or ())


@dataclass
class Response:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytearray = field(default_factory=bytearray, repr=False)
    # Open files that came along (SCM_RIGHTS): the taker's to close.
    files: list[int] = field(default_factory=list)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def memory_id(self) -> str | None:
        """Of the memory that the answer's handles are of."""
        return self.headers.get("cairn-memory")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One verb of the API: what is sent, and what its answer means."""

    request: Request
    read: Callable[[Response], T]
    # The server was asked to wait for so long: the client's time-out comes on top.
    wait_s: float = 0.0
    # An answer that takes longer is of no use, whatever the client's time-out.
    limit_s: float = math.inf


def target(*segments: str, query: dict[str, object] | None = None) -> str:
    """A path of segments, and the query of those values that are not None."""
    path = "/" + "/".join(map(_quoted, segments))
    given = [f"{name}={_plain(value)}" for name, value in (query or {}).items() if value is not None]
    return f"{path}?{'&'.join(given)}" if given else path


@functools.lru_cache(1024)  # verbs, and as many caches as a client has use for
def _quoted(segment: str) -> str:
    return quote(segment, safe="")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else quote_plus(str(value))


def flat(data: object, what: str = "the data") -> memoryview:
    """The bytes of a buffer in place, in the order of its values. WrongArgument where they do not lie so."""
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        raise WrongArgument(
            f"{what} is of the type {type(data).__name__}; it takes bytes or another C-contiguous buffer"
        ) from None
    if not view.c_contiguous:
        raise WrongArgument(f"{what} is a {type(data).__name__} that is not C-contiguous; copy it into one")
    if "O" in re.sub(":[^:]*:", "", view.format):  # without the names of a structure's fields
        raise WrongArgument(f"{what} is a {type(data).__name__} of Python objects, which lie elsewhere")
    return view.cast("B") if view.nbytes else memoryview(b"")  # there is no cast of a shape with a 0 in it


def head_of(request: Request, host: str, token: str | None) -> memoryview:
    """The request up to its body; as a view, whose repr, in a traceback's locals, does not show the token."""
    lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {host}"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    lines += [f"{name}: {value}" for name, value in request.headers]
    if request.body is not None:
        lines.append(f"Content-Length: {request.body_bytes}")
    return memoryview(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def may_send_again(request: Request, *, kept: bool, sent_bytes: int, got_bytes: int) -> bool:
    """Whether a request whose connection broke goes over a new one. A kept connection may have died between
    two requests; a new one that breaks says something about the server."""
    return kept and got_bytes == 0 and (request.idempotent or sent_bytes == 0)


Steps = Generator[memoryview, int, T]


def read_answer(call: Call[T], response: Response, token: str | None = None) -> T:
    """What the answer means, or the refusal that it is. token: that of the request."""
    # A HEAD has no body that would say more than its status.
    if response.status >= 400 and not (call.request.method == "HEAD" and response.status == 404):
        raise refusal(response.status, bytes(response.body), response.headers.get("retry-after"), token)
    return call.read(response)


class ResponseReader:
    """Reads one answer. Receive into `room`, say how much came with `got`, until `done`.

    Where the length of the body is known it is received where it stays, without a copy.
    """

    def __init__(self, method: str) -> None:
        self.done = False
        self.keeps_alive = False
        self.got_bytes = 0
        self.response: Response | None = None
        self._ends_with_connection = False
        self._method = method
        self._rest = bytearray()  # has come and is not yet read
        self._steps = self._read()
        self.room = next(self._steps)

    def got(self, count: int) -> None:
        """So many bytes have come into `room`; 0 where the connection has ended."""
        if count == 0:
            if not self._ends_with_connection:
                raise BadAnswer(f"the connection ended after {self.got_bytes} bytes of an answer")
            self.done = True
            return
        self.got_bytes += count
        try:
            self.room = self._steps.send(count)
        except StopIteration:
            self.done = True

    def answer(self) -> Response:
        """The whole answer. REQUIRES: done."""
        assert self.done and self.response is not None
        return self.response

    def take_body(self) -> bytes:
        """What came of the body since the last time: for an answer without an end."""
        if self.response is None:
            return b""
        taken = bytes(self.response.body)
        self.response.body = bytearray()
        return taken

    def _read(self) -> Steps[None]:
        response = _head(bytes((yield from self._through(b"\r\n\r\n"))))
        while 100 <= response.status < 200:
            response = _head(bytes((yield from self._through(b"\r\n\r\n"))))
        self.response = response
        encoding = response.headers.get("transfer-encoding", "").lower()
        if self._method == "HEAD" or response.status in (204, 304):
            pass
        elif encoding == "chunked":
            yield from self._chunks(response)
        elif encoding:
            raise BadAnswer(f"a body in the transfer encoding {encoding}")
        elif "content-length" in response.headers:
            yield from self._sized(response, _number(response.headers["content-length"], 10))
        else:
            self._ends_with_connection = True
            while True:
                response.body += self._rest
                self._rest.clear()
                yield from self._more()
        # More than was asked for: whose it is cannot be known.
        self.keeps_alive = not self._rest and response.headers.get("connection", "").lower() != "close"

    def _more(self) -> Steps[None]:
        piece = bytearray(PIECE_BYTES)
        count = yield memoryview(piece)
        self._rest += memoryview(piece)[:count]

    def _through(self, mark: bytes) -> Steps[bytearray]:
        while (at := self._rest.find(mark)) < 0:
            if len(self._rest) > MAX_HEAD_BYTES:
                raise BadAnswer(f"no end of a head within {MAX_HEAD_BYTES} bytes")
            yield from self._more()
        found = self._rest[:at]
        del self._rest[: at + len(mark)]
        return found

    def _sized(self, response: Response, length: int) -> Steps[None]:
        have = min(length, len(self._rest))
        response.body = bytearray(length)
        response.body[:have] = self._rest[:have]
        del self._rest[:have]
        room = memoryview(response.body)
        while have < length:
            have += yield room[have:]

    def _chunks(self, response: Response) -> Steps[None]:
        while True:
            line = yield from self._through(b"\r\n")
            size = _number(line.decode("latin-1").partition(";")[0], 16)
            if size == 0:
                break
            if len(response.body) + size > MAX_BODY_BYTES:
                raise BadAnswer(f"a body of more than {MAX_BODY_BYTES} bytes")
            while len(self._rest) < size + 2:
                yield from self._more()
            response.body += self._rest[:size]
            del self._rest[: size + 2]
        while (yield from self._through(b"\r\n")):
            pass  # trailers


def _head(head: bytes) -> Response:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdecimal():
        raise BadAnswer(f"no head of HTTP/1.1: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer(f"no header: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    return Response(int(status), headers)


def _number(text: str, base: int) -> int:
    try:
        number = int(text.strip(), base)
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_BODY_BYTES:
        raise BadAnswer(f"no length of a body: {text[:40]!r}")
    return number
