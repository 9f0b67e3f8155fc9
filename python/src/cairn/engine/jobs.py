"""Work that an engine submits and polls, done by a few threads."""

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

# Work that has not begun by then is skipped: recomputing is faster than waiting in such a queue.
DEADLINE_S = 20.0


@dataclass(frozen=True)
class Done(Generic[R]):
    number: int
    result: R
    seconds: float  # since `submit`


class Jobs(Generic[R]):
    """Safe from several threads. Every job ends. If it waited too long or raised, its result is `fallback`.
    `on_done` is called by a job's thread when the result can be taken."""

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

    def submit(self, number: int, act: Callable[[], R], fallback: R) -> None:
        self._hand_over(functools.partial(self._run, number, act, fallback, time.monotonic()))

    def do(self, act: Callable[[], object]) -> None:
        """Runs work whose result nobody needs."""
        self._hand_over(lambda: self._guard(act, None))

    def take_done(self) -> list[Done[R]]:
        """The jobs that ended since the last call."""
        with self._lock:
            done, self._done = self._done, {}
            return list(done.values())

    def take(self, number: int) -> R | None:
        """The result of a job that has ended, which can be taken once; None if it has not ended."""
        with self._lock:
            done = self._done.pop(number, None)
        return None if done is None else done.result

    def drain(self) -> None:
        """Waits until everything submitted so far has ended."""
        with self._lock:
            under_way = set(self._under_way)
        wait(under_way)

    def close(self) -> None:
        """Waits for the jobs that run. Jobs that have not begun end with their fallback."""
        self._closing = True
        self._pool.shutdown(wait=True)

    def _run(self, number: int, act: Callable[[], R], fallback: R, began: float) -> None:
        too_late = self._closing or time.monotonic() - began > DEADLINE_S
        result = fallback if too_late else self._guard(act, fallback)
        with self._lock:
            self._done[number] = Done(number, result, time.monotonic() - began)
        if self._on_done is not None:
            self._on_done()

    def _guard(self, act: Callable[[], T], fallback: T) -> T:
        return self._report.guard(f"{self._name}: a job failed", fallback, act)

    def _hand_over(self, act: Callable[[], object]) -> None:
        with self._lock:
            future = self._pool.submit(act)
            self._under_way.add(future)
        future.add_done_callback(self._forget)

    def _forget(self, future: Future[object]) -> None:
        with self._lock:
            self._under_way.discard(future)
