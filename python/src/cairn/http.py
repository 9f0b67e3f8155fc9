"""HTTP/1.1 without sockets: builds requests and parses answers as their bytes arrive. Both clients use it and only
move the bytes."""

from __future__ import annotations

import ctypes
import functools
import math
import re
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, quote_plus

from cairn.errors import BadAnswer, Refused, WrongArgument, refusal

T = TypeVar("T")
# Any other object with a C-contiguous buffer works too, for example a numpy array, and so does a tensor of torch.
Buffer = bytes | bytearray | memoryview

# The server's heads are below 2 KiB. A longer one comes from another program.
MAX_HEAD_BYTES = 64 << 10
# Twice the most bytes that one request can name with the largest blocks in use.
MAX_BODY_BYTES = 64 << 30
# The receive size while the length is unknown. It fits a head, and the whole answer of the frequent calls.
PIECE_BYTES = 16 << 10


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: tuple[Buffer, ...] | None = field(default=None, repr=False)
    # Sending it twice has the same effect and the same answer as sending it once.
    idempotent: bool = False
    # Open files to send along over a Unix socket (SCM_RIGHTS). The caller keeps owning them.
    files: tuple[int, ...] = ()

    @property
    def body_bytes(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.body or ())


@dataclass
class Response:
    status: int
    headers: dict[str, str]  # names are in lower case
    body: bytearray = field(default_factory=bytearray, repr=False)
    # Open files received with the answer (SCM_RIGHTS). The caller that takes them must close them.
    files: list[int] = field(default_factory=list)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def memory_id(self) -> str | None:
        """Identifies the memory that the handles in the answer refer to."""
        return self.headers.get("cairn-memory")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call of the API: the request, and how to decode its answer."""

    request: Request
    # Returns another call if the answer cannot be decoded without that one's answer.
    read: Callable[[Response], T | Call[T]]
    # How long the server was asked to wait. The client's timeout is added to it.
    wait_s: float = 0.0
    # A later answer is useless, however long the client's timeout is.
    limit_s: float = math.inf


def target(*segments: str, query: dict[str, object] | None = None) -> str:
    """Builds a path from segments, and a query from the values that are not None."""
    path = "/" + "/".join(map(_quoted, segments))
    given = [f"{name}={_plain(value)}" for name, value in (query or {}).items() if value is not None]
    return f"{path}?{'&'.join(given)}" if given else path


@functools.lru_cache(1024)  # enough for all method names and a client's caches
def _quoted(segment: str) -> str:
    return quote(segment, safe="")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else quote_plus(str(value))


def flat(data: object, what: str = "the data") -> memoryview:
    """The bytes of a buffer, or of a tensor of torch in host memory, without a copy. `what` names it in an error.
    Raises WrongArgument if it is not C-contiguous or does not hold plain values."""
    if callable(getattr(data, "data_ptr", None)):
        return _memory_of_tensor(data, what)
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        raise WrongArgument(
            f"{what} has type {type(data).__name__}; it must be bytes or another C-contiguous buffer"
        ) from None
    if not view.c_contiguous:
        raise WrongArgument(f"{what} is a {type(data).__name__} that is not C-contiguous; make a contiguous copy")
    if "O" in re.sub(":[^:]*:", "", view.format):  # ignoring the field names of a structured type
        raise WrongArgument(f"{what} is a {type(data).__name__} of Python objects; it must hold plain values")
    return view.cast("B") if view.nbytes else memoryview(b"")  # a shape with a 0 in it cannot be cast


def _memory_of_tensor(tensor: Any, what: str) -> memoryview:
    # Tensors have no buffers, and numpy's arrays have no bfloat16.
    if tensor.device.type != "cpu":
        raise WrongArgument(
            f"{what} is a tensor on {tensor.device}; copy it with .cpu(), or register its memory with AgentMemory"
        )
    if not tensor.is_contiguous():
        raise WrongArgument(f"{what} is a tensor that is not C-contiguous; use .contiguous()")
    if tensor.is_conj() or tensor.is_neg():  # a mark on memory with other values
        raise WrongArgument(f"{what} is a tensor that is not resolved; use .resolve_conj().resolve_neg()")
    size_bytes = tensor.numel() * tensor.element_size()
    memory = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    memory.tensor = tensor  # the view keeps `memory`, and `memory` keeps the tensor
    return memoryview(memory).cast("B") if size_bytes else memoryview(b"")


def head_of(request: Request, host: str, token: str | None, traceparent: str | None = None) -> memoryview:
    """The request up to its body. It is a memoryview because the repr of that does not show the token in a
    traceback's local variables."""
    lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {host}"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if traceparent is not None:
        lines.append(f"traceparent: {traceparent}")
    lines += [f"{name}: {value}" for name, value in request.headers]
    if request.body is not None:
        lines.append(f"Content-Length: {request.body_bytes}")
    return memoryview(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def may_send_again(request: Request, *, kept: bool, sent_bytes: int, got_bytes: int) -> bool:
    """Whether to repeat a request on a new connection after its connection broke. A kept connection may have ended
    between two requests; if a new one breaks, the server has a problem."""
    return kept and got_bytes == 0 and (request.idempotent or sent_bytes == 0)


Steps = Generator[memoryview, int, T]


def read_answer(call: Call[T], response: Response, token: str | None = None) -> T | Call[T]:
    """Decodes an answer, or raises the refusal it contains. `token` is the request's. Returns a call that must be
    performed next if the answer needs another one."""
    # The answer to HEAD has no body, so its 404 carries no more than the status.
    if response.status >= 400 and not (call.request.method == "HEAD" and response.status == 404):
        raise refusal(response.status, bytes(response.body), response.headers.get("retry-after"), token)
    return call.read(response)


def pause_before_retry_s(error: Refused, left: int, until: float) -> float | None:
    """Seconds until a refused call is sent again. None if it is not: the server named no time, no retry is `left`,
    or the time ends after `until` (of time.monotonic())."""
    pause_s = error.retry_after_s
    return pause_s if pause_s is not None and left > 0 and time.monotonic() + pause_s < until else None


class ResponseReader:
    """Parses one answer. Receive bytes into `room` and report their number with `got`, until `done` is true.

    If the body's length is known, `room` is the final place of the body, so nothing is copied.
    """

    def __init__(self, method: str) -> None:
        self.done = False
        self.keeps_alive = False
        self.got_bytes = 0
        self.response: Response | None = None
        self._ends_with_connection = False
        self._method = method
        self._rest = bytearray()  # received but not yet parsed
        self._steps = self._read()
        self.room = next(self._steps)

    def got(self, count: int) -> None:
        """Reports that `count` bytes arrived in `room`; 0 means that the connection ended."""
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
        """The body bytes that arrived since the last call. For an answer that has no end."""
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
            raise BadAnswer(f"unknown transfer encoding {encoding}")
        elif "content-length" in response.headers:
            yield from self._sized(response, _number(response.headers["content-length"], 10))
        else:
            self._ends_with_connection = True
            while True:
                response.body += self._rest
                self._rest.clear()
                yield from self._more()
        # Unexpected bytes after the answer: the connection cannot be reused.
        self.keeps_alive = not self._rest and response.headers.get("connection", "").lower() != "close"

    def _more(self) -> Steps[None]:
        piece = bytearray(PIECE_BYTES)
        count = yield memoryview(piece)
        self._rest += memoryview(piece)[:count]

    def _through(self, mark: bytes) -> Steps[bytearray]:
        while (at := self._rest.find(mark)) < 0:
            if len(self._rest) > MAX_HEAD_BYTES:
                raise BadAnswer(f"the answer's head is longer than {MAX_HEAD_BYTES} bytes")
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
                raise BadAnswer(f"the answer's body is longer than {MAX_BODY_BYTES} bytes")
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
        raise BadAnswer(f"not an HTTP/1.1 status line: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer(f"not a header: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    return Response(int(status), headers)


def _number(text: str, base: int) -> int:
    try:
        number = int(text.strip(), base)
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_BODY_BYTES:
        raise BadAnswer(f"not a body length: {text[:40]!r}")
    return number
