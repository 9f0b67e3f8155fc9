"""Decides whether loading a prefix is faster than computing it, from what both took so far. It uses no engine and
no server, and its clock is passed in."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cairn._forks import in_each_child

# `if_faster` loads what is faster to load than to compute, `always` all that is found, `never` nothing.
When = Literal["if_faster", "always", "never"]

# A load must take at most this share of what computing takes: one that is expected to end at its limit ends after
# it half of the time, and then both were paid for.
HEADROOM = 0.95
# Shorter limits would give up loads because a thread was not scheduled.
LEAST_LIMIT_S = 0.05
# Blocks of a source that is too slow are loaded now and then, to see whether it is faster again. That costs at
# most this share of the time.
PROBE_SHARE = 0.02
PROBE_EVERY_S = 10.0
# The part of a prefix that such a load tries to stay below, as a share of the time to compute the prefix.
PROBE_PART = 0.05
# A load that was given up would have taken longer. How much longer is unknown.
GIVEN_UP_FACTOR = 2.0

# The observations kept of each kind, and how much each counts of the one after it.
KEPT, DECAY = 12, 0.9
# Two observations in a row that are further off than this in the same direction are a change, and those before
# them no longer count. A single one is an outlier.
SURPRISE = 2.0
# Relative errors below it count as equal. Measurements vary more than that.
EXACT = 0.02
# Of how many times as many tokens as were ever computed for a request the time is known.
REACH = 8
# How strongly costs that the observations do not tell apart stay what they were.
INERTIA = 0.001
ROUNDS = 6


@dataclass(frozen=True)
class Offer:
    """A prefix that can be loaded.

    tokens: of the whole prefix. sources: the bytes to load for it, by their tier.
    """

    tokens: int
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Advice:
    """offer: what to load; None: compute everything. limit_s: give the load up after this time, which computing
    takes. is_probe: the load is expected to be slower than computing."""

    offer: Offer | None
    limit_s: float = math.inf
    is_probe: bool = False


class Fit:
    """The costs of features, fitted to what sums of them took. Costs are not negative. Minimises the relative
    errors (not their squares), so that outliers do not count."""

    def __init__(self) -> None:
        self._seen: dict[_Kind, deque[_Seen]] = {}
        self._surprise: dict[object, _Surprise] = {}
        self._costs: dict[str, float] = {}
        self._is_current = True

    def add(self, features: Mapping[str, float], seconds: float, series: object, size: int) -> None:
        """Observations of a series change together. Those of each size class in it have their own history, so that
        many small ones do not outweigh a large one."""
        kind = series, size.bit_length()
        seen = {name: value for name, value in features.items() if value > 0}, max(seconds, 1e-6)
        expected = self.seconds(features)
        before = self._surprise.pop(series, None)
        if before is not None and expected is not None:
            # The costs before the first surprise, which it may have moved.
            expected = sum(before.costs.get(name, 0.0) * value for name, value in seen[0].items())
        if expected and not 1 / SURPRISE < seen[1] / expected < SURPRISE:
            slower = seen[1] > expected
            if before is not None and before.slower == slower:
                self._seen = {other: history for other, history in self._seen.items() if other[0] != series}
                self._seen[before.kind] = deque([before.seen], maxlen=KEPT)
            else:
                self._surprise[series] = _Surprise(slower, kind, seen, dict(self._costs))
        self._seen.setdefault(kind, deque(maxlen=KEPT)).appendleft(seen)
        self._is_current = False

    def seconds(self, features: Mapping[str, float]) -> float | None:
        """None if one of the features was never observed."""
        if not self._is_current:
            self._fit()
            self._is_current = True
        if any(name not in self._costs for name, value in features.items() if value > 0):
            return None
        return sum(self._costs[name] * value for name, value in features.items() if value > 0)

    def _fit(self) -> None:
        seen = [
            (features, seconds, DECAY**age)
            for history in self._seen.values()
            for age, (features, seconds) in enumerate(history)
        ]
        names = list(dict.fromkeys([*self._costs, *(name for features, _, _ in seen for name in features)]))
        before = [self._costs.get(name, 0.0) for name in names]
        rows = [
            ([features.get(name, 0.0) / seconds for name in names], weight) for features, seconds, weight in seen
        ]
        costs, exact = before, [1.0] * len(rows)
        for _ in range(ROUNDS):
            gram, wanted = _normal(rows, exact, len(names))
            # Not the first: it takes what several could explain.
            for at, cost in enumerate(before[1:], 1):
                wanted[at] += INERTIA * gram[at][at] * cost
                gram[at][at] *= 1 + INERTIA
            costs = _positive_solution(gram, wanted, before)
            errors = [abs(1 - sum(map(float.__mul__, row, costs))) for row, _ in rows]
            exact = [1 / max(error, EXACT) for error in errors]
        self._costs = dict(zip(names, costs, strict=True))


# What it consisted of, and how many seconds it took.
_Seen = tuple[dict[str, float], float]
# A series and a size class.
_Kind = tuple[object, int]


@dataclass(frozen=True)
class _Surprise:
    """An observation that was far off, and the costs that were expected."""

    slower: bool
    kind: _Kind
    seen: _Seen
    costs: dict[str, float]


def _normal(
    rows: Sequence[tuple[list[float], float]], exact: Sequence[float], size: int
) -> tuple[list[list[float]], list[float]]:
    """The normal equations of rows that should all give 1."""
    gram = [[0.0] * size for _ in range(size)]
    wanted = [0.0] * size
    for (row, weight), more in zip(rows, exact, strict=True):
        for at, value in enumerate(row):
            if value:
                scaled = weight * more * value
                wanted[at] += scaled
                for other, second in enumerate(row):
                    gram[at][other] += scaled * second
    return gram, wanted


def _positive_solution(
    gram: Sequence[Sequence[float]], wanted: Sequence[float], before: Sequence[float]
) -> list[float]:
    """Solves the equations without the unknowns that would be negative. Those that no equation has stay what they
    were."""
    used = [at for at in range(len(wanted)) if gram[at][at] > 0]
    found = [0.0 if gram[at][at] > 0 else before[at] for at in range(len(wanted))]
    while used:
        solved = _solution([[*(gram[at][other] for other in used), wanted[at]] for at in used])
        least = min(range(len(used)), key=lambda at: solved[at] * gram[used[at]][used[at]] ** 0.5)
        if solved[least] >= 0:
            for at, value in zip(used, solved, strict=True):
                found[at] = value
            break
        del used[least]
    return found


def _solution(rows: list[list[float]]) -> list[float]:
    """Solves the equations of a positive definite matrix; the last column is the right side."""
    size = len(rows)
    for at in range(size):
        for below in range(at + 1, size):
            factor = rows[below][at] / rows[at][at]
            for column in range(at, size + 1):
                rows[below][column] -= factor * rows[at][column]
    found = [0.0] * size
    for at in reversed(range(size)):
        rest = sum(rows[at][other] * found[other] for other in range(at + 1, size))
        found[at] = (rows[at][size] - rest) / rows[at][at]
    return found


class Costs:
    """What computing and loading take. Safe from several threads."""

    def __init__(self, when: When, clock: Callable[[], float]) -> None:
        self._when = when
        self._clock = clock
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._computing, self._loading = Fit(), Fit()
        self._longest = 0  # tokens that were computed for a request
        self._probed_at: dict[str, float] = {}

    @property
    def loads(self) -> bool:
        """Whether anything is loaded."""
        return self._when != "never"

    @property
    def weighs(self) -> bool:
        """Whether the advice depends on what is measured."""
        return self._when == "if_faster"

    def computed(self, begin: int, end: int, seconds: float) -> None:
        """Records that the engine computed a prompt's tokens from `begin` to `end`, in one step or several."""
        if end > begin:
            with self._lock:
                size = end - begin
                # A short prompt says nothing about the attention of a long one: each size class changes alone.
                features = _computing(begin, end) | {"request": 1.0}
                self._computing.add(features, seconds, size.bit_length(), size)
                self._longest = max(self._longest, end - begin)

    def loaded(self, sources: Mapping[str, int], seconds: float) -> None:
        """Records that blocks were loaded together. sources: their bytes, by their tier."""
        features = _loading(sources)
        if not features:
            return
        with self._lock:
            expected = self._loading.seconds(features)
            if expected is not None and seconds < expected / 2:
                # Much faster than expected: the next request may see whether that is so.
                for source in sources:
                    self._probed_at.pop(source, None)
            most = max(sources, key=lambda source: sources[source])
            self._loading.add(features, seconds, most, sum(sources.values()))

    def gave_up(self, sources: Mapping[str, int], seconds: float) -> None:
        """Records that a load was given up after this time."""
        self.loaded(sources, seconds * GIVEN_UP_FACTOR)

    def seconds_to_compute(self, begin: int, end: int) -> float | None:
        """The expected time for these tokens; None if nothing of that size was computed yet."""
        with self._lock:
            return self._to_compute(begin, end)

    def seconds_to_load(self, sources: Mapping[str, int]) -> float | None:
        """The expected time; None if a tier among them was never loaded from."""
        with self._lock:
            return self._loading.seconds(_loading(sources))

    def advise(self, computed: int, offers: Sequence[Offer]) -> Advice:
        """Which of the offers to load for a request of which the engine has `computed` tokens. What is unknown
        counts as fast. Offers: ascending in tokens."""
        offers = [offer for offer in offers if offer.tokens > computed]
        if not offers or self._when == "never":
            return Advice(None)
        if self._when == "always":
            return Advice(offers[-1])
        with self._lock:
            best, gain = None, -math.inf
            for offer in offers:
                saved = self._to_compute(computed, offer.tokens)
                takes = self._loading.seconds(_loading(offer.sources))
                if takes is None:
                    # Long loads tell more than short ones.
                    best, gain = Advice(offer, _limit(saved)), math.inf
                elif saved is None:
                    best, gain = Advice(self._to_learn(offers)), math.inf
                elif takes <= HEADROOM * saved and saved - takes >= gain:
                    best, gain = Advice(offer, _limit(saved)), saved - takes
            return best or self._probe(computed, offers)

    def _to_compute(self, begin: int, end: int) -> float | None:
        if end - begin > REACH * self._longest:
            return None  # the last tokens of a prompt that was loaded say little about all of it
        return self._computing.seconds(_computing(begin, end))

    def _to_learn(self, offers: Sequence[Offer]) -> Offer:
        """An engine that loads all it finds would never know what computing takes. So the shortest prefix that
        leaves at most REACH times as many tokens as were ever computed."""
        least = offers[-1].tokens - REACH * self._longest
        return next(offer for offer in offers if offer.tokens >= least)

    def _probe(self, computed: int, offers: Sequence[Offer]) -> Advice:
        """Loading is slower. Loads a small part anyway if nobody did for a while. REQUIRES: all costs are
        known."""
        whole = self._to_compute(computed, offers[-1].tokens) or 0.0
        takes = [self._loading.seconds(_loading(offer.sources)) or 0.0 for offer in offers]
        short = [at for at, seconds in enumerate(takes) if seconds <= PROBE_PART * whole]
        at = short[-1] if short else 0
        limit_s = _limit(whole)
        extra = min(takes[at], limit_s)
        sources, now = [source for source, size in offers[at].sources.items() if size > 0], self._clock()
        pause = max(PROBE_EVERY_S, extra / PROBE_SHARE)
        if any(now < self._probed_at.get(source, -math.inf) + pause for source in sources):
            return Advice(None)
        self._probed_at.update(dict.fromkeys(sources, now))
        return Advice(offers[at], limit_s, is_probe=True)


def _computing(begin: int, end: int) -> dict[str, float]:
    """Each token costs the same, and each pair of tokens that attend to each other."""
    tokens = end - begin
    return {"token": float(tokens), "pair": tokens * (begin + end) / 2}


def _loading(sources: Mapping[str, int]) -> dict[str, float]:
    """Each byte of a tier costs the same, and each load takes a while to begin and to be noticed."""
    given = {source: float(size) for source, size in sources.items() if size > 0}
    return {**given, "load": 1.0} if given else {}


def _limit(seconds: float | None) -> float:
    return math.inf if seconds is None else max(seconds, LEAST_LIMIT_S)
