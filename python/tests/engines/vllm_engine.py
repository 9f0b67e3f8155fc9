#!/usr/bin/env python3
"""A vLLM engine on the CPU that takes commands on its standard input, one JSON object a line, and answers on its
standard output.

Run it with the environment's Python. First line: {"model": FOLDER, "connector": {...} or null, "options": {...}};
it answers {"ready": true}. Each later line: {"prompts": [[token, ...], ...], "max_tokens": N, "salt"?: "...",
"params"?: {...}, "hints"?: {...}}; it answers {"tokens": [[...], ...], "logprobs": [[...], ...], "cached": [...],
"first_s": [...], "seconds": S, "counts": {...}, "events": [...]}. "logprobs" are of the tokens, if the command has
"logprobs": true. "params" are the requests' `kv_transfer_params`, and "hints" is
their envelope `kv_hints`. With "forget": true the engine first drops its own prefix cache. "events" are vLLM's KV
events since the last answer, if the option "kv_events_config" is set.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any


def answer(said: dict[str, Any], out: Any) -> None:
    out.write(json.dumps(said) + "\n")
    out.flush()


def main() -> None:
    # Send the output of vLLM and its processes to stderr.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.readline())
    from vllm import LLM, SamplingParams
    from vllm.config import KVEventsConfig, KVTransferConfig

    connector, events = asked["connector"], asked["options"].pop("kv_events_config", None)
    take_events = follow(events["endpoint"]) if events else list
    llm = LLM(
        model=asked["model"],
        skip_tokenizer_init=True,
        seed=0,
        enforce_eager=True,
        disable_log_stats=False,
        kv_transfer_config=None if connector is None else KVTransferConfig(**connector),
        kv_events_config=None if events is None else KVEventsConfig(**events),
        **asked["options"],
    )
    answer({"ready": True}, out)
    for line in sys.stdin:
        work = json.loads(line)
        if work.get("forget"):
            assert llm.reset_prefix_cache()
        prompts = [
            {"prompt_token_ids": tokens, **({"cache_salt": work["salt"]} if "salt" in work else {})}
            for tokens in work["prompts"]
        ]
        sampling = SamplingParams(
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            max_tokens=work["max_tokens"],
            logprobs=0 if work.get("logprobs") else None,
            extra_args={"kv_transfer_params": work["params"]} if "params" in work else None,
        )
        began = time.monotonic()
        with hinted(llm.llm_engine, work.get("hints")):
            done = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.monotonic() - began
        answer(
            {
                "tokens": [list(one.outputs[0].token_ids) for one in done],
                "logprobs": [logprobs(one.outputs[0]) for one in done],
                "cached": [one.num_cached_tokens for one in done],
                "finished": [one.outputs[0].finish_reason for one in done],
                "first_s": [round(one.metrics.first_token_latency, 4) for one in done],
                "seconds": round(seconds, 4),
                "counts": counts(llm),
                "events": take_events(),
            },
            out,
        )


@contextlib.contextmanager
def hinted(engine: Any, hints: dict[str, Any] | None) -> Iterator[None]:
    """Adds an envelope to the requests: `LLMEngine.add_request` takes one, `LLM.generate` does not."""
    if hints is None:
        yield
        return
    import msgspec
    from vllm.v1.kv_hints import KvHintsEnvelope

    envelope, add = msgspec.convert(hints, KvHintsEnvelope), engine.add_request
    engine.add_request = functools.partial(add, kv_hints=envelope)
    try:
        yield
    finally:
        engine.add_request = add


def follow(endpoint: str) -> Callable[[], list[dict[str, Any]]]:
    """Subscribes to the engine's events, as a router does. Returns a function that takes the events so far."""
    import msgspec
    import zmq
    from vllm.distributed.kv_events import KVEventBatch

    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.connect(endpoint)
    subscriber.subscribe("")
    decoder = msgspec.msgpack.Decoder(KVEventBatch)

    def take() -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while subscriber.poll(0):
            _, _, batch = subscriber.recv_multipart()
            events += msgspec.to_builtins(decoder.decode(batch).events)
        return events

    return take


def logprobs(output: Any) -> list[float]:
    if output.logprobs is None:
        return []
    return [each[token].logprob for token, each in zip(output.token_ids, output.logprobs, strict=True)]


def counts(llm: Any) -> dict[str, float]:
    """The connector's counters in vLLM's metrics, and the number of the engine's preemptions."""
    prefix = "vllm:cairn_"
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    own = {name[len(prefix) :]: value for name, value in metrics.items() if name.startswith(prefix)}
    return {**own, "preemptions": metrics.get("vllm:num_preemptions", 0)}


if __name__ == "__main__":
    main()
