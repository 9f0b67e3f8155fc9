"""What an engine's request says of the future of its blocks, as far as it is well-formed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

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


def hint_of(fields: object) -> Hint:
    """The members `reuse` and `session` of a mapping; others are somebody else's. ValueError names what is wrong:
    the server would refuse the whole request for it."""
    if not isinstance(fields, Mapping):
        return NO_HINT
    reuse, session = fields.get("reuse"), fields.get("session")
    if reuse is not None and not _is_reuse(reuse):
        raise ValueError(f"reuse is {reuse!r}; it takes never, soon, later or {{'within_ms': N}}")
    if session is not None and not (isinstance(session, str) and 1 <= len(session.encode()) <= MAX_SESSION_BYTES):
        raise ValueError(f"session is {session!r}; it takes a string of 1 to {MAX_SESSION_BYTES} bytes")
    return Hint(cast("Reuse | None", reuse), session)


def _is_reuse(value: Any) -> bool:
    if isinstance(value, str):
        return value in WORDS
    within = value.get("within_ms") if isinstance(value, Mapping) and len(value) == 1 else None
    return type(within) is int and within >= 0
