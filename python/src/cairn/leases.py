"""Leases that are renewed while their blocks are in use."""

from __future__ import annotations

import contextlib
import threading
import time

from cairn.client import Client
from cairn.errors import CairnError, LeaseLost, NoAnswer

# A lease is renewed after a third of its time, so that two renewals may fail before it ends.
RENEWALS_PER_LEASE = 3
# How long the thread waits for a lease to renew before it ends: to start one for each read costs the read 0.2 ms.
LINGER_S = 30.0
# Nothing is written so close to a lease's end: a fifth of it, for a copy that has begun.
MARGIN_PART = 0.2


class KeptLease:
    """A lease of a server, as this process knows it: by its own clock, from before it was asked for, so that it
    never counts on a lease that the server has ended."""

    def __init__(self, lease: str, lease_ms: int, asked_at: float) -> None:
        self.lease = lease
        self.lease_ms = lease_ms
        self._asked_at = asked_at
        self._lost = False

    @property
    def renewal_due_at(self) -> float:
        return self._asked_at + self.lease_ms / 1000 / RENEWALS_PER_LEASE

    def is_held(self, now: float) -> bool:
        """Whether there is time left to read or write a block."""
        return not self._lost and now < self._asked_at + self.lease_ms / 1000 * (1 - MARGIN_PART)

    def renewed(self, asked_at: float) -> None:
        self._asked_at = asked_at

    def lose(self) -> None:
        self._lost = True


class LeaseKeeper:
    """Renews leases from a thread of its own, which ends where there are none for a while. Safe from several
    threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
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
        if not kept.is_held(time.monotonic()):
            raise LeaseLost(f"lease {kept.lease} ended while its blocks were in use")

    def end(self, kept: KeptLease) -> None:
        """Releases the lease: LeaseLost unless it was there all along."""
        self._forget(kept)
        try:
            self._client.release(kept.lease)
        except CairnError as error:
            raise LeaseLost(f"lease {kept.lease}: {error}") from error

    def drop(self, kept: KeptLease) -> None:
        """Releases the lease, whatever became of it."""
        with contextlib.suppress(LeaseLost):
            self.end(kept)

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
        asked_at = time.monotonic()
        try:
            self._client.renew(kept.lease, kept.lease_ms)
            kept.renewed(asked_at)
        except NoAnswer:
            if kept.is_held(time.monotonic()):
                # Asked again soon; not at once, which would be a busy loop where nobody listens.
                with self._changed:
                    self._changed.wait(kept.lease_ms / 1000 / RENEWALS_PER_LEASE / 4)
            else:
                kept.lose()
                self._forget(kept)
        except Exception:  # the other leases are still to be renewed
            kept.lose()
            self._forget(kept)
