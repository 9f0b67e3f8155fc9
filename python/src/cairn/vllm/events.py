"""vLLM's KV events for blocks in Cairn, for routers. They have vLLM's own hashes and the tokens.

Used if the engine was started with `kv_events_config`.
"""

from __future__ import annotations

import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)

from cairn.client import Client
from cairn.engine.places import Follower, Places, block_name
from cairn.engine.report import Report
from cairn.model import MatchedBlock, Tier
from cairn.vllm.setup import LayerGroup, Setup

# A device tier has no medium here: `GPU` means the engine's own blocks.
MEDIA: dict[Tier, str] = {"pinned": MEDIUM_CPU, "disk": MEDIUM_STORAGE}
# Blocks on the engine's host. Events have no owner, because Dynamo reads only those without one and its own
# tier's.
LOCALITY = "LOCAL"


@dataclass(frozen=True)
class Described:
    """A block as vLLM's events describe it."""

    group: LayerGroup
    block_hash: Any
    parent: Any
    tokens: array.array[int]
    lora_id: int | None
    lora_name: str | None
    extra_keys: Any


class Events:
    """Where the blocks are that this engine has computed or looked up."""

    def __init__(self, client: Client, setup: Setup, report: Report) -> None:
        self._layer_groups = setup.layer_groups
        self._groups = setup.groups
        self._names = [one.group.name if setup.has_kv_groups else None for one in setup.layer_groups]
        caches = [setup.cache_name(rank) for rank in setup.ranks]
        self._places: Places[Described] = Places(caches, MEDIA)
        self._follower = Follower(client, self._places, report)

    def track_prompt(self, request: Any, keys: Sequence[bytes]) -> None:
        """Reports the blocks of these keys, in all groups, from now on."""
        for number in range(len(self._layer_groups)):
            run = self._groups.key_of(number, 0) + 1
            self.track(request, number, 0, keys[run - 1 :: run])

    def track(self, request: Any, number: int, first: int, keys: Sequence[bytes]) -> None:
        """Reports a group's blocks of the request from index `first` on, from now on."""
        run = self._groups.key_of(number, 0) + 1
        usable = max(len(request.block_hashes) // run - first, 0)
        names = [block_name(key, self._names[number]) for key in keys[:usable]]
        self._places.track(names, lambda at: self._describe(request, number, first + at))

    def found(self, cache: str, blocks: Sequence[MatchedBlock]) -> None:
        """Records blocks that a look-up found in a cache."""
        for tier in MEDIA:
            here = [block_name(block.key, block.kv_group) for block in blocks if block.tier == tier]
            self._places.stored(cache, tier, here)

    def take(self) -> list[Any]:
        """The events since the last call."""
        changes = self._places.take()
        gone = defaultdict(list)
        for tier, block in changes.removed:
            gone[tier, block.group.number].append(block.block_hash)
        removed = [
            BlockRemoved(block_hashes=hashes, medium=MEDIA[tier], group_idx=number, locality=LOCALITY)
            for (tier, number), hashes in gone.items()
        ]
        return [*removed, *(self._stored(tier, block) for tier, block in changes.stored)]

    def close(self) -> None:
        self._follower.close()

    def _describe(self, request: Any, number: int, at: int) -> Described:
        group = self._layer_groups[number]
        size = group.group.block_tokens
        begin, end = at * size, (at + 1) * size
        lora = request.lora_request
        extra_keys, _ = generate_block_hash_extra_keys(request, begin, end, 0)
        hashes = request.block_hashes
        return Described(
            group=group,
            block_hash=maybe_convert_block_hash(hashes[self._groups.key_of(number, at)]),
            parent=maybe_convert_block_hash(hashes[self._groups.key_of(number, at - 1)]) if at else None,
            tokens=array.array("I", request.all_token_ids[begin:end]),
            lora_id=None if lora is None else lora.adapter_id,
            lora_name=None if lora is None else lora.name,
            extra_keys=to_event_extra_keys([extra_keys]),
        )

    def _stored(self, tier: Tier, block: Described) -> Any:
        return BlockStored(
            block_hashes=[block.block_hash],
            parent_block_hash=block.parent,
            token_ids=list(block.tokens),
            block_size=block.group.group.block_tokens,
            lora_id=block.lora_id,
            medium=MEDIA[tier],
            lora_name=block.lora_name,
            extra_keys=block.extra_keys,
            group_idx=block.group.number,
            kv_cache_spec_kind=block.group.attention,
            locality=LOCALITY,
        )
