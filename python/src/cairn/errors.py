"""The package's exceptions, with one class for each problem code of the server.

`Refused` and its subclasses mean that the server refused. `NoAnswer` and its subclasses mean that no whole answer
came.
"""

from __future__ import annotations

import json
from typing import ClassVar


class CairnError(Exception):
    """The base class of every error of this package. `code` is a stable snake_case word."""

    code: str = "error"


class NoAnswer(CairnError):
    """The server could not be reached, or did not send a whole answer."""

    code = "no_answer"


class TimedOut(NoAnswer):
    """The client's own timeout ended the call. The server may still have done what was asked."""

    code = "timed_out"


class BadAnswer(NoAnswer):
    """An answer does not have the form that the contract promises."""

    code = "bad_answer"


class WrongArgument(CairnError, TypeError, ValueError):
    """An argument that the API cannot accept. Nothing was sent."""

    code = "wrong_argument"


class LeaseLost(CairnError):
    """A lease ended while its blocks were in use. Discard what was read; what was written is gone."""

    code = "lease_lost"


class Refused(CairnError):
    """The server refused the request (a problem of RFC 9457). A code without its own class raises this class.

    status: the HTTP status. code: the problem's code. detail: the server's explanation. retry_after_s: seconds
    after which to try again, or None if the server did not say.
    """

    code = "refused"
    _by_code: ClassVar[dict[str, type[Refused]]] = {}

    def __init__(self, status: int, code: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(status, code, detail, retry_after_s)  # so that the error can be copied and pickled
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.detail}"

    def __init_subclass__(cls) -> None:
        Refused._by_code[cls.code] = cls


# Statuses of a server that starts, drains, or is not reachable through its proxy.
NOT_SERVING = (502, 503, 504)


def is_silence(error: BaseException) -> bool:
    """True if the error only means that no server is serving right now. The same request may succeed a moment
    later."""
    return isinstance(error, NoAnswer) or (isinstance(error, Refused) and error.status in NOT_SERVING)


def refusal(status: int, body: bytes, retry_after: str | None, token: str | None = None) -> Refused:
    """Makes the exception for an error status. A proxy's error page may repeat the request, so the request's
    `token` is removed from the text."""
    if token is not None:
        body = body.replace(token.encode(), b"<token>")
    code, detail = "refused", body[:300].decode(errors="replace")
    try:
        problem = json.loads(body)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        pass  # not the server's answer but, for example, a proxy's page
    kind = Refused._by_code.get(code, Refused)
    wait_s = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    return kind(status, code, detail, wait_s)


class Malformed(Refused):
    code = "malformed"


class UnknownField(Refused):
    code = "unknown_field"


class MissingField(Refused):
    code = "missing_field"


class WrongType(Refused):
    code = "wrong_type"


class OutOfRange(Refused):
    code = "out_of_range"


class WrongLength(Refused):
    code = "wrong_length"


class Unauthorized(Refused):
    code = "unauthorized"


class Forbidden(Refused):
    code = "forbidden"


class UnknownCache(Refused):
    code = "unknown_cache"


class UnknownLease(Refused):
    code = "unknown_lease"


class UnknownPin(Refused):
    code = "unknown_pin"


class UnknownKey(Refused):
    code = "unknown_key"


class UnknownTransfer(Refused):
    code = "unknown_transfer"


class UnknownSlot(Refused):
    code = "unknown_slot"


class UnknownSnapshot(Refused):
    code = "unknown_snapshot"


class UnknownGroup(Refused):
    code = "unknown_group"


class UnknownAgent(Refused):
    code = "unknown_agent"


class NotFound(Refused):
    code = "not_found"


class MethodNotAllowed(Refused):
    code = "method_not_allowed"


class StaleGeneration(Refused):
    code = "stale_generation"


class StateConflict(Refused):
    code = "state_conflict"


class ForeignLease(Refused):
    code = "foreign_lease"


class Leased(Refused):
    code = "leased"


class CacheExists(Refused):
    code = "cache_exists"


class GroupExists(Refused):
    code = "group_exists"


class AgentExists(Refused):
    code = "agent_exists"


class RankTaken(Refused):
    code = "rank_taken"


class LeaseExpired(Refused):
    code = "lease_expired"


class BodyTooLarge(Refused):
    code = "body_too_large"


class UnsupportedMediaType(Refused):
    code = "unsupported_media_type"


class RangeNotSatisfiable(Refused):
    code = "range_not_satisfiable"


class Impossible(Refused):
    code = "impossible"


class ImpossibleShape(Refused):
    code = "impossible_shape"


class UnknownTier(Refused):
    code = "unknown_tier"


class UnknownKvGroup(Refused):
    code = "unknown_kv_group"


class BrokenSnapshot(Refused):
    code = "broken_snapshot"


class QueueFull(Refused):
    code = "queue_full"


class TooMany(Refused):
    code = "too_many"


class Unavailable(Refused):
    code = "unavailable"


class PeerLost(Refused):
    code = "peer_lost"


class NoCapacity(Refused):
    code = "no_capacity"


class IoFailed(Refused):
    code = "io_error"


class ChecksumMismatch(Refused):
    code = "checksum_mismatch"


class DeviceFailed(Refused):
    code = "device_error"


class Cancelled(Refused):
    code = "cancelled"


class DeadlineExceeded(Refused):
    code = "deadline_exceeded"


class NotImplementedThere(Refused):
    code = "not_implemented"


class Internal(Refused):
    code = "internal"


class UnknownHost(Refused):
    code = "unknown_host"


class CrossSite(Refused):
    code = "cross_site"


class Exists(Refused):
    code = "exists"


class LeaseQuota(Refused):
    code = "lease_quota"
