"""The Python client of Cairn, a server that stores LLM engines' KV-cache blocks outside the engine.

`Client` and `AsyncClient` call the server's API; `client.cache("name")` has the verbs of one cache.
`TierView` maps a tier of a server on the same host.
`AgentMemory` registers an engine's own memory. The connectors are `cairn.vllm`, `cairn.sglang` and
`cairn.lmcache`. Every error is a `CairnError`: `Refused` (a subclass for each problem code) if the server refuses
a request, `NoAnswer` if it does not answer.
"""

from cairn.agent import AgentMemory
from cairn.aio import AsyncClient
from cairn.client import Client
from cairn.errors import CairnError, LeaseLost, NoAnswer, Refused
from cairn.model import Action, AgentRegion, CacheConfig, Handle, KvGroup, NewBlock, Shape, TierConfig
from cairn.named import AsyncCache, Cache
from cairn.tier_view import TierView
from cairn.tracing import traced

__version__ = "0.3.0"

__all__ = [
    "Action",
    "AgentMemory",
    "AgentRegion",
    "AsyncCache",
    "AsyncClient",
    "Cache",
    "CacheConfig",
    "CairnError",
    "Client",
    "Handle",
    "KvGroup",
    "LeaseLost",
    "NewBlock",
    "NoAnswer",
    "Refused",
    "Shape",
    "TierConfig",
    "TierView",
    "traced",
]
