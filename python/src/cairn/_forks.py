"""What happens to an object in a forked child.

A child gets a copy of its parent's memory, but none of the parent's threads. Connections, threads and executors
belong to the parent, and a thread of the parent may have held any lock at that moment. So objects that own such
things reset themselves in the child.
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
    """Calls a bound method in each forked child, as long as its object lives. The call runs before any other
    thread of the child starts."""
    bound: Any = method
    _begins[bound.__self__] = bound.__func__


def notice_fork() -> None:
    """Detects a fork that Python did not see, such as that of uWSGI's workers, which fork in C. Call it before
    using a connection."""
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
