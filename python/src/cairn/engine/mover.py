"""A worker's part: copies blocks between the engine's memory and a store, in parallel with the engine's steps.

No error reaches the engine, and no step waits for the network. Only memory copies touch the engine's memory, so a
slow server never blocks a block of the engine.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Protocol

from cairn._forks import in_each_child
from cairn.engine.access import Access
from cairn.engine.plan import Load, Save
from cairn.engine.report import Report
from cairn.engine.store import Row, TooSlow, WriteRows
from cairn.errors import CairnError, NoAnswer, Refused
from cairn.tracing import traced

LOAD_THREADS = 2
SAVE_THREADS = 2
# A load that has not begun by then fails: recomputing is faster than waiting in such a queue.
LOAD_DEADLINE_S = 20.0
# How long a step waits, in total, for the slots of what it computed. They are requested before the step and come
# in less than a millisecond from the same host.
SLOTS_WAIT_S = 0.02
# How long a step without computation waits for a load to end. The engine then learns of it at once instead of
# after the next step, which takes 2 ms and slows the copy. A request that arrives meanwhile waits this long at
# most.
IDLE_WAIT_S = 0.02
# The most saves that are not committed yet. Beyond it blocks are not saved: the server is slower than the engine.
MAX_PENDING_SAVES = 64


class Copies(Protocol):
    def wait(self) -> None:
        """Returns when the copies are done."""


class Pool(Protocol):
    """The engine's blocks."""

    @property
    def block_bytes(self) -> int: ...

    def order(self) -> object:
        """On the engine's thread: marks what the engine has begun so far. Pass it to `load`, which runs after
        that."""

    def load(self, blocks: Sequence[int], rows: Sequence[Row], after: object) -> Copies: ...

    def save(self, blocks: Sequence[int], rows: Sequence[Row]) -> Copies:
        """On the engine's thread: copies blocks once the work that the engine has begun has computed them."""

    def fence(self) -> None:
        """On the engine's thread: what the engine begins after this runs after all copies of saves."""

    def close(self) -> None:
        """Waits for the copies that run."""


