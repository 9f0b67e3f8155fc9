"""Leases that are renewed while their blocks are in use."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from cairn._forks import in_each_child
from cairn.client import Client
from cairn.errors import NOT_SERVING, CairnError, ForeignLease, LeaseExpired, LeaseLost, Refused, UnknownLease

# A lease is renewed after a third of its time, so that two renewals may fail before it ends.
RENEWALS_PER_LEASE = 3
# How long the thread waits for a lease to renew before it ends: to start one for each read costs the read 0.2 ms.
LINGER_S = 30.0
# Where no answer came, or a refusal: after so much of a lease's time it is asked again, or when the refusal says.
PAUSE_PART = 1 / 12
# Nothing is written so close to a lease's end: a fifth of it, for a copy that has begun.
MARGIN_PART = 0.2
# The server's word that a lease has ended. Whatever else it says, the lease lives on for its time.
ENDED = (UnknownLease, LeaseExpired, ForeignLease)
# Refusals that say something of this moment, and nothing of what was asked for.
NOT_NOW = (429, *NOT_SERVING)


class KeptLease:
    """A lease of a server, as this process knows it: by its own clock, from before it was asked for, so that it
    never counts on a lease that the server has ended. In a child that is forked it is not held: the parent may
    give it up at any time."""

    def __init__(self, lease: str, lease_ms: int, asked_at: float) -> None:
        self.lease = lease
        self.lease_ms = lease_ms
        self._process = os.getpid()
        self._lost = False
        self.renewed(asked_at)

    @property
    def renewal_due_at(self) -> float:
        return self._due_at

    @property
    def is_own(self) -> bool:
        """Whether this process asked for it."""
        return self._process == os.getpid()

    @property
    def is_lost(self) -> bool:
        return self._lost

    def is_held(self, now: float) -> bool:
        """Whether there is time left to read or write a block."""
        return not self._lost and now < self._ends_at and self.is_own

    def renewed(self, asked_at: float) -> None:
        lease_s = self.lease_ms / 1000
        self._due_at = asked_at + lease_s / RENEWALS_PER_LEASE
        self._ends_at = asked_at + lease_s * (1 - MARGIN_PART)

    def put_off(self, now: float, error: CairnError) -> float:
        """How long to wait before the same is asked again: as long as the refusal says, or half of the time that
        is left where that is shorter. Near the end it is all of it."""
        left_s, pause_s = max(self._ends_at - now, 0.0), self.lease_ms / 1000 * PAUSE_PART
        asked_s = error.retry_after_s if isinstance(error, Refused) else None
        wanted_s = pause_s if asked_s is None else max(asked_s, pause_s / 4)
        wait_s = left_s if left_s < pause_s / 4 else min(wanted_s, left_s / 2)
        self._due_at = now + wait_s
        return wait_s

    def lose(self) -> None:
        self._lost = True


class LeaseKeeper:
    """Renews leases from a thread of its own, which ends where there are none for a while. Safe from several
    threads, and in a child that is forked, which begins with no leases and no thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._kept: dict[str, KeptLease] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0  # the thread, by itself

    def keep(self, lease: str, lease_ms: int, asked_at: float) -> KeptLease:
        """Renews the lease, which was asked for at `asked_at` (monotonic), until `end` or `drop`."""
        kept = KeptLease(lease, lease_ms, asked_at)
        with self._changed:
            self._kept[lease] = kept
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cairn-leases", daemon=True)
                self._thread.start()
            elif kept.renewal_due_at < self._wakes_at:
                self._changed.notify()
        return kept

    def check(self, kept: KeptLease) -> None:
        """LeaseLost where the blocks may be somebody else's by now."""
        if not kept.is_own:
            raise LeaseLost(f"lease {kept.lease} is of the process that this one was forked from")
        if not kept.is_held(time.monotonic()):
            raise LeaseLost(f"lease {kept.lease} ended while its blocks were in use")

    def end(self, kept: KeptLease) -> None:
        """Releases the lease: LeaseLost unless it was there all along. A refusal that says nothing of the lease (a
        token's rate, a server that drains) is tried again while the lease lives."""
        if not kept.is_own:
            self.check(kept)
        self._forget(kept)
        while True:
            try:
                self._client.release(kept.lease)
                return
            except CairnError as error:
                now = time.monotonic()
                if not isinstance(error, Refused) or error.status not in NOT_NOW or not kept.is_held(now):
                    raise LeaseLost(f"lease {kept.lease}: {error}") from error
                time.sleep(kept.put_off(now, error))

    def drop(self, kept: KeptLease) -> None:
        """Releases the lease, whatever became of it. That of another process is left to it; where the server does
        not take the release, the lease ends with its time."""
        self._forget(kept)
        if kept.is_own:
            with contextlib.suppress(CairnError):
                self._client.release(kept.lease)

    def ended(self, kept: KeptLease) -> None:
        """The server has ended the lease, as it was asked to."""
        self._forget(kept)

    def _forget(self, kept: KeptLease) -> None:
        with self._changed:
            self._kept.pop(kept.lease, None)

    def _run(self) -> None:
        while (due := self._next_due()) is not None:
            self._renew(due)

    def _next_due(self) -> KeptLease | None:
        """Waits until a lease is due. None where there was none to wait for: the thread has ended."""
        with self._changed:
            while True:
                now = time.monotonic()
                first = min(self._kept.values(), key=lambda kept: kept.renewal_due_at, default=None)
                if first is not None and first.renewal_due_at <= now:
                    return first
                self._wakes_at = now + LINGER_S if first is None else first.renewal_due_at
                was_told = self._changed.wait(self._wakes_at - now)
                if first is None and not was_told and not self._kept:
                    self._thread = None
                    return None

    def _renew(self, kept: KeptLease) -> None:
        if kept.is_lost:  # nobody has its blocks any more
            self._forget(kept)
            return
        asked_at = time.monotonic()
        try:
            self._client.renew(kept.lease, kept.lease_ms)
            kept.renewed(asked_at)
        except Exception as error:  # the other leases are still to be renewed
            now = time.monotonic()
            if isinstance(error, CairnError) and not isinstance(error, ENDED) and kept.is_held(now):
                kept.put_off(now, error)
            else:
                kept.lose()
                self._forget(kept)
