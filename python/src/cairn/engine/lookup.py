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
from cairn.engine.groups import Groups
from cairn.engine.hints import Hint
from cairn.engine.report import Report
from cairn.engine.store import clear_caches
from cairn.errors import CairnError, Refused, UnknownCache, is_silence
from cairn.leases import KeptLease, LeaseKeeper
from cairn.model import Match, MatchedBlock, Reuse, Tier
from cairn.packed import Reach

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
# How often the ranks are asked for a prefix that all of them can serve. Each answer but the last makes it shorter.
MAX_ROUNDS = 16


@dataclass
class Found:
    """How many keys of a prefix every rank can serve, the leases that pin the blocks, and how many keys the full
    groups in the caches reach; None if that is the same."""

    blocks: int = 0
    leases: list[KeptLease] = field(default_factory=list)
    full_blocks: int | None = None

    @property
    def reach(self) -> Reach:
        return Reach(self.blocks, self.blocks if self.full_blocks is None else self.full_blocks)


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
        found = Found()
        if not self._breaker.may_ask():
            return found
        try:
            self._search(keys, wanted_from, session, found)
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

    def _search(self, keys: Sequence[bytes], wanted_from: int, session: str | None, found: Found) -> None:
        """Fills `found`, also in part if this raises."""
        found.blocks = len(keys)
        for cache in self._caches:
            match = self._match(cache, keys[: found.blocks], found, session)
            if match is None or match.lease is None:
                found.blocks = 0
                break
            self._bring_up(cache, match.blocks[wanted_from:])
            found.blocks = min(found.blocks, match.matched)

    def _match(
        self, cache: str, keys: Sequence[bytes], found: Found, session: str | None, have: int | None = None
    ) -> Match | None:
        """Its lease, if any, is added to `found`. None if there is no such cache."""
        asked_at = time.monotonic()
        try:
            match = self._client.match(cache, keys, lease_ms=LEASE_MS, session=session, have=have)
        except UnknownCache:
            return None  # its rank has not made it yet, or not again since the server's restart
        if match.lease is not None:
            found.leases.append(self._keeper.keep(match.lease, LEASE_MS, asked_at))
        if self._on_found is not None:
            self._on_found(cache, match.blocks)
        return match

    def _bring_up(self, cache: str, blocks: Sequence[MatchedBlock]) -> None:
        if self._fast_tier is None:
            return
        lower: dict[str | None, list[bytes]] = {}
        for block in blocks:
            if block.tier != self._fast_tier:
                lower.setdefault(block.kv_group, []).append(block.key)
        for group, keys in lower.items():
            # If this is refused, the load waits for the blocks or reads them over HTTP.
            with contextlib.suppress(Refused):
                self._client.transfer(cache, keys, self._fast_tier, kv_group=group)

    def _failed(self, error: Exception) -> None:
        self._report.count("lookup_failures")
        if not is_silence(error):
            self._report.warn(f"a look-up failed: {error!r}")
        elif self._breaker.silent():
            self._report.warn(f"the server does not answer; until it does, look-ups are misses: {error}")


class GroupFinder(Finder):
    """Looks in caches with KV groups. A prefix that some rank cannot serve may still have a shorter one that all
    can, and a rank that can serve a prefix may not be able to serve a shorter one."""

    def __init__(
        self,
        client: Client,
        caches: Sequence[str],
        fast_tier: Tier | None,
        report: Report,
        groups: Groups,
        on_found: Callable[[str, Sequence[MatchedBlock]], None] | None = None,
    ) -> None:
        super().__init__(client, caches, fast_tier, report, on_found)
        self._groups = groups

    def _search(self, keys: Sequence[bytes], wanted_from: int, session: str | None, found: Found) -> None:
        full = self._agree(keys, 0, wanted_from, session, found)
        if wanted_from > 0 and found.blocks <= wanted_from:
            # The full groups' first blocks may be gone here, but the engine has them.
            self._agree(keys, wanted_from, wanted_from, session, found)
        found.full_blocks = full
        if found.blocks <= wanted_from:
            # Nothing is loaded. How far the full groups reach says what to save.
            self.release(found)

    def _agree(self, keys: Sequence[bytes], have: int, wanted_from: int, session: str | None, found: Found) -> int:
        """Finds the longest prefix that all ranks can serve and at which an engine can resume, and pins it in
        place of what `found` pins. Returns how far the full groups of all ranks reach."""
        self.release(found)
        wanted, full = len(keys), len(keys)
        served = dict.fromkeys(self._caches, -1)
        matches: dict[str, tuple[Match, list[KeptLease]]] = {}
        for _ in range(MAX_ROUNDS):
            for cache in self._caches:
                if served[cache] == wanted or wanted == 0:
                    continue
                one = Found()
                match = self._match(cache, keys[:wanted], one, session, min(have, wanted))
                self._take(found, matches.pop(cache, (None, []))[1], one.leases)
                served[cache] = matched = 0 if match is None else match.matched
                reached = 0 if match is None else match.full_matched
                full = full if reached is None or reached >= wanted else min(full, reached)
                if match is not None:
                    matches[cache] = match, one.leases
                wanted = min(wanted, matched // self._groups.unit_keys * self._groups.unit_keys)
            if wanted == 0 or all(one == wanted for one in served.values()):
                break
        else:
            wanted = 0
        found.blocks = wanted
        if wanted > wanted_from:
            for cache, (match, _) in matches.items():
                self._bring_up(cache, self._wanted(match, keys, wanted_from))
        return full

    def _take(self, found: Found, old: list[KeptLease], new: list[KeptLease]) -> None:
        """Pins `new` in place of `old`."""
        found.leases = [lease for lease in found.leases if lease not in old] + new
        for lease in old:
            self._keeper.drop(lease)

    def _wanted(self, match: Match, keys: Sequence[bytes], wanted_from: int) -> list[MatchedBlock]:
        """The blocks of a match that the engine does not have."""
        has = set(keys[:wanted_from])
        states = {group.name for group in self._groups.groups if group.kind == "state"}
        return [block for block in match.blocks if block.kv_group in states or block.key not in has]


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
    ) -> Reach | None:
        """How far the server's blocks of `keys` reach, or None if that is not known yet. The blocks stay pinned
        until `take` or `forget`."""
        found = self._found.get(request)
        if found is not None and self._finder.is_held(found):
            return found.reach
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
            return Reach(0, 0)
        del self._under_way[request]
        self._found[request] = found
        return found.reach

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
