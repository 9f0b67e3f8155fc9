"""Looks up prefixes on threads of their own, so that the engine's loop can poll instead of waiting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field

from cairn._forks import in_each_child
from cairn.client import Client
from cairn.engine.access import Breaker
from cairn.engine.hints import Hint
from cairn.engine.report import Report
from cairn.engine.store import clear_caches
from cairn.errors import CairnError, Refused, UnknownCache, is_silence
from cairn.leases import KeptLease, LeaseKeeper
from cairn.model import Match, MatchedBlock, Reuse, Tier

# The longest that the engine's loop waits when a request is first looked up: longer than a look-up on the same
# host (about 0.3 ms per rank), shorter than a step.
POLL_S = 0.01
# The longest wait of each later poll.
POLL_AGAIN_S = 0.001
# A look-up that takes longer counts as a miss.
DEADLINE_S = 2.0
THREADS = 2
# How long blocks stay pinned if this process dies.
LEASE_MS = 30_000


@dataclass
class Found:
    """How many blocks of a prefix every rank has, and the leases that pin them."""

    blocks: int = 0
    leases: list[KeptLease] = field(default_factory=list)


class Finder:
    """Looks for a prefix in the caches of all ranks. Used by the threads of `Lookups`."""

    def __init__(
        self,
        client: Client,
        caches: Sequence[str],
        fast_tier: Tier | None,
        report: Report,
        on_found: Callable[[str, Sequence[MatchedBlock]], None] | None = None,
    ) -> None:
        """on_found: called with a cache's name and the blocks found in it."""
        self._on_found = on_found
        self._client = client
        self._caches = caches
        self._fast_tier = fast_tier
        self._report = report
        self._keeper = LeaseKeeper(client)
        self._breaker = Breaker(time.monotonic)

    @property
    def is_silent(self) -> bool:
        """Whether the server did not answer the last request."""
        return self._breaker.is_silent

    def find(self, keys: Sequence[bytes], wanted_from: int, session: str | None = None) -> Found:
        """Finds and pins the prefix that every rank has. Blocks from index `wanted_from` on that are below the
        fast tier are being moved up when this returns. Finds nothing if the server does not answer. `session` is
        the conversation."""
        found = Found(len(keys))
        if not self._breaker.may_ask():
            return Found()
        try:
            for cache in self._caches:
                match = self._match(cache, keys[: found.blocks], found, session)
                if match is None:
                    found.blocks = 0
                    break
                self._bring_up(cache, match.blocks[wanted_from:])
                found.blocks = min(found.blocks, match.matched)
        except Exception as error:  # no error may reach the engine's loop
            self._failed(error)
            self.release(found)
            return Found()
        if self._breaker.answered():
            self._report.info("the server answers again")
        if found.blocks == 0:
            self.release(found)
        return found

    def is_held(self, found: Found) -> bool:
        now = time.monotonic()
        return all(lease.is_held(now) for lease in found.leases)

    def release(self, found: Found) -> None:
        for lease in found.leases:
            self._keeper.drop(lease)
        found.leases = []

    def hint(self, keys: Sequence[bytes], reuse: Reuse) -> None:
        """Reports when blocks will be used next. If that fails, only the order of eviction is affected."""
        if not self._breaker.may_ask():
            return
        try:
            for cache in self._caches:
                with contextlib.suppress(UnknownCache):
                    self._client.hint(cache, reuse, keys=keys)
        except Exception as error:
            self._failed(error)

    def clear(self) -> bool:
        """Drops all blocks of the caches. Returns whether all are gone."""
        try:
            return clear_caches(self._client, self._caches)
        except CairnError as error:
            self._failed(error)
            return False

    def close(self) -> None:
        self._client.close()

    def _match(self, cache: str, keys: Sequence[bytes], found: Found, session: str | None) -> Match | None:
        asked_at = time.monotonic()
        try:
            match = self._client.match(cache, keys, lease_ms=LEASE_MS, session=session)
        except UnknownCache:
            return None  # its rank has not made it yet, or not again since the server's restart
        if match.lease is None:
            return None
        found.leases.append(self._keeper.keep(match.lease, LEASE_MS, asked_at))
        if self._on_found is not None:
            self._on_found(cache, match.blocks)
        return match

    def _bring_up(self, cache: str, blocks: Sequence[MatchedBlock]) -> None:
        lower = [block.key for block in blocks if self._fast_tier and block.tier != self._fast_tier]
        if not lower or self._fast_tier is None:
            return
        # If this is refused, the load waits for the blocks or reads them over HTTP.
        with contextlib.suppress(Refused):
            self._client.transfer(cache, lower, self._fast_tier)

    def _failed(self, error: Exception) -> None:
        self._report.count("lookup_failures")
        if not is_silence(error):
            self._report.warn(f"a look-up failed: {error!r}")
        elif self._breaker.silent():
            self._report.warn(f"the server does not answer; until it does, look-ups are misses: {error}")


class Lookups:
    """The look-ups of requests, running and finished. Used by the engine's loop only."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "cairn-lookup")
        self._under_way: dict[str, tuple[Future[Found], float]] = {}
        self._found: dict[str, Found] = {}

    def poll(
        self, request: str, keys: Sequence[bytes], wanted_from: int, session: str | None = None
    ) -> int | None:
        """How many blocks of `keys` the server has, or None if that is not known yet. The blocks stay pinned until
        `take` or `forget`."""
        found = self._found.get(request)
        if found is not None and self._finder.is_held(found):
            return found.blocks
        if found is not None:
            self.forget(request)
        wait_s = POLL_AGAIN_S
        if request not in self._under_way:
            future = self._threads.submit(self._finder.find, list(keys), wanted_from, session)
            self._under_way[request] = (future, time.monotonic() + DEADLINE_S)
            wait_s = POLL_S
        future, deadline = self._under_way[request]
        try:
            found = future.result(wait_s)
        except NotYet:
            if time.monotonic() < deadline:
                return None
            self._abandon(request)
            return 0
        del self._under_way[request]
        self._found[request] = found
        return found.blocks

    def take(self, request: str) -> Found:
        """Returns what pins the request's blocks. The caller must release it."""
        return self._found.pop(request, Found())

    def forget(self, request: str) -> None:
        """Releases what the request's look-up found, or will find."""
        if request in self._under_way:
            self._abandon(request)
        self.release(self.take(request))

    def hint(self, keys: Sequence[bytes], hint: Hint) -> None:
        """Reports when blocks will be used next, without waiting."""
        if keys and hint.reuse is not None:
            self._threads.submit(self._finder.hint, list(keys), hint.reuse)

    def release(self, found: Found) -> None:
        """Releases what was found, without waiting."""
        if found.leases:
            self._threads.submit(self._finder.release, found)

    def close(self) -> None:
        for request in [*self._under_way, *self._found]:
            self.forget(request)
        self._threads.shutdown(wait=True)
        self._finder.close()

    def _abandon(self, request: str) -> None:
        future, _ = self._under_way.pop(request)
        if not future.cancel():
            # On another thread, even if the result is here already. The look-up has begun, so the wait is short.
            self._threads.submit(lambda: self._finder.release(future.result()))
