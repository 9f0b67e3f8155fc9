"""The server itself, and its events."""

from __future__ import annotations

from typing import Any

from cairn.calls import _parts as parts
from cairn.decode import decode
from cairn.http import Call, Request, Response, target
from cairn.model import System


def healthy() -> Call[None]:
    """Answered where the server is alive."""
    return parts.get("/healthz", parts.nothing)


def ready() -> Call[None]:
    """Answered where the server serves; Unavailable while it starts, drains, or has lost a device."""
    return parts.get("/readyz", parts.nothing)


def system() -> Call[System]:
    """Version, runtime, devices and pressure."""
    return parts.get(target("v1", "system"), parts.into(System))


def metrics() -> Call[str]:
    """The metrics as Prometheus reads them."""
    return parts.get("/metrics", lambda response: response.body.decode())


def openapi() -> Call[dict[str, Any]]:
    """The server's own description of its API."""
    return parts.get("/openapi.json", _object)


def events(*, cache: str | None = None, after: int | None = None) -> Call[None]:
    """Asks for events of one cache or all, from behind the event of id `after`. The answer has no end: the
    clients read it piece by piece."""
    headers: tuple[tuple[str, str], ...] = (("Accept", "text/event-stream"),)
    if after is not None:
        headers += (("Last-Event-ID", str(after)),)
    request = Request("GET", target("v1", "events", query={"cache": cache}), headers)
    return Call(request, parts.nothing)


def _object(response: Response) -> dict[str, Any]:
    return decode(dict[str, Any], parts.document(response))
