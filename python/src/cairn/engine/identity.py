"""What a block's bytes depend on beside its tokens, and the names that follow from it.

Two engines share blocks exactly where all of it is the same: nothing of a process, a host or a restart is in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

# Changes when the order of bytes in a block, or the way keys are made, does: old blocks are then other blocks.
FORMAT = "cairn-engine-1"
# A cache's name has at most 64 characters: the model's, 16 of the digest, and the rank's.
MODEL_CHARACTERS = 20


@dataclass(frozen=True)
class Rank:
    """A worker's place among those that hold a part of each block."""

    tensor: int = 0
    tensor_size: int = 1
    pipeline: int = 0
    pipeline_size: int = 1

    @property
    def label(self) -> str:
        return f"tp{self.tensor}of{self.tensor_size}.pp{self.pipeline}of{self.pipeline_size}"


class Identity:
    def __init__(self, model: str, facts: Mapping[str, object]) -> None:
        """`facts`: everything that two engines must agree on, as JSON has it."""
        self._model = model
        text = json.dumps({"format": FORMAT, "model": model, **facts}, sort_keys=True, separators=(",", ":"))
        self.root = hashlib.sha256(text.encode()).digest()

    def cache_name(self, rank: Rank) -> str:
        model = re.sub(r"[^A-Za-z0-9_-]+", "-", self._model.rstrip("/").rsplit("/", 1)[-1])
        return f"{model[:MODEL_CHARACTERS]}.{self.root.hex()[:16]}.{rank.label}"


def all_ranks(tensor_size: int, pipeline_size: int) -> list[Rank]:
    """The ranks whose caches a prefix must be in."""
    return [
        Rank(tensor, tensor_size, stage, pipeline_size)
        for stage in range(pipeline_size)
        for tensor in range(tensor_size)
    ]
