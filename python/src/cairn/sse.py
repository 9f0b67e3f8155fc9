"""Parses Server-Sent Events, which may arrive in pieces of any size."""

from __future__ import annotations

import json

from cairn.errors import BadAnswer, NoAnswer, refusal
from cairn.http import ResponseReader
from cairn.model import Event

# An event names at most 64 keys. Anything longer is not a valid event.
MAX_EVENT_BYTES = 16 << 20


class EventReader:
    """Reads the events of an answer that has no end."""

    def __init__(self, answer: ResponseReader, token: str | None = None) -> None:
        """token: the request's. It is removed from the text of a refusal."""
        self.answer = answer
        self._token = token
        self._rest = b""

    def take(self) -> list[Event]:
        """Returns the events completed since the last call. Raises NoAnswer if the server ended the answer."""
        response = self.answer.response
        if response is not None and response.status != 200:
            if self.answer.done:
                raise refusal(response.status, bytes(response.body), None, self._token)
            return []
        *whole, self._rest = (self._rest + self.answer.take_body()).split(b"\n\n")
        if self.answer.done and not whole:
            raise NoAnswer("the server ended the events")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BadAnswer(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return [event for text in whole if (event := _event(text.decode()))]


def _event(text: str) -> Event | None:
    members: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        members[name] = members[name] + "\n" + value.lstrip(" ") if name in members else value.lstrip(" ")
    if "data" not in members:
        return None  # a comment, sent to keep the connection alive
    try:
        data = json.loads(members["data"])
        number = int(members["id"]) if "id" in members else None
    except ValueError as error:
        raise BadAnswer(f"not an event: {error}") from None
    return Event(members.get("event", "message"), number, data)
