"""What a request says about the future use of its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from cairn.engine.report import Report
from cairn.model import Reuse

WORDS = ("never", "soon", "later")
MAX_SESSION_BYTES = 128


@dataclass(frozen=True)
class Hint:
    reuse: Reuse | None = None
    session: str | None = None

    def __bool__(self) -> bool:
        return self.reuse is not None or self.session is not None


NO_HINT = Hint()


def cairn_fields(params: object) -> Mapping[str, Any]:
    """What a request's `kv_transfer_params` say to Cairn: their members, beside those of other connectors, and
    those of their member `cairn`, which count first."""
    if not isinstance(params, Mapping):
        return {}
    own = params.get("cairn")
    return {**params, **own} if isinstance(own, Mapping) else params


def hint_of(fields: object) -> Hint:
    """Reads `reuse` and `session` from a mapping and ignores other members. Raises ValueError, which names the
    mistake, for a malformed one: the server would refuse the whole request."""
    if not isinstance(fields, Mapping):
        return NO_HINT
    reuse, session = fields.get("reuse"), fields.get("session")
    if reuse is not None and not _is_reuse(reuse):
        raise ValueError(f"reuse is {reuse!r}; it must be never, soon, later or {{'within_ms': N}}")
    if session is not None and not (isinstance(session, str) and 1 <= len(session.encode()) <= MAX_SESSION_BYTES):
        raise ValueError(f"session is {session!r}; it must be a string of 1 to {MAX_SESSION_BYTES} bytes")
    return Hint(cast("Reuse | None", reuse), session)


def hint_or_none(fields: object, where: str, report: Report) -> Hint:
    """Like `hint_of`, but logs a malformed hint, names `where` it came from, and returns no hint."""
    try:
        return hint_of(fields)
    except ValueError as error:
        report.warn(f"the hint in {where} is ignored: {error}")
        return NO_HINT


def _is_reuse(value: Any) -> bool:
    if isinstance(value, str):
        return value in WORDS
    within = value.get("within_ms") if isinstance(value, Mapping) and len(value) == 1 else None
    return type(within) is int and within >= 0
