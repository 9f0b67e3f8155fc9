"""What vLLM's configuration means for Cairn: which caches, with which blocks. Raises `Unsupported` with the
reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cairn.engine.keys import Identity, Rank, all_ranks
from cairn.engine.options import Options, Unsupported
from cairn.model import CacheConfig, Shape

# A request that takes longer counts as a miss.
LOOKUP_TIMEOUT_S = 2.0
# The supported kinds of attention, which keep every block of a request and nothing else, with their names in
# vLLM's events. Some of vLLM's other kinds derive from these.
SUPPORTED = {"FullAttentionSpec": "full_attention", "MLAAttentionSpec": "mla_attention"}
# Parts of a model's configuration that describe the machine or the library and do not change any value.
NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "architectures")


@dataclass(frozen=True)
class Setup:
    """What the scheduler and the workers of an engine agree on."""

    options: Options
    identity: Identity
    block_tokens: int
    attention: str  # its name in vLLM's events
    ranks: list[Rank]
    replicas: int  # how many workers hold the same bytes of each block; the first of them saves
    layers: list[str]
    num_blocks: int
    loads: bool
    saves: bool
    steps_alone: bool  # no other step runs in parallel, and no other engine waits for this one's steps
    publishes_events: bool  # to those who subscribe to the engine's events

    @staticmethod
    def of(config: Any, kv_cache_config: Any) -> Setup:
        """config: vLLM's `VllmConfig`."""
        group = _only_group(kv_cache_config)
        if config.model_config.use_mla and not config.cache_config.enable_prefix_caching:
            # vLLM switches its prefix cache off if its MLA kernel cannot compute after a prefix, as one for CPUs
            # cannot.
            raise Unsupported("CairnConnector supports MLA only with prefix caching, but prefix caching is off")
        parallel, transfer = config.parallel_config, config.kv_transfer_config
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, name, 1) != 1:
                raise Unsupported(f"CairnConnector does not support {name}={getattr(parallel, name)}, only 1")
        replicas = getattr(kv_cache_config, "kv_tp_replicas", 1)
        spec, events = group.kv_cache_spec, config.kv_events_config
        return Setup(
            options=Options.of(transfer.kv_connector_extra_config),
            identity=Identity(config.model_config.model, _facts(config, spec)),
            block_tokens=spec.block_size,
            attention=SUPPORTED[type(spec).__name__],
            ranks=all_ranks(parallel.tensor_parallel_size // replicas, parallel.pipeline_parallel_size),
            replicas=replicas,
            layers=list(group.layer_names),
            num_blocks=kv_cache_config.num_blocks,
            loads=transfer.kv_role != "kv_producer",
            saves=transfer.kv_role != "kv_consumer",
            steps_alone=parallel.pipeline_parallel_size == 1 and parallel.data_parallel_size == 1,
            publishes_events=events is not None and events.enable_kv_cache_events,
        )

    def rank(self, tensor: int, pipeline: int) -> Rank:
        """The rank of the worker at these positions."""
        sizes = self.ranks[0]
        return Rank(tensor // self.replicas, sizes.tensor_size, pipeline, sizes.pipeline_size)

    def cache_name(self, rank: Rank) -> str:
        named = self.options.cache
        if named is None:
            return self.identity.cache_name(rank)
        return named if len(self.ranks) == 1 else f"{named}.{rank.label}"

    def own_layers(self, kv_caches: Mapping[str, Any]) -> list[Any]:
        """A worker's layers in the model's order. Layers that share memory appear once."""
        own = [kv_caches[name] for name in self.layers if name in kv_caches]
        return list({(layer.data_ptr(), layer.stride()): layer for layer in own}.values())

    def cache_config(self, num_layers: int, layer_values: int, dtype_bytes: int) -> CacheConfig | None:
        """The configuration of one rank's cache, whose blocks have `layer_values` values in each layer; None if an
        existing cache must be used."""
        page, rest = self.block_tokens, layer_values % self.block_tokens
        page, inner = (1, layer_values) if rest else (page, layer_values // page)
        shape = Shape(num_layers, 1, page, inner, dtype_bytes)
        return self.options.cache_config(shape, len(self.ranks))


def _only_group(kv_cache_config: Any) -> Any:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise Unsupported(f"CairnConnector supports one KV cache group; this model has {len(groups)} ({kinds})")
    kind = type(groups[0].kv_cache_spec).__name__
    if kind not in SUPPORTED:
        raise Unsupported(f"CairnConnector supports {' and '.join(SUPPORTED)}; this model has {kind}")
    return groups[0]


def _facts(config: Any, spec: Any) -> dict[str, object]:
    """What two engines must agree on to share blocks."""
    model, parallel = config.model_config, config.parallel_config
    described = model.hf_config.to_dict()
    speculative = getattr(config, "speculative_config", None)
    return {
        "revision": model.revision,
        "config": {name: str(value) for name, value in described.items() if name not in NOT_OF_THE_MODEL},
        "dtype": str(model.dtype),
        "quantization": model.quantization,
        "kv_dtype": str(spec.dtype),
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "block_tokens": spec.block_size,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        # A drafter's layers are part of the same blocks.
        "speculative": None if speculative is None else [str(speculative.method), str(speculative.model)],
    }
