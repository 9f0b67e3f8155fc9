"""Actions in an engine's requests: what a request says, and a thread that sends it to the server.

The engine's loop only hands actions over. A server that is slow, gone or refuses them never delays or fails a
request.

Actions on the request's own blocks are sent when the request has ended. Only then do its blocks include those of
the answer, with which the next turn goes on. One message names all of them, found or stored, on each rank. The
other way, a pin with each commit, would make a pin for each step that fills a block, and none for the blocks that
were found. Until the request ends its blocks are the most recently used ones, so that they rarely need a pin.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cairn._forks import in_each_child
from cairn.client import Client
from cairn.engine.access import Breaker
from cairn.engine.hints import cairn_fields
from cairn.engine.report import Report
from cairn.errors import CairnError, UnknownCache, is_silence
from cairn.model import ActionResult

# The server's limit for a message.
MAX_ACTIONS = 256
# The most requests whose actions wait to be sent: as many as engines usually run at once. More wait only if the
# server is slower than the engine.
MAX_WAITING = 256
# The most keys in a message, unless a single action has more. In hex they take 9 MB; the server accepts 32 MiB.
MAX_KEYS = 131_072
# How long actions wait until the blocks of their request are stored and no longer leased: as long as a save may take.
# Then they are sent for the blocks that are there.
STORED_WAIT_S = 5.0
# How often the server is asked whether they are. A save takes about a millisecond, a late one much longer.
FIRST_POLL_S, LONGEST_POLL_S = 0.01, 0.5
# The longest wait for the messages that are left at the engine's end: two look-ups' timeouts.
CLOSE_S = 4.0

PROTOCOL = VERSION = "1"
OUTCOMES = ("accepted", "clipped", "deferred", "rejected", "missing")
# The times of `cache_control`, as in the server.
CONTROL_MS = {"5m": 300_000, "1h": 3_600_000}

# Returns the keys of these tokens with this salt, or without tokens those of the request's own prompt.
KeysOf = Callable[[Sequence[int] | None, str | None], Sequence[bytes]]


@dataclass(frozen=True)
class Wish:
    """One action of a request, in the form of an envelope. Without a target in its payload it means the request's
    own blocks."""

    id: str
    type: str
    version: Any
    payload: Mapping[str, Any]
    protocol: Any = PROTOCOL
    message: str = ""  # the envelope that it came in

    @property
    def is_own(self) -> bool:
        return self.payload.get("target") is None

    @property
    def is_late(self) -> bool:
        """Whether it is sent when the request has ended. A prefetch would then be of no use."""
        return self.is_own and self.type != "prefetch"


def wishes_of(request: str, params: object, hints: object, report: Report) -> list[Wish]:
    """The actions of a request.

    params: its `kv_transfer_params`, with `actions`, `cache_control` and an envelope `kv_hints`.
    hints: the envelope that came with it, as a mapping or an object.

    A malformed part is ignored, logged and counted: the server would refuse the whole message.
    """
    fields = cairn_fields(params)
    parts: list[tuple[str, object, Callable[[Any, str], list[Wish]]]] = [
        ("kv_hints", hints, _of_envelope),
        ("kv_transfer_params.kv_hints", fields.get("kv_hints"), _of_envelope),
        ("kv_transfer_params.actions", fields.get("actions"), _of_actions),
        ("kv_transfer_params.cache_control", fields.get("cache_control"), _of_control),
    ]
    wishes: list[Wish] = []
    for where, given, read in parts:
        if given is None:
            continue
        try:
            more = read(given, request)
            if len(wishes) + len(more) > MAX_ACTIONS:
                raise ValueError(f"a request may have {MAX_ACTIONS} actions")
            wishes += more
        except ValueError as error:
            report.count("actions_failed")
            report.warn(f"{where} of a request is ignored: {error}")
    return wishes


class RequestActions:
    """Sends the actions of an engine's requests. Used by the engine's loop only, which never waits, except in
    `close`."""

    def __init__(self, client: Client, caches: Sequence[str], report: Report) -> None:
        """caches: of all ranks. Each gets all actions."""
        self._client = client
        self._caches = caches
        self._report = report
        self._breaker = Breaker(time.monotonic)
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._posts: list[_Post] = []  # a heap
        self._waiting = 0  # posts that are in the heap, or being sent
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None  # most engines never get an action
        self._closing = False
        self._late: dict[str, list[Wish]] = {}  # by request that has not ended

    def arrived(self, request: str, wishes: Sequence[Wish], keys_of: KeysOf | None) -> None:
        """A request with these actions has arrived. keys_of: is called on another thread. None if only the server
        knows the keys of tokens; then a prefetch needs a target."""
        late = [wish for wish in wishes if wish.is_late]
        if late:
            self._late[request] = late
        self._add([wish for wish in wishes if not wish.is_late], keys_of, ())

    def ended(
        self,
        request: str,
        keys: Sequence[bytes],
        stored: Sequence[bytes],
        releases: Sequence[Future[None]] = (),
    ) -> None:
        """A request has ended. keys: of its blocks. stored: those that are stored by now, or will be soon.
        releases: of leases on its blocks, under way. A demotion leaves out blocks with a lease."""
        wishes = self._late.pop(request, None)
        if wishes is not None:
            own = list(keys)
            self._add(wishes, lambda tokens, salt: own, list(stored), releases)

    def close(self) -> None:
        """Sends what waits, for at most CLOSE_S."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)

    def _add(
        self,
        wishes: Sequence[Wish],
        keys_of: KeysOf | None,
        stored: Sequence[bytes],
        releases: Sequence[Future[None]] = (),
    ) -> None:
        if not wishes:
            return
        now = time.monotonic()
        with self._changed:
            full = self._waiting >= MAX_WAITING
            if not full:
                self._waiting += 1
                post = _Post(now, next(self._numbers), wishes, keys_of, stored, releases, now + STORED_WAIT_S)
                heapq.heappush(self._posts, post)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="cairn-actions", daemon=True)
                    self._thread.start()
                self._changed.notify()
        if full:
            self._failed(wishes, "too many requests with actions wait")

    def _run(self) -> None:
        while (post := self._next()) is not None:
            if self._report.guard("actions: a look-up failed", True, functools.partial(self._is_ready, post)):
                self._report.guard("actions could not be sent", None, functools.partial(self._send, post))
                with self._lock:
                    self._waiting -= 1
            else:
                with self._lock:
                    post.due, post.pause_s = time.monotonic() + post.pause_s, min(2 * post.pause_s, LONGEST_POLL_S)
                    heapq.heappush(self._posts, post)

    def _next(self) -> _Post | None:
        """Waits for the next post that is due. None at the engine's end, if there is none."""
        with self._changed:
            while True:
                if not self._posts:
                    if self._closing:
                        return None
                    self._changed.wait()
                    continue
                left_s = self._posts[0].due - time.monotonic()
                if left_s <= 0 or self._closing:
                    return heapq.heappop(self._posts)
                self._changed.wait(left_s)

    def _is_ready(self, post: _Post) -> bool:
        """Whether the blocks of the request are stored and its leases released, or the wait for that is over."""
        if self._closing or time.monotonic() >= post.give_up_at or self._breaker.is_silent:
            return True
        if not all(release.done() for release in post.releases):
            return False
        if not post.stored:
            return True
        try:
            return all("." not in self._client.contains(cache, post.stored) for cache in self._caches)
        except UnknownCache:
            return False  # after the server's restart, a save makes it again
        except CairnError:
            return True  # sending them says why

    def _send(self, post: _Post) -> None:
        messages = list(self._messages(post))
        for cache in self._caches:
            for wishes, message in messages:
                if not self._breaker.may_ask():
                    self._failed(wishes, "the server did not answer a moment ago")
                    continue
                try:
                    results = self._client.actions(cache, message)
                except CairnError as error:
                    if is_silence(error):
                        self._breaker.silent()
                    self._failed(wishes, str(error))
                else:
                    self._breaker.answered()
                    self._count(wishes, results)

    def _messages(self, post: _Post) -> Iterator[tuple[list[Wish], dict[str, Any]]]:
        """The envelopes to send: one for each that the actions came in, or several if they name many keys."""
        wishes: list[Wish] = []
        actions: list[dict[str, Any]] = []
        count = 0
        for wish in post.wishes:
            target = self._target(wish, post.keys_of)
            if target is None:
                continue
            keys = _member(target, "keys")
            more = len(keys) if isinstance(keys, list) else 0
            first = wishes[0] if wishes else wish
            same = (first.protocol, first.message) == (wish.protocol, wish.message)
            if wishes and (not same or count + more > MAX_KEYS):
                yield wishes, _envelope(first, actions)
                wishes, actions, count = [], [], 0
            # Nobody waits for the transfer.
            payload = {name: value for name, value in wish.payload.items() if name not in ("target", "wait_ms")}
            wishes.append(wish)
            actions.append(
                {
                    "action_id": wish.id,
                    "action_type": wish.type,
                    "action_version": wish.version,
                    "payload": {**payload, "target": target},
                }
            )
            count += more
        if wishes:
            yield wishes, _envelope(wishes[0], actions)

    def _target(self, wish: Wish, keys_of: KeysOf | None) -> object:
        """What the server takes as the target; None if that is no block, or wrong."""
        target = wish.payload.get("target")
        tokens = target.get("tokens") if isinstance(target, Mapping) else None
        if keys_of is None or (target is not None and tokens is None):
            if target is None:
                self._failed([wish], f"a {wish.type} without a target comes too late")
            return target
        try:
            keys = keys_of(tokens, None if target is None else target.get("salt"))
        except Exception as error:
            self._failed([wish], f"the tokens of a {wish.type} are wrong: {error!r}")
            return None
        if not keys:  # it has no full block
            self._report.count("actions_missing", len(self._caches))
            return None
        return {"keys": [key.hex() for key in keys]}

    def _count(self, wishes: Sequence[Wish], results: Sequence[ActionResult]) -> None:
        for wish, result in zip(wishes, results, strict=False):
            outcome = result.outcome if result.outcome in OUTCOMES else "failed"
            self._report.count(f"actions_{outcome}")
            if result.reason is not None:
                self._report.warn(f"{wish.type} of a request was {outcome}: {result.reason}")

    def _failed(self, wishes: Sequence[Wish], why: str) -> None:
        self._report.count("actions_failed", len(wishes))
        self._report.warn(f"actions of requests are not carried out: {why}")


