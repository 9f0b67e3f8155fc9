"""Cairn as vLLM's KV connector, without a change to vLLM; `cairn.vllm.tier` puts it below vLLM's own tiers:

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
    """These are made of vLLM's classes; all beside them works without vLLM."""
    if name == "CairnConnector":
        from cairn.vllm.connector import CairnConnector

        return CairnConnector
    if name == "CairnTier":
        from cairn.vllm.tier import CairnTier

        return CairnTier
    raise AttributeError(name)
