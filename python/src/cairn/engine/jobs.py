"""Work that an engine hands over and asks about later, done by a few threads."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from cairn._forks import in_each_child
from cairn.engine.report import Report

R = TypeVar("R")
T = TypeVar("T")

# Work that has not begun by then is not begun any more: to compute is quicker than a queue of this length.
DEADLINE_S = 20.0


@dataclass(frozen=True)
class Done(Generic[R]):
    number: int
    result: R
    seconds: float  # since it was handed over


class Jobs(Generic[R]):
    """Safe from several threads. Every job ends; `otherwise` is the result of one that waited too long, or raised.
    `on_done` is called when a job's result can be taken, by the thread that did the job."""

    def __init__(self, name: str, threads: int, report: Report, on_done: Callable[[], None] | None = None) -> None:
        self._name = name
        self._threads = threads
        self._report = report
        self._on_done = on_done
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(self._threads, self._name)
        self._lock = threading.Lock()
        self._under_way: set[Future[object]] = set()
        self._done: dict[int, Done[R]] = {}
        self._closing = False

    def submit(self, number: int, act: Callable[[], R], otherwise: R) -> None:
        self._hand_over(functools.partial(self._run, number, act, otherwise, time.monotonic()))

    def do(self, act: Callable[[], object]) -> None:
        """Of which nobody asks what became of it."""
        self._hand_over(lambda: self._softly(act, None))

    def take_done(self) -> list[Done[R]]:
        """Those that have ended since the last time."""
        with self._lock:
            done, self._done = self._done, {}
            return list(done.values())

    def take(self, number: int) -> R | None:
        """The result of one that has ended, once; None of one that has not."""
        with self._lock:
            done = self._done.pop(number, None)
        return None if done is None else done.result

    def drain(self) -> None:
        """Until all that was handed over has ended."""
        with self._lock:
            under_way = set(self._under_way)
        wait(under_way)

    def close(self) -> None:
        """What has not begun ends as if it had waited too long."""
        self._closing = True
        self._pool.shutdown(wait=True)

    def _run(self, number: int, act: Callable[[], R], otherwise: R, began: float) -> None:
        too_late = self._closing or time.monotonic() - began > DEADLINE_S
        result = otherwise if too_late else self._softly(act, otherwise)
        with self._lock:
            self._done[number] = Done(number, result, time.monotonic() - began)
        if self._on_done is not None:
            self._on_done()

    def _softly(self, act: Callable[[], T], otherwise: T) -> T:
        try:
            return act()
        except Exception:
            self._report.failed(f"{self._name}: a job failed")
            return otherwise

    def _hand_over(self, act: Callable[[], object]) -> None:
        with self._lock:
            future = self._pool.submit(act)
            self._under_way.add(future)
        future.add_done_callback(self._forget)

    def _forget(self, future: Future[object]) -> None:
        with self._lock:
            self._under_way.discard(future)
