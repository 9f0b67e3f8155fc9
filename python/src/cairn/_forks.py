"""A forked child has the memory of its parent, and none of its threads.

Connections, threads, executors, and locks that a thread of the parent's may have held at that moment are the
parent's. What has them begins anew in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_begins: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_noticing = threading.Lock()
_process = os.getpid()


def in_each_child(method: Callable[[], None]) -> None:
    """Calls a bound method, one of its object, in each child that is forked while the object lives. No other
    thread runs there yet."""
    bound: Any = method
    _begins[bound.__self__] = bound.__func__


def notice_fork() -> None:
    """Before a connection is used. Forks in C do not tell Python: uWSGI's workers, say."""
    if os.getpid() != _process:
        with _noticing:
            if os.getpid() != _process:
                _begin_all()


def _begin_all() -> None:
    global _process
    for one, begin in list(_begins.items()):
        begin(one)
    _process = os.getpid()


def _forked() -> None:
    global _noticing
    _noticing = threading.Lock()
    _begin_all()


os.register_at_fork(after_in_child=_forked)