class Mover:
    """Used by the engine's thread only."""

    def __init__(self, pools: Sequence[Pool], access: Access, report: Report) -> None:
        """pools: by the group that loads and saves name."""
        self._pools = pools
        self._access = access
        self._report = report
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._load_ended = threading.Condition(self._lock)
        self._loads = ThreadPoolExecutor(LOAD_THREADS, "cairn-load")
        self._saves = ThreadPoolExecutor(SAVE_THREADS, "cairn-save")
        self._prepared: list[tuple[Save, Future[WriteRows]]] = []
        self._pending_saves = 0
        self._loading = 0
        self._done: list[tuple[Load, set[int]]] = []

    def load(self, loads: Sequence[Load]) -> None:
        """Starts loads. Each of them ends and is returned by `take_done`, because the engine waits for that."""
        with self._lock:
            self._loading += len(loads)
        begun = 0
        try:
            now = time.monotonic()
            for load in loads:
                after = self._pools[load.group].order()
                self._loads.submit(self._load, load, after, now + LOAD_DEADLINE_S, now + load.limit_s)
                begun += 1
        except Exception:
            self._report.failed("loads failed")
            for load in loads[begun:]:
                self._load_done(load, set(load.blocks))

    def take_done(self, wait_s: float = 0.0) -> list[tuple[Load, set[int]]]:
        """The loads that ended since the last call, each with the blocks that did not arrive. If loads are running
        and none has ended, waits up to `wait_s` for one."""
        with self._lock:
            if wait_s > 0 and self._loading > 0:
                self._load_ended.wait_for(lambda: self._done, wait_s)
            done, self._done = self._done, []
            return done

    def prepare(self, saves: Sequence[Save]) -> None:
        """Requests slots for the blocks that the next step computes."""
        self._drop_prepared()
        for save in saves:
            with self._lock:
                full = self._pending_saves >= MAX_PENDING_SAVES * len(self._pools)
                self._pending_saves += not full
            if full:
                self._report.count("saves_skipped_blocks", len(save.blocks))
                self._report.warn("blocks are not saved: the server is slower than the engine")
            else:
                self._prepared.append((save, self._saves.submit(self._allocate, save)))

    def save(self) -> None:
        """After the step: copies what it computed into its slots. The rest is done in the background."""
        deadline = time.monotonic() + SLOTS_WAIT_S
        prepared, self._prepared = self._prepared, []
        for save, slots in prepared:
            write: WriteRows | None = None
            try:
                write = slots.result(max(deadline - time.monotonic(), 0))
                copies = self._pools[save.group].save(save.blocks, write.rows)
            except NotYet:
                self._give_up(slots)
                self._skip(save)
            except Exception as error:
                if not isinstance(error, CairnError):  # the thread that raised it has logged those
                    self._report.failed("a save failed")
                if write is not None:
                    self._saves.submit(write.release)
                self._skip(save)
            else:
                self._saves.submit(self._commit, save, write, copies)

    def fence(self) -> None:
        for pool in self._pools:
            pool.fence()

    def close(self) -> None:
        """Commits what was copied, unless the server does not answer. Cancels loads that have not begun."""
        self._drop_prepared()
        self._loads.shutdown(wait=True, cancel_futures=True)
        self._saves.shutdown(wait=True)
        for pool in self._pools:
            pool.close()

    def _load(self, load: Load, after: object, deadline: float, give_up_at: float = math.inf) -> None:
        failed = set(load.blocks)
        began = time.monotonic()
        try:
            if began > deadline:
                raise NoAnswer(f"it waited more than {LOAD_DEADLINE_S:.0f} s for other loads")
            if began > give_up_at:
                raise TooSlow("it waited too long for other loads")
            with traced(load.traceparent):
                read = self._access.use(lambda store: store.of(load.group).read(load.keys, give_up_at - began))
            try:
                rows = read.rows[: len(load.keys)]
                if rows:
                    self._pools[load.group].load(load.blocks[: len(rows)], rows, after).wait()
                read.end()
            except BaseException:
                read.release()
                raise
            failed = set(load.blocks[len(rows) :])
        except TooSlow:
            pass  # computing is faster; the counters show it
        except CairnError as error:
            self._report.warn(f"a load failed; the engine computes its blocks: {error}")
        except Exception:
            self._report.failed("a load failed")
        finally:
            if failed and time.monotonic() >= give_up_at:
                self._report.count("given_up_blocks", len(failed))
            self._report.loaded(
                blocks=len(load.blocks) - len(failed),
                failed_blocks=len(failed),
                block_bytes=self._pools[load.group].block_bytes,
                seconds=time.monotonic() - began,
            )
            self._load_done(load, failed)

    def _load_done(self, load: Load, failed: set[int]) -> None:
        with self._lock:
            self._loading -= 1
            self._done.append((load, failed))
            self._load_ended.notify()

    def _allocate(self, save: Save) -> WriteRows:
        try:
            with traced(save.traceparent):
                return self._access.use(lambda store: store.of(save.group).write(len(save.blocks)))
        except Refused as error:
            self._report.warn(f"blocks are not saved: {error}")
            raise

    def _commit(self, save: Save, write: WriteRows, copies: Copies) -> None:
        try:
            copies.wait()
            self._access.check()
            with traced(save.traceparent):
                new = write.commit(save.keys, [save.parent, *save.keys[:-1]], save.hint)
            self._report.saved(
                blocks=new,
                duplicate_blocks=len(save.keys) - new,
                block_bytes=self._pools[save.group].block_bytes,
            )
        except CairnError as error:
            self._access.failed(error)
            self._report.count("saves_skipped_blocks", len(save.blocks))
            self._report.warn(f"blocks were not saved: {error}")
        except Exception:
            self._report.failed("a save failed")
        finally:
            with contextlib.suppress(CairnError):
                write.release()
            self._save_ended()

    def _drop_prepared(self) -> None:
        """Gives up the slots of a step that did not finish."""
        prepared, self._prepared = self._prepared, []
        for save, slots in prepared:
            self._give_up(slots)
            self._skip(save)

    def _give_up(self, slots: Future[WriteRows]) -> None:
        def release(done: Future[WriteRows]) -> None:
            if done.exception() is None:
                done.result().release()

        if not slots.cancel():
            slots.add_done_callback(release)

    def _skip(self, save: Save) -> None:
        self._report.count("saves_skipped_blocks", len(save.blocks))
        self._save_ended()

    def _save_ended(self) -> None:
        with self._lock:
            self._pending_saves -= 1
