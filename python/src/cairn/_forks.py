"""A forked child has the memory of its parent, and none of its threads.

Connections, threads, executors, and locks that a thread of the parent's may have held at that moment are the
parent's. What has them begins anew in the child.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

_begins: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def in_each_child(method: Callable[[], None]) -> None:
    """Calls a bound method, one of its object, in each child that is forked while the object lives. No other
    thread runs there yet."""
    bound: Any = method
    _begins[bound.__self__] = bound.__func__


def _forked() -> None:
    for one, begin in list(_begins.items()):
        begin(one)


os.register_at_fork(after_in_child=_forked)
