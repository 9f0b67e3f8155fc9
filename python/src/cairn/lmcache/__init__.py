"""Cairn below LMCache's memory, through LMCache's adapter `plugin`, without changes to LMCache.

lmcache server --l1-size-gb 20 --eviction-policy LRU --l2-adapter '{"type": "plugin",
  "module_path": "cairn.lmcache", "class_name": "CairnAdapter",
  "adapter_params": {"cairn.url": "unix:/run/cairn/socket", "cairn.pinned_bytes": 17179869184}}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.lmcache.adapter import CairnAdapter

__all__ = ["CairnAdapter"]


def __getattr__(name: str) -> Any:
    """Imports it lazily because it derives from LMCache's class; the other modules work without LMCache."""
    if name == "CairnAdapter":
        from cairn.lmcache.adapter import CairnAdapter

        return CairnAdapter
    raise AttributeError(name)
