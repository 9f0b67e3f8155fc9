"""HTTP/1.1 as a proxy needs it: heads that are read and written again, and bodies that pass unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

# The most bytes of a head. llama-server accepts less.
MAX_HEAD_BYTES = 64 << 10
PIECE_BYTES = 64 << 10
# Headers of one connection, which a proxy does not pass on.
OF_CONNECTION = frozenset({"connection", "keep-alive", "proxy-connection", "expect", "te", "upgrade"})


class Malformed(ValueError):
    """What came is no HTTP, or is beyond a limit. `status` is the response to a client that sent it."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Reader(asyncio.StreamReader):
    """A StreamReader that reports the end of its connection, even if nobody reads."""

    def __init__(self) -> None:
        super().__init__(limit=MAX_HEAD_BYTES)
        self.ended = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.ended.set()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)  # type: ignore[arg-type, unused-ignore]
        self.ended.set()


@dataclass
class Head:
    """The first line of a request or response as three words, and its headers in order."""

    words: tuple[str, str, str]
    headers: list[tuple[str, str]] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        return next((value for one, value in self.headers if one.lower() == name), None)

    def without(self, names: frozenset[str]) -> Head:
        return Head(self.words, [(name, value) for name, value in self.headers if name.lower() not in names])

    @property
    def is_chunked(self) -> bool:
        return (self.get("transfer-encoding") or "").lower().endswith("chunked")

    @property
    def length(self) -> int | None:
        text = self.get("content-length")
        if text is None:
            return None
        if not text.isdecimal():
            raise Malformed("the header Content-Length has no number")
        return int(text)

    @property
    def keeps_alive(self) -> bool:
        connection = (self.get("connection") or "").lower()
        version = self.words[0] if self.words[0].startswith("HTTP/") else self.words[2]
        return "keep-alive" in connection if version == "HTTP/1.0" else "close" not in connection

    def encode(self) -> bytes:
        lines = [" ".join(word for word in self.words if word), *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None at the end of the connection. Raises Malformed."""
    try:
        text = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise Malformed("the connection ended within a head") from None
        return None
    except asyncio.LimitOverrunError:
        raise Malformed(f"a head has more than {MAX_HEAD_BYTES} bytes", 431) from None
    lines = text.decode("latin-1").strip("\r\n").split("\r\n")
    first = lines[0].split(" ", 2)
    if len(first) < 2:
        raise Malformed("the first line is neither a request nor a response")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Malformed("a line is no header")
        headers.append((name, value.strip()))
    words = (first[0], first[1], first[2] if len(first) > 2 else "")
    if len({value for name, value in headers if name.lower() == "content-length"}) > 1:
        raise Malformed("there are two lengths")
    head = Head(words, headers)
    if head.is_chunked and head.get("content-length") is not None:
        raise Malformed("a chunked body has a length")  # servers disagree where it ends
    return head


async def body_pieces(reader: asyncio.StreamReader, head: Head, *, to_end: bool = False) -> AsyncIterator[bytes]:
    """The bytes of a body as they were sent, chunks with their sizes. to_end: a body without a length goes on to the
    end of the connection. Raises Malformed if the connection ends too early."""
    try:
        if head.is_chunked:
            async for piece, _ in _chunks(reader):
                yield piece
        elif (left := head.length) is not None:
            while left:
                piece = await reader.read(min(left, PIECE_BYTES))
                if not piece:
                    raise Malformed("the connection ended within a body")
                left -= len(piece)
                yield piece
        elif to_end:
            while piece := await reader.read(PIECE_BYTES):
                yield piece
    except asyncio.IncompleteReadError:
        raise Malformed("the connection ended within a body") from None
    except asyncio.LimitOverrunError:
        raise Malformed("a chunk has no end of its size") from None


async def read_body(reader: asyncio.StreamReader, head: Head, most_bytes: int, *, to_end: bool = False) -> bytes:
    """A whole body without the sizes of chunks. Raises Malformed, with status 413 beyond `most_bytes`."""
    parts: list[bytes] = []
    size = 0
    if head.is_chunked:
        try:
            async for piece, is_data in _chunks(reader):
                size += len(piece)
                if size > most_bytes:
                    raise Malformed(f"a body has more than {most_bytes} bytes", 413)
                if is_data:
                    parts.append(piece)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise Malformed("the connection ended within a body") from None
        return b"".join(parts)
    if (head.length or 0) > most_bytes:
        raise Malformed(f"a body has more than {most_bytes} bytes", 413)
    async for piece in body_pieces(reader, head, to_end=to_end):
        size += len(piece)
        if size > most_bytes:
            raise Malformed(f"a body has more than {most_bytes} bytes", 413)
        parts.append(piece)
    return b"".join(parts)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    """The bytes of a chunked body, each piece with whether it is data. They come as soon as they are there."""
    while True:
        line = await reader.readuntil(b"\r\n")
        try:
            left = int(line.split(b";")[0], 16)
        except ValueError:
            raise Malformed("a chunk has no size") from None
        if left < 0:
            raise Malformed("a chunk has a negative size")
        yield line, False
        if not left:
            break
        while left:
            piece = await reader.read(min(left, PIECE_BYTES))
            if not piece:
                raise Malformed("the connection ended within a chunk")
            left -= len(piece)
            yield piece, True
        yield await reader.readexactly(2), False
    while True:  # what follows the last chunk, up to an empty line
        line = await reader.readuntil(b"\r\n")
        yield line, False
        if line == b"\r\n":
            return
