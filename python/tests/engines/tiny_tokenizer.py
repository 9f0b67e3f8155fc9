#!/usr/bin/env python3
"""Gives a model of `tiny_model.py` a tokenizer, so that `vllm serve` takes text: each byte is a token.

usage: tiny_tokenizer.py FOLDER   (with an environment's Python that has transformers)
"""

from __future__ import annotations

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<s>", "</s>")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def main() -> None:
    symbols = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    model = models.BPE({symbol: number for number, symbol in enumerate(symbols)}, [], unk_token=SPECIAL[0])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2]
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
