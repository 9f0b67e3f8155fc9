"""Which model computed a state, and with which settings."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cairn.llamacpp.llama import Llama, LlamaError
from cairn.llamacpp.state import Form, NotSliceable, State, StateRefused, read_state

CALL_S = 10.0
# The prompt whose state shows how a model computes: the weights of all layers, the positions, what is added to them.
# Every vocabulary has these tokens. More tokens would take longer at the start.
PROBE = tuple(range(1, 17))
# Two probes one after the other must agree. Requests in the same batch may change the last bits.
PROBES = 5
# A large model on a busy processor takes minutes.
PROBE_S = 600.0
PIECE_BYTES = 1 << 20
PART_OF_MODEL = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
# The names of /props whose change shows another start or another model. `media_marker` is random for each start.
OF_START = ("model_path", "model_alias", "model_ftype", "build_info", "total_slots", "media_marker")


@dataclass(frozen=True)
class Identity:
    """salt: of the keys. form: None if states are not cut. context_tokens: of each slot."""

    salt: str
    form: Form | None
    slots: int
    context_tokens: int
    seen: str


async def seen_of(llama: Llama) -> str:
    """What changes if llama-server is started again, or loads another model. Raises LlamaError."""
    props = await llama.call("GET", "/props", limit_s=CALL_S)
    settings = props.get("default_generation_settings", {})
    files = [_stat_of(path) for path in _files_of(props.get("model_path", ""))]
    kept = {name: props.get(name) for name in OF_START}
    return json.dumps([kept, settings.get("n_ctx"), settings.get("params", {}).get("lora"), files], sort_keys=True)


async def identify(llama: Llama, folder: str, name: str, seen: str, salt: str) -> Identity:
    """Computes the probe in slot 0, saves it in llama-server's `folder` as `name`, and reads it. Raises LlamaError,
    StateRefused, or OSError if the folder is not llama-server's."""
    props = await llama.call("GET", "/props", limit_s=CALL_S)
    if props.get("role") == "router" or not isinstance(props.get("total_slots"), int):
        raise StateRefused("the server has no slots; is it llama-server, and not its router?")
    models = await llama.call("GET", "/v1/models", limit_s=CALL_S)
    if await llama.call("GET", "/lora-adapters", limit_s=CALL_S):
        raise StateRefused("it has LoRA adapters, whose weights a request may change")
    state, computed = await _probe(llama, folder, name)
    for _ in range(PROBES - 1):
        before, (state, computed) = computed, await _probe(llama, folder, name)
        if before == computed:
            break
    else:
        raise LlamaError(f"{PROBES} computations of the same tokens differ")
    form = state.form if state is not None else None
    files = await asyncio.to_thread(_hash_of, _files_of(props.get("model_path", "")))
    context_tokens = int(props["default_generation_settings"]["n_ctx"])
    meta = [one.get("meta") for one in models.get("data", [])]
    place = props.get("model_path") if files is None else None  # equal files are equal models wherever they lie
    of_model = [place, props.get("model_ftype"), props.get("build_info"), meta]
    # A whole state is restored only where the slots are as they were.
    of_form = form.identity() if form is not None else repr(("whole", props["total_slots"]))
    parts: list[Any] = [of_model, context_tokens, of_form, hashlib.sha256(computed).hexdigest(), files, salt]
    text = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return Identity(text, form, props["total_slots"], context_tokens, seen)


async def _probe(llama: Llama, folder: str, name: str) -> tuple[State | None, bytes]:
    """Computes the probe. Returns its state, or None if it cannot be cut, and what the model computed."""
    asked = {"prompt": list(PROBE), "n_predict": 0, "id_slot": 0, "cache_prompt": False}
    await llama.call("POST", "/completion", asked, limit_s=PROBE_S)
    saved = await llama.call("POST", "/slots/0?action=save", {"filename": name}, limit_s=PROBE_S)
    path = os.path.join(folder, name)
    try:
        with open(path, "rb") as file:
            data = file.read()
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    if len(data) != saved.get("n_written", len(data)):
        raise StateRefused(f"the file has {len(data)} bytes of the {saved['n_written']} that were written")
    try:
        state = read_state(memoryview(data))
    except NotSliceable:
        return None, data
    if list(state.tokens) != list(PROBE):
        raise LlamaError("another client used slot 0")
    return state, state.block(0, len(PROBE))


def _files_of(path: str) -> list[str]:
    """All files of a model, which may be split."""
    split = PART_OF_MODEL.search(path)
    if split is None:
        return [path] if path else []
    stem, count = path[: split.start()], split.group(1)
    return [f"{stem}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def _stat_of(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _hash_of(paths: Sequence[str]) -> str | None:
    """The hash of the files' contents; None if they cannot be read here."""
    digest = hashlib.sha256()
    try:
        for path in paths:
            with open(path, "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return None
                while piece := file.read(PIECE_BYTES):
                    digest.update(piece)
    except OSError:
        return None
    return digest.hexdigest() if paths else None
