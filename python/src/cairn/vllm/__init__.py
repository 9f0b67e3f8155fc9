"""Cairn as vLLM's KV connector, without changes to vLLM. `cairn.vllm.tier` puts Cairn below vLLM's own tiers
instead.

vllm serve MODEL --kv-transfer-config '{"kv_connector": "CairnConnector",
  "kv_connector_module_path": "cairn.vllm", "kv_role": "kv_both",
  "kv_connector_extra_config": {"cairn.url": "unix:/run/cairn/socket", "cairn.pinned_bytes": 17179869184}}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.vllm.connector import CairnConnector
    from cairn.vllm.tier import CairnTier

__all__ = ["CairnConnector", "CairnTier"]


def __getattr__(name: str) -> Any:
    """Imports these lazily because they derive from vLLM's classes; the other modules work without vLLM."""
    if name == "CairnConnector":
        from cairn.vllm.connector import CairnConnector

        return CairnConnector
    if name == "CairnTier":
        from cairn.vllm.tier import CairnTier

        return CairnTier
    raise AttributeError(name)
