"""A worker's part: blocks between the engine's memory and a store, beside the engine's steps.

Nothing here raises into the engine or waits for the network in a step. The engine's memory is touched by memory
copies alone, so that no server, however slow, holds a block of the engine.
"""

from __future__ import annotations

import contextlib
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
from cairn.engine.store import Row, WriteRows
from cairn.errors import CairnError, NoAnswer, Refused

LOAD_THREADS = 2
SAVE_THREADS = 2
# A load that has not begun by then has failed: computing is quicker than a queue of this length.
LOAD_DEADLINE_S = 20.0
# How long a step waits for the slots of what it computed, in all. They were asked for before it began, and are
# answered in less than a millisecond on the same host.
SLOTS_WAIT_S = 0.02
# How long a step in which the engine computes nothing waits for a load to end: it is told at once then, and not
# after the next step, which costs 2 ms and takes the processor from the copy. A request that comes meanwhile waits
# so long at most.
IDLE_WAIT_S = 0.02
# Saves that are not committed yet. Over it blocks are not saved: the server is slower than the engine.
MAX_PENDING_SAVES = 64


class Copies(Protocol):
    def wait(self) -> None:
        """Until they are done."""


class Pool(Protocol):
    """The engine's blocks."""

    @property
    def block_bytes(self) -> int: ...

    def order(self) -> object:
        """On the engine's thread: what the engine has begun so far. Loads come after that."""

    def load(self, blocks: Sequence[int], rows: Sequence[Row], after: object) -> Copies: ...

    def save(self, blocks: Sequence[int], rows: Sequence[Row]) -> Copies:
        """On the engine's thread: copies what the engine has computed with what it has begun so far."""

    def fence(self) -> None:
        """On the engine's thread: what it begins from here on comes after all saves' reads."""

    def close(self) -> None:
        """Nothing is copied any more."""


class Mover:
    """Used by the engine's thread alone."""

    def __init__(self, pool: Pool, access: Access, report: Report) -> None:
        self._pool = pool
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
        """Each of them ends, and `take_done` tells of it: the engine waits for that."""
        with self._lock:
            self._loading += len(loads)
        begun = 0
        try:
            after = self._pool.order() if loads else None
            deadline = time.monotonic() + LOAD_DEADLINE_S
            for load in loads:
                self._loads.submit(self._load, load, after, deadline)
                begun += 1
        except Exception:
            self._report.failed("loads failed")
            for load in loads[begun:]:
                self._ended(load, set(load.blocks))

    def take_done(self, wait_s: float = 0.0) -> list[tuple[Load, set[int]]]:
        """The loads that have ended since the last time, each with the blocks that did not come. Where some are
        under way and none has ended, one is waited for."""
        with self._lock:
            if wait_s > 0 and self._loading > 0:
                self._load_ended.wait_for(lambda: self._done, wait_s)
            done, self._done = self._done, []
            return done

    def prepare(self, saves: Sequence[Save]) -> None:
        """Asks for slots for what the step will compute."""
        self._drop_prepared()
        for save in saves:
            with self._lock:
                full = self._pending_saves >= MAX_PENDING_SAVES
                self._pending_saves += not full
            if full:
                self._report.count("saves_skipped_blocks", len(save.blocks))
                self._report.warn("blocks are not saved: the server takes them slower than they are computed")
            else:
                self._prepared.append((save, self._saves.submit(self._slots, len(save.blocks))))

    def save(self) -> None:
        """After the step: copies what it computed into its slots; the rest goes on beside the engine."""
        deadline = time.monotonic() + SLOTS_WAIT_S
        prepared, self._prepared = self._prepared, []
        for save, slots in prepared:
            write: WriteRows | None = None
            try:
                write = slots.result(max(deadline - time.monotonic(), 0))
                copies = self._pool.save(save.blocks, write.rows)
            except NotYet:
                self._give_up(slots)
                self._skipped(save)
            except Exception as error:
                if not isinstance(error, CairnError):  # those were said where they came from
                    self._report.failed("a save failed")
                if write is not None:
                    self._saves.submit(write.release)
                self._skipped(save)
            else:
                self._saves.submit(self._commit, save, write, copies)

    def fence(self) -> None:
        self._pool.fence()

    def close(self) -> None:
        self._drop_prepared()
        self._loads.shutdown(wait=True, cancel_futures=True)
        self._saves.shutdown(wait=True)  # what was copied is committed; a server that is silent is not asked
        self._pool.close()

    def _load(self, load: Load, after: object, deadline: float) -> None:
        failed = set(load.blocks)
        began = time.monotonic()
        try:
            if began > deadline:
                raise NoAnswer(f"it waited {LOAD_DEADLINE_S:.0f} s for others")
            read = self._access.use(lambda store: store.read(load.keys))
            try:
                rows = read.rows[: len(load.keys)]
                if rows:
                    self._pool.load(load.blocks[: len(rows)], rows, after).wait()
                read.end()
            except BaseException:
                read.release()
                raise
            failed = set(load.blocks[len(rows) :])
        except CairnError as error:
            self._report.warn(f"a load failed, its blocks are computed: {error}")
        except Exception:
            self._report.failed("a load failed")
        finally:
            came = len(load.blocks) - len(failed)
            self._report.count("loaded_blocks", came)
            self._report.count("loaded_bytes", came * self._pool.block_bytes)
            self._report.count("load_seconds", time.monotonic() - began)
            self._report.count("load_failed_blocks", len(failed))
            self._ended(load, failed)

    def _ended(self, load: Load, failed: set[int]) -> None:
        with self._lock:
            self._loading -= 1
            self._done.append((load, failed))
            self._load_ended.notify()

    def _slots(self, count: int) -> WriteRows:
        try:
            return self._access.use(lambda store: store.write(count))
        except Refused as error:
            self._report.warn(f"blocks are not saved: {error}")
            raise

    def _commit(self, save: Save, write: WriteRows, copies: Copies) -> None:
        try:
            copies.wait()
            self._access.check()
            new = write.commit(save.keys, [save.parent, *save.keys[:-1]], save.hint)
            self._report.count("saved_blocks", new)
            self._report.count("saved_bytes", new * self._pool.block_bytes)
            self._report.count("saves_duplicate_blocks", len(save.keys) - new)
        except CairnError as error:
            self._access.failed(error)
            self._report.count("saves_skipped_blocks", len(save.blocks))
            self._report.warn(f"blocks were not saved: {error}")
        except Exception:
            self._report.failed("a save failed")
        finally:
            with contextlib.suppress(CairnError):
                write.release()
            self._saved()

    def _drop_prepared(self) -> None:
        """Of a step that never came to its end."""
        prepared, self._prepared = self._prepared, []
        for save, slots in prepared:
            self._give_up(slots)
            self._skipped(save)

    def _give_up(self, slots: Future[WriteRows]) -> None:
        def release(done: Future[WriteRows]) -> None:
            if done.exception() is None:
                done.result().release()

        if not slots.cancel():
            slots.add_done_callback(release)

    def _skipped(self, save: Save) -> None:
        self._report.count("saves_skipped_blocks", len(save.blocks))
        self._saved()

    def _saved(self) -> None:
        with self._lock:
            self._pending_saves -= 1
