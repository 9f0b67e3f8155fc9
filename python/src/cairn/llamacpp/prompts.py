"""The tokens of a request, as llama-server will find them."""

from __future__ import annotations

import json
from typing import Any

from cairn.llamacpp.llama import Headers, Llama

# Routes whose prompt is text or tokens, and routes whose prompt is a list of messages.
PROMPTS = frozenset({"/completion", "/completions", "/v1/completions"})
CHATS = frozenset({"/v1/chat/completions", "/chat/completions"})
TOKENIZE_S = 10.0


def request_of(path: str, body: bytes) -> dict[str, Any] | None:
    """The body of a request that one slot serves, and whose prompt may be kept; else None."""
    if path not in PROMPTS and path not in CHATS:
        return None
    try:
        request = json.loads(body)
    except ValueError:
        return None  # llama-server says what is wrong with it
    if not isinstance(request, dict) or request.get("id_slot", -1) != -1:
        return None
    if any(request.get(name, 1) not in (1, None) for name in ("n", "n_cmpl")):
        return None  # several answers need several slots
    if request.get("cache_prompt") is False or request.get("lora"):
        return None  # the client does not want a stored prompt, or has its own weights
    if path in PROMPTS:
        prompt = request.get("prompt")
        if isinstance(prompt, list) and not _is_tokens(prompt):
            prompt = prompt[0] if len(prompt) == 1 else None  # several prompts need several slots
        return request if isinstance(prompt, str) or _is_tokens(prompt) else None
    return request if isinstance(request.get("messages"), list) else None


async def tokens_of(llama: Llama, path: str, request: dict[str, Any], headers: Headers) -> list[int]:
    """The request's tokens. Raises LlamaError if llama-server does not give them, as for a prompt with images."""
    if path in CHATS:
        made = await llama.call("POST", "/apply-template", request, headers=headers, limit_s=TOKENIZE_S)
        prompt = made["prompt"]
    else:
        prompt = request["prompt"]
        if isinstance(prompt, list) and not _is_tokens(prompt):
            prompt = prompt[0]
    if not isinstance(prompt, str):
        return list(prompt)
    asked = {"content": prompt, "add_special": True, "parse_special": True}
    found = await llama.call("POST", "/tokenize", asked, headers=headers, limit_s=TOKENIZE_S)
    return list(found["tokens"])


def _is_tokens(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(one) is int and one >= 0 for one in prompt)
