"""Looks up prefixes on threads of their own, so that the engine's loop can poll instead of waiting."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field, replace

from cairn._forks import in_each_child
from cairn.client import Client
from cairn.engine.access import Breaker
from cairn.engine.costs import Advice, Costs, Offer
from cairn.engine.groups import Group, Groups
from cairn.engine.hints import Hint
from cairn.engine.report import Report
from cairn.engine.store import clear_caches
from cairn.errors import CairnError, Refused, UnknownCache, is_silence
from cairn.leases import KeptLease, LeaseKeeper
from cairn.model import Match, MatchedBlock, Reuse, Tier
from cairn.packed import Reach, tier_runs

# The longest that the engine's loop waits when a request is first looked up: longer than a look-up on the same
# host (about 0.3 ms per rank), shorter than a step.
POLL_S = 0.01
# The longest wait of each later poll.
POLL_AGAIN_S = 0.001
# A look-up that takes longer counts as a miss.
DEADLINE_S = 2.0
THREADS = 2
# For waits for blocks of the shared tier. Further requests do not wait for theirs.
WAITING_THREADS = 4
# The longest such wait, also if computing would take longer or nobody knows how long. A lease is not renewed here.
MOST_WAIT_S = 10.0
# How long blocks stay pinned if this process dies.
LEASE_MS = 30_000
# The tiers in memory.
FAST = ("device", "pinned")
# How often the ranks are asked for a prefix that all of them can serve. Each answer but the last makes it shorter.
MAX_ROUNDS = 16
# For caches of one group whose users do not count tokens.
EACH_KEY = Groups.of([Group("default", "full", 1)])


@dataclass
class Found:
    """How many keys of a prefix every rank can serve, the leases that pin the blocks, and how many keys the full
    groups in the caches reach; None if that is the same."""

    blocks: int = 0
    leases: list[KeptLease] = field(default_factory=list)
    full_blocks: int | None = None
    # What to load, in tokens of the whole prefix. By default everything that was found.
    advice: Advice | None = None
    # What to load once blocks of the shared tier, which are on their way, are here; None: do not wait for them.
    awaited: Advice | None = None

    @property
    def reach(self) -> Reach:
        return Reach(self.blocks, self.blocks if self.full_blocks is None else self.full_blocks)


@dataclass
class _Agreed(Found):
    """What the ranks of a model with several groups can serve. with_shared: how many keys once the blocks of the
    shared tier are here."""

    matches: dict[str, Match] = field(default_factory=dict)
    with_shared: int = 0


class Finder:
    """Looks for a prefix in the caches of all ranks. Used by the threads of `Lookups`."""

    def __init__(
        self,
        client: Client,
        caches: Sequence[str],
        fast_tier: Tier | None,
        report: Report,
        groups: Groups = EACH_KEY,
        costs: Costs | None = None,
        on_found: Callable[[str, Sequence[MatchedBlock]], None] | None = None,
    ) -> None:
        """costs: say what to load; None: everything. on_found: called with a cache's name and the blocks found in
        it."""
        self._on_found = on_found
        self._client = client
        self._caches = caches
        self._fast_tier = fast_tier
        self._report = report
        self._groups = groups
        self._costs = costs or Costs("always", time.monotonic)
        self._block_bytes: dict[str | None, int] = {}  # of each KV group; of None in a cache without them
        self._keeper = LeaseKeeper(client)
        self._breaker = Breaker(time.monotonic)

    @property
    def is_silent(self) -> bool:
        """Whether the server did not answer the last request."""
        return self._breaker.is_silent

    def find(self, keys: Sequence[bytes], wanted_from: int, session: str | None = None) -> Found:
        """Finds and pins the prefix that every rank has. Blocks from index `wanted_from` on that are to be loaded
        and below the fast tier are being moved up when this returns. Finds nothing if the server does not answer.
        `session` is the conversation."""
        return self._guarded(lambda found: self._search(keys, wanted_from, session, found, None))

    def find_awaited(self, keys: Sequence[bytes], wanted_from: int, session: str | None, awaited: Advice) -> Found:
        """Waits for the blocks that `find` saw in the shared tier, and then does the same without that tier."""

        def search(found: Found) -> None:
            self._wait(keys, awaited)
            self._search(keys, wanted_from, session, found, False)

        return self._guarded(search)

    def _guarded(self, search: Callable[[Found], None]) -> Found:
        found = Found()
        if not self._breaker.may_ask():
            return found
        try:
            search(found)
        except Exception as error:  # no error may reach the engine's loop
            self._failed(error)
            self.release(found)
            return Found()
        if self._breaker.answered():
            self._report.info("the server answers again")
        if found.blocks == 0:
            self.release(found)
        return found

    def _wait(self, keys: Sequence[bytes], awaited: Advice) -> None:
        assert awaited.offer is not None
        began = time.monotonic()
        count, limit_s = awaited.offer.tokens // self._groups.key_tokens, min(awaited.limit_s, MOST_WAIT_S)
        arrived = True
        for cache in self._caches:
            left_ms = max(int((limit_s - (time.monotonic() - began)) * 1000), 1)
            match = self._client.match(cache, keys[:count], lease_ms=0, wait_ms=left_ms)
            arrived = arrived and match.matched >= count
        took = time.monotonic() - began
        sources = {source: size for source, size in awaited.offer.sources.items() if source == "shared"}
        if arrived:
            self._costs.loaded(sources, took)
        elif took >= limit_s:
            self._report.count("waits_given_up")
            self._costs.gave_up(sources, took)

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

    def _search(
        self, keys: Sequence[bytes], wanted_from: int, session: str | None, found: Found, shared: bool | None
    ) -> None:
        """Fills `found`, also in part if this raises. shared: False does not ask the shared tier."""
        found.blocks, with_shared = len(keys), len(keys)
        matches: dict[str, Match] = {}
        for cache in self._caches:
            match = self._match(cache, keys[: found.blocks], found, session, shared)
            if match is None or (match.lease is None and not match.shared_matched):
                found.blocks = 0
                return
            matches[cache] = match
            with_shared = min(with_shared, match.matched + (match.shared_matched or 0))
            found.blocks = min(found.blocks, match.matched)
        tokens = self._groups.key_tokens
        offers = _slowest(
            [self._offers(cache, match, wanted_from, found.blocks) for cache, match in matches.items()]
        )
        found.advice = self._costs.advise(wanted_from * tokens, offers)
        if with_shared > max(found.blocks, wanted_from):
            missing = (with_shared - max(found.blocks, wanted_from)) * self._sizes(self._caches[0])[None]
            self._await(found, offers, with_shared, missing, wanted_from)
        load = 0 if found.advice.offer is None else found.advice.offer.tokens // tokens
        for cache, match in matches.items():
            self._bring_up(cache, match.blocks[wanted_from:load])

    def _await(
        self, found: Found, offers: Sequence[Offer], keys: int, missing_bytes: int, wanted_from: int
    ) -> None:
        """Decides whether to wait for a prefix of `keys` keys, of which so many bytes are on their way from the
        shared tier. They are loaded from the fast tier once they are here."""
        assert found.advice is not None
        sources: dict[str, int] = {"shared": missing_bytes, self._fast_tier or "disk": missing_bytes}
        here = found.advice.offer
        begin = wanted_from * self._groups.key_tokens if here is None else here.tokens
        if here is None and offers:
            sources = _sum(sources, offers[-1].sources)
        advice = self._costs.advise(begin, [Offer(keys * self._groups.key_tokens, sources)])
        if advice.offer is not None:
            found.awaited = advice

    def _offers(self, cache: str, match: Match, wanted_from: int, end: int) -> list[Offer]:
        """The prefixes of a match that can be loaded. Within a tier the longest is the best: the later a token,
        the longer computing it takes. The shorter ones serve to measure a tier, or the engine."""
        size, sources, offers = self._sizes(cache)[None], dict[str, int](), list[Offer]()
        at = wanted_from
        for tier, count in tier_runs(match.blocks[wanted_from:end]):
            before = sources.get(tier, 0)
            powers = [1 << power for power in range(count.bit_length() - 1)]
            for part in sorted({*powers, *(count - power for power in powers), count}):
                sources[tier] = before + part * size
                offers.append(Offer((at + part) * self._groups.key_tokens, dict(sources)))
            at += count
        return offers

    def _sizes(self, cache: str) -> Mapping[str | None, int]:
        if not self._costs.weighs:
            return defaultdict(int)
        if not self._block_bytes:
            info = self._client.cache_info(cache)
            if info.block_bytes is not None:
                self._block_bytes[None] = info.block_bytes
            self._block_bytes.update({group.name: group.layout.block_bytes for group in info.kv_groups})
        return self._block_bytes

    def _match(
        self,
        cache: str,
        keys: Sequence[bytes],
        found: Found,
        session: str | None,
        shared: bool | None = None,
        have: int | None = None,
    ) -> Match | None:
        """Its lease, if any, is added to `found`. None if there is no such cache."""
        asked_at = time.monotonic()
        shared = shared if self._costs.loads else False
        try:
            match = self._client.match(cache, keys, lease_ms=LEASE_MS, shared=shared, session=session, have=have)
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

    def _search(
        self, keys: Sequence[bytes], wanted_from: int, session: str | None, found: Found, shared: bool | None
    ) -> None:
        agreed = _Agreed(leases=found.leases)
        try:
            full = self._agree(keys, 0, wanted_from, session, agreed, shared)
            if wanted_from > 0 and agreed.blocks <= wanted_from:
                # The full groups' first blocks may be gone here, but the engine has them.
                self._agree(keys, wanted_from, wanted_from, session, agreed, shared)
            found.blocks, found.full_blocks = agreed.blocks, full
            self._weigh(keys, wanted_from, session, agreed)
        finally:
            found.leases, found.advice, found.awaited = agreed.leases, agreed.advice, agreed.awaited
        if found.advice is None or found.advice.offer is None:
            # Nothing is loaded. How far the full groups reach says what to save.
            self.release(found)

    def _weigh(self, keys: Sequence[bytes], wanted_from: int, session: str | None, found: _Agreed) -> None:
        """Decides what to load, and starts to move it up."""
        tokens, sizes = self._groups.key_tokens, self._sizes(self._caches[0])
        computed, with_shared = wanted_from * tokens, found.with_shared
        offers = self._offers_of(keys, found, wanted_from)
        part = self._first_tier(keys, found, wanted_from)
        found.advice = self._costs.advise(computed, [*part, *offers])
        if with_shared > max(found.blocks, wanted_from):
            missing = self._groups.needed_bytes(with_shared * tokens, sizes)
            missing -= self._groups.needed_bytes(computed, sizes)
            missing -= sum(offers[-1].sources.values()) if offers else 0
            self._await(found, offers, with_shared, max(missing, 1), wanted_from)
        if part and found.advice.offer is part[0]:
            # It needs other windows and states, which may be missing.
            self._agree(keys[: part[0].tokens // tokens], 0, wanted_from, session, found, False)
            offers = self._offers_of(keys, found, wanted_from)
            found.advice = replace(found.advice, offer=offers[-1] if offers else None)
        if found.advice.offer is not None:
            for cache, match in found.matches.items():
                self._bring_up(cache, self._wanted(match, keys, wanted_from))

    def _offers_of(self, keys: Sequence[bytes], found: _Agreed, wanted_from: int) -> list[Offer]:
        """All that was found, if that is more than the engine has: a shorter prefix needs other blocks."""
        if found.blocks <= wanted_from:
            return []
        each = []
        for cache, match in found.matches.items():
            sources: dict[str, int] = {}
            for block in self._wanted(match, keys, wanted_from):
                sources[block.tier] = sources.get(block.tier, 0) + self._sizes(cache)[block.kv_group]
            each.append([Offer(found.blocks * self._groups.key_tokens, sources)])
        return _slowest(each)

    def _first_tier(self, keys: Sequence[bytes], found: _Agreed, wanted_from: int) -> list[Offer]:
        """The prefix whose blocks of a full group lie in one tier, if others follow: there a shorter prefix may be
        better. Its bytes are an estimate."""
        full = next((group for group in self._groups.groups if group.kind == "full"), None)
        if full is None or found.blocks <= wanted_from:
            return []
        parts = []
        for cache, match in found.matches.items():
            lacks = [block for block in self._wanted(match, keys, wanted_from) if block.kv_group == full.name]
            runs = tier_runs(lacks)
            if len(runs) < 2:
                continue
            tier, count = runs[0]
            begin = wanted_from * self._groups.key_tokens // full.block_tokens
            unit = self._groups.unit_tokens
            tokens = (begin + count) * full.block_tokens // unit * unit
            needed = self._groups.needed_bytes(tokens, self._sizes(cache))
            needed -= self._groups.needed_bytes(wanted_from * self._groups.key_tokens, self._sizes(cache))
            parts.append([Offer(tokens, {tier: max(needed, 1)})])
        shortest = min(parts, key=lambda offers: offers[0].tokens, default=[])
        return [offer for offer in shortest if offer.tokens > wanted_from * self._groups.key_tokens]

    def _agree(
        self,
        keys: Sequence[bytes],
        have: int,
        wanted_from: int,
        session: str | None,
        found: _Agreed,
        shared: bool | None,
    ) -> int:
        """Finds the longest prefix that all ranks can serve and at which an engine can resume, and pins it in
        place of what `found` pins. Returns how far the full groups of all ranks reach."""
        self.release(found)
        wanted, full, with_shared = len(keys), len(keys), len(keys)
        served = dict.fromkeys(self._caches, -1)
        matches: dict[str, tuple[Match, list[KeptLease]]] = {}
        for _ in range(MAX_ROUNDS):
            for cache in self._caches:
                if served[cache] == wanted or wanted == 0:
                    continue
                one = Found()
                match = self._match(cache, keys[:wanted], one, session, shared, min(have, wanted))
                self._take(found, matches.pop(cache, (None, []))[1], one.leases)
                if served[cache] == -1:
                    more = 0 if match is None else match.matched + (match.shared_matched or 0)
                    with_shared = min(with_shared, more // self._groups.unit_keys * self._groups.unit_keys)
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
        found.with_shared = with_shared
        found.matches = {cache: match for cache, (match, _) in matches.items()}
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


def _slowest(offers: Sequence[list[Offer]]) -> list[Offer]:
    """Those of the rank that loads the most from slow tiers: the ranks load at the same time."""

    def slow_bytes(one: list[Offer]) -> int:
        return sum(size for source, size in one[-1].sources.items() if source not in FAST) if one else 0

    return max(offers, key=slow_bytes, default=[])


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


class Lookups:
    """The look-ups of requests, running and finished. Used by the engine's loop only."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "cairn-lookup")
        self._waits = ThreadPoolExecutor(WAITING_THREADS, "cairn-wait")
        self._waiting: set[str] = set()
        self._under_way: dict[str, tuple[Future[Found], float]] = {}
        self._found: dict[str, Found] = {}
        self._releasing: set[Future[None]] = set()

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
            context = contextvars.copy_context()  # of the caller's trace
            future = self._threads.submit(context.run, self._finder.find, list(keys), wanted_from, session)
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
        self._waiting.discard(request)
        if found.awaited is not None and len(self._waiting) < WAITING_THREADS:
            self._wait(request, keys, wanted_from, session, found.awaited)
            self.release(found)
            return None
        self._found[request] = found
        return found.reach

    def advice(self, request: str) -> Advice | None:
        """What to load of what was found; None: everything."""
        found = self._found.get(request)
        return None if found is None else found.advice

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
            self._track(self._threads.submit(self._finder.release, found))

    def releasing(self) -> list[Future[None]]:
        """The releases that have not ended. Until then the server counts the blocks as in use."""
        return list(self._releasing)

    def close(self) -> None:
        for request in [*self._under_way, *self._found]:
            self.forget(request)
        self._waits.shutdown(wait=True)
        self._threads.shutdown(wait=True)
        self._finder.close()

    def _wait(
        self, request: str, keys: Sequence[bytes], wanted_from: int, session: str | None, awaited: Advice
    ) -> None:
        context = contextvars.copy_context()
        future = self._waits.submit(
            context.run, self._finder.find_awaited, list(keys), wanted_from, session, awaited
        )
        deadline = time.monotonic() + min(awaited.limit_s, MOST_WAIT_S) + DEADLINE_S
        self._under_way[request] = (future, deadline)
        self._waiting.add(request)

    def _abandon(self, request: str) -> None:
        future, _ = self._under_way.pop(request)
        threads = self._waits if request in self._waiting else self._threads
        self._waiting.discard(request)
        if not future.cancel():
            # On another thread, even if the result is here already. The look-up has begun, so the wait is short.
            self._track(threads.submit(lambda: self._finder.release(future.result())))

    def _track(self, release: Future[None]) -> None:
        self._releasing = {one for one in self._releasing if not one.done()} | {release}
