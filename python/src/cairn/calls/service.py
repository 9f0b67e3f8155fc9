"""The server itself, and its events."""

from __future__ import annotations

from typing import Any

from cairn.calls import _parts as parts
from cairn.http import Call, Request, target
from cairn.model import System


def healthy() -> Call[None]:
    """Returns if the server is alive."""
    return parts.get("/healthz", parts.nothing)


def ready() -> Call[None]:
    """Returns if the server is serving. Raises Unavailable while it starts, drains, or has lost a device."""
    return parts.get("/readyz", parts.nothing)


def system() -> Call[System]:
    """The server's version, runtime, devices and pressure."""
    return parts.get(target("v1", "system"), parts.into(System))


def metrics() -> Call[str]:
    """The metrics in the Prometheus text format."""
    return parts.get("/metrics", lambda response: response.body.decode())


def openapi() -> Call[dict[str, Any]]:
    """The server's OpenAPI document."""
    return parts.get("/openapi.json", parts.into(dict[str, Any]))


def events(*, cache: str | None = None, after: int | None = None) -> Call[None]:
    """Requests the events of one cache or of all, those after the event with id `after` if that is given. The
    answer has no end: the clients read it piece by piece."""
    headers: tuple[tuple[str, str], ...] = (("Accept", "text/event-stream"),)
    if after is not None:
        headers += (("Last-Event-ID", str(after)),)
    request = Request("GET", target("v1", "events", query={"cache": cache}), headers)
    return Call(request, parts.nothing)
