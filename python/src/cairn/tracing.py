"""Joins the calls of a client to the trace of what causes them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar

from cairn.errors import WrongArgument

_TRACEPARENT: ContextVar[str | None] = ContextVar("cairn_traceparent", default=None)
# A valid header value cannot end the header. The server ignores what is no traceparent.
_HEADER = re.compile(r"[0-9a-zA-Z-]{1,256}")


@contextlib.contextmanager
def traced(traceparent: str | None) -> Iterator[None]:
    """Within it, each call of this thread or task has this `traceparent` (W3C Trace Context), so that the server's
    spans are parts of that trace. None: calls have none.

    With OpenTelemetry: `opentelemetry.propagate.inject(carrier := {})`, then `with traced(carrier["traceparent"]):`.
    Raises WrongArgument if it cannot be a header's value."""
    if traceparent is not None and not _HEADER.fullmatch(traceparent):
        raise WrongArgument("traceparent has characters that it must not have; it takes VERSION-TRACE-PARENT-FLAGS")
    token = _TRACEPARENT.set(traceparent)
    try:
        yield
    finally:
        _TRACEPARENT.reset(token)


def current_traceparent() -> str | None:
    return _TRACEPARENT.get()


def traceparent_in(headers: object) -> str | None:
    """The traceparent among an engine's headers of a request; None if there is none that can be used."""
    get = getattr(headers, "get", None)
    value = get("traceparent") if get is not None else None
    return value if isinstance(value, str) and _HEADER.fullmatch(value) else None
