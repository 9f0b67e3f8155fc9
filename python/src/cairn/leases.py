"""Leases that a thread renews while their blocks are in use."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from cairn._forks import in_each_child
from cairn.client import Client
from cairn.errors import NOT_SERVING, CairnError, LeaseLost, Refused
from cairn.leased import ENDED

# Renew after a third of the lease's time, so that two renewals may fail before it ends.
RENEWALS_PER_LEASE = 3
# How long the thread stays without leases before it ends. Starting a thread for each read would add 0.2 ms to the
# read.
LINGER_S = 30.0
# After a failed renewal, retry after this part of the lease's time, or after the refusal's Retry-After.
PAUSE_PART = 1 / 12
# Write nothing in the last fifth of a lease: a copy that has begun needs that time to finish.
MARGIN_PART = 0.2
# Statuses of refusals that are temporary and say nothing about the lease.
NOT_NOW = (429, *NOT_SERVING)


class KeptLease:
    """A lease as this process knows it. Its end is counted on this process's clock from before the request was
    sent, so it is never later than the server's. A forked child does not hold it: the parent may release it at any
    time."""

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
        """Whether this process, not its parent, requested the lease."""
        return self._process == os.getpid()

    @property
    def is_lost(self) -> bool:
        return self._lost

    def is_held(self, now: float) -> bool:
        """Whether enough time is left to read or write a block."""
        return not self._lost and now < self._ends_at and self.is_own

    def renewed(self, asked_at: float) -> None:
        lease_s = self.lease_ms / 1000
        self._due_at = asked_at + lease_s / RENEWALS_PER_LEASE
        self._ends_at = asked_at + lease_s * (1 - MARGIN_PART)

    def put_off(self, now: float, error: CairnError) -> float:
        """Schedules the next attempt after `error` and returns the seconds until then: what the refusal asks for,
        but at most half of the time that is left. Near the end it is all of that time."""
        left_s, pause_s = max(self._ends_at - now, 0.0), self.lease_ms / 1000 * PAUSE_PART
        asked_s = error.retry_after_s if isinstance(error, Refused) else None
        wanted_s = pause_s if asked_s is None else max(asked_s, pause_s / 4)
        wait_s = left_s if left_s < pause_s / 4 else min(wanted_s, left_s / 2)
        self._due_at = now + wait_s
        return wait_s

    def lose(self) -> None:
        self._lost = True


class LeaseKeeper:
    """Renews leases from its own thread, which ends after a while without leases. Safe from several threads. A
    forked child starts with no leases and no thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._kept: dict[str, KeptLease] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0  # when the thread wakes without a notification

    def keep(self, lease: str, lease_ms: int, asked_at: float) -> KeptLease:
        """Renews the lease until `end` or `drop`. `asked_at` is the monotonic time before the request for it was
        sent."""
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
        """Raises LeaseLost if the server may have reused the blocks."""
        if not kept.is_own:
            raise LeaseLost(f"lease {kept.lease} belongs to the process that this one was forked from")
        if not kept.is_held(time.monotonic()):
            raise LeaseLost(f"lease {kept.lease} ended while its blocks were in use")

    def end(self, kept: KeptLease) -> None:
        """Releases the lease. Raises LeaseLost unless it was held the whole time. A temporary refusal (a rate
        limit, a server that drains) is retried while the lease lives."""
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
        """Releases the lease and ignores errors: if the release does not reach the server, the lease ends with its
        time. A lease of the parent process is left to the parent."""
        self._forget(kept)
        if kept.is_own:
            with contextlib.suppress(CairnError):
                self._client.release(kept.lease)

    def ended(self, kept: KeptLease) -> None:
        """Forgets a lease that the server ended on request."""
        self._forget(kept)

    def _forget(self, kept: KeptLease) -> None:
        with self._changed:
            self._kept.pop(kept.lease, None)

    def _run(self) -> None:
        while (due := self._next_due()) is not None:
            self._renew(due)

    def _next_due(self) -> KeptLease | None:
        """Waits for a lease that is due. Returns None, after which the thread must end, if there was no lease for
        a while."""
        with self._changed:
            while True:
                now = time.monotonic()
                first = min(self._kept.values(), key=lambda kept: kept.renewal_due_at, default=None)
                if first is not None and first.renewal_due_at <= now:
                    return first
                self._wakes_at = now + LINGER_S if first is None else first.renewal_due_at
                notified = self._changed.wait(self._wakes_at - now)
                if first is None and not notified and not self._kept:
                    self._thread = None
                    return None

    def _renew(self, kept: KeptLease) -> None:
        if kept.is_lost:  # its blocks were dropped without a release
            self._forget(kept)
            return
        asked_at = time.monotonic()
        try:
            self._client.renew(kept.lease, kept.lease_ms)
            kept.renewed(asked_at)
        except Exception as error:  # the thread must go on for the other leases
            now = time.monotonic()
            if isinstance(error, CairnError) and not isinstance(error, ENDED) and kept.is_held(now):
                kept.put_off(now, error)
            else:
                kept.lose()
                self._forget(kept)
