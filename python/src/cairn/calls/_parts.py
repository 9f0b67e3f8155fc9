"""What the calls have in common: JSON requests, and answers as dataclasses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from cairn.decode import decode, encode
from cairn.errors import BadAnswer
from cairn.http import Buffer, Call, Request, Response, flat
from cairn.model import Reuse, Transfer

T = TypeVar("T")

JSON = ("Content-Type", "application/json")
BYTES = ("Content-Type", "application/octet-stream")


def document(response: Response) -> Any:
    try:
        return json.loads(response.body)
    except ValueError as error:
        raise BadAnswer(f"the answer is not JSON: {error}") from None


def into(kind: type[T]) -> Callable[[Response], T]:
    """Decodes an answer as `kind`."""
    return lambda response: decode(kind, document(response))


def listed(name: str, kind: type[T]) -> Callable[[Response], list[T]]:
    """Decodes an answer whose only content is the list `name`."""

    def read(response: Response) -> list[T]:
        answer = document(response)
        if not isinstance(answer, dict) or not isinstance(answer.get(name), list):
            raise BadAnswer(f"the answer has no list {name}")
        return [decode(kind, item, name) for item in answer[name]]

    return read


def nothing(_: Response) -> None:
    return None


def raw(response: Response) -> bytes:
    return bytes(response.body)


def number_in(response: Response, header: str) -> int:
    text = response.headers.get(header, "")
    if not text.isdecimal():
        raise BadAnswer(f"the answer has no number in its header {header}")
    return int(text)


def fields(**given: object) -> dict[str, Any]:
    """A JSON body of the fields that are not None."""
    return {name: encode(value) for name, value in given.items() if value is not None}


def hint_query(reuse: Reuse | None, session: str | None) -> dict[str, object]:
    """A hint as parameters of a query."""
    return {"reuse": json.dumps(reuse) if isinstance(reuse, dict) else reuse, "session": session}


def get(target: str, read: Callable[[Response], T | Call[T]], *, wait_s: float = 0.0) -> Call[T]:
    return Call(Request("GET", target, idempotent=True), read, wait_s)


def delete(target: str, read: Callable[[Response], T | Call[T]]) -> Call[T]:
    return Call(Request("DELETE", target, idempotent=True), read)


def post(
    target: str,
    body: dict[str, Any] | None,
    read: Callable[[Response], T | Call[T]],
    *,
    wait_ms: int | None = None,
    idempotent: bool = False,
    headers: tuple[tuple[str, str], ...] = (),
) -> Call[T]:
    if body is None:
        return Call(Request("POST", target, headers, (), idempotent), read)
    return Call(Request("POST", target, (JSON, *headers), (_json(body),), idempotent), read, (wait_ms or 0) / 1000)


def transfer(target: str, wait_ms: int | None, **given: object) -> Call[Transfer]:
    """Starts a transfer with those fields that are not None. The server answers after `wait_ms` at the latest."""
    return post(target, fields(**given, wait_ms=wait_ms), into(Transfer), wait_ms=wait_ms)


def put(target: str, body: dict[str, Any], read: Callable[[Response], T]) -> Call[T]:
    return Call(Request("PUT", target, (JSON,), (_json(body),), idempotent=True), read)


def patch(target: str, body: dict[str, Any], read: Callable[[Response], T]) -> Call[T]:
    return Call(Request("PATCH", target, (JSON,), (_json(body),)), read)


def put_bytes(target: str, data: Buffer, read: Callable[[Response], T]) -> Call[T]:
    return Call(Request("PUT", target, (BYTES,), (flat(data),), idempotent=True), read)


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