@dataclass(order=True)
class _Post:
    """Actions to send together."""

    due: float
    number: int
    wishes: Sequence[Wish] = field(compare=False)
    keys_of: KeysOf | None = field(compare=False)
    stored: Sequence[bytes] = field(compare=False)
    releases: Sequence[Future[None]] = field(compare=False)
    give_up_at: float = field(compare=False)
    pause_s: float = field(default=FIRST_POLL_S, compare=False)


def _envelope(first: Wish, actions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"protocol_version": first.protocol, "message_id": first.message, "actions": actions}


def _of_envelope(given: Any, request: str) -> list[Wish]:
    protocol, message, actions = (_member(given, name) for name in ("protocol_version", "message_id", "actions"))
    if not isinstance(message, str) or protocol is None or not _is_list(actions):
        raise ValueError("an envelope has a protocol_version, a message_id and a list of actions")
    wishes = []
    for action in actions:
        name, kind, version = (_member(action, f"action_{one}") for one in ("id", "type", "version"))
        payload = _member(action, "payload")
        if not isinstance(name, str) or not isinstance(kind, str) or not isinstance(payload, Mapping):
            raise ValueError("each action has an action_id, an action_type, an action_version and a payload")
        wishes.append(Wish(name, kind, version, payload, protocol, message))
    return wishes


def _of_actions(given: Any, request: str) -> list[Wish]:
    if not _is_list(given):
        raise ValueError("it is no list")
    wishes = []
    for at, action in enumerate(given):
        if not isinstance(action, Mapping) or not isinstance(action.get("type"), str):
            raise ValueError(f"action {at} has no type")
        name = action.get("id", str(at))
        if not isinstance(name, str):
            raise ValueError(f"the id of action {at} is no string")
        payload = {member: value for member, value in action.items() if member not in ("id", "type")}
        wishes.append(Wish(name, action["type"], VERSION, payload, message=request))
    return wishes


def _of_control(given: Any, request: str) -> list[Wish]:
    kind, ttl = (given.get("type"), given.get("ttl", "5m")) if isinstance(given, Mapping) else (None, None)
    if kind != "ephemeral" or not isinstance(ttl, str) or ttl not in CONTROL_MS or set(given) - {"type", "ttl"}:
        raise ValueError(f'it is {given!r}; it must be {{"type": "ephemeral", "ttl": "5m" or "1h"}}')
    payload = {"ttl_ms": CONTROL_MS[ttl], "refresh_on_hit": True}
    return [Wish("cache_control", "pin", VERSION, payload, message=request)]


def _member(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def _is_list(given: object) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)
