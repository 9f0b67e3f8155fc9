"""What of vLLM's requests a block's bytes depend on, beside its tokens."""

from __future__ import annotations

from typing import Any

from cairn.engine.chain import Extra


def may_be_shared(request: Any) -> bool:
    """Prompts of embeddings have no tokens that would say what they are."""
    return request.prompt_embeds is None


def of_request(request: Any) -> object:
    """What holds for all blocks. A LoRA is its name and its path: its number is this process's own."""
    lora = request.lora_request
    if lora is None and request.cache_salt is None:
        return None
    return {"salt": request.cache_salt, "lora": None if lora is None else [lora.lora_name, lora.lora_path]}


def of_block(request: Any) -> Extra | None:
    """The images and sounds that lie in a block, and where in it they begin."""
    features = [
        (feature.mm_position.offset, feature.mm_position.length, feature.identifier)
        for feature in request.mm_features
    ]
    if not features:
        return None

    def extra(begin: int, end: int) -> object:
        inside = [
            [identifier, offset - begin]
            for offset, length, identifier in features
            if offset < end and begin < offset + length
        ]
        return inside or None

    return extra
