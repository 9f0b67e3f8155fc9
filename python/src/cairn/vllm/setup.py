"""What vLLM's configuration means for Cairn: which caches, for which blocks. Raises `Unsupported` by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cairn.engine.identity import Identity, Rank, all_ranks
from cairn.engine.options import Options, Unsupported
from cairn.model import CacheConfig, Shape

# What takes longer is a miss.
DEADLINE_LOOKUP_S = 2.0
# What keeps every block of a request, and nothing besides, with the word for it in vLLM's events. Some of vLLM's
# other kinds are made of these.
DONE = {"FullAttentionSpec": "full_attention", "MLAAttentionSpec": "mla_attention"}
# Of a model's configuration: what is of the machine or the library, and changes no value.
NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "architectures")


@dataclass(frozen=True)
class Setup:
    """What scheduler and workers of an engine agree on."""

    options: Options
    identity: Identity
    block_tokens: int
    attention: str  # as vLLM's events name it
    ranks: list[Rank]
    replicas: int  # workers that hold the same bytes of each block; the first of them saves
    layers: list[str]
    num_blocks: int
    loads: bool
    saves: bool
    steps_alone: bool  # no other step is computed meanwhile, nor other engines wait for this one's
    tells: bool  # of what is stored and removed, to who listens to the engine's events

    @staticmethod
    def of(config: Any, kv_cache_config: Any) -> Setup:
        """config: vLLM's `VllmConfig`."""
        group = _only_group(kv_cache_config)
        if config.model_config.use_mla and not config.cache_config.enable_prefix_caching:
            # Of vLLM's kernels for MLA on a CPU one cannot, and vLLM switches its own prefix cache off for it.
            raise Unsupported("CairnConnector does MLA where vLLM computes behind a prefix: prefix caching is off")
        parallel, transfer = config.parallel_config, config.kv_transfer_config
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, name, 1) != 1:
                raise Unsupported(f"CairnConnector does not do {name}={getattr(parallel, name)} (only 1)")
        replicas = getattr(kv_cache_config, "kv_tp_replicas", 1)
        spec, events = group.kv_cache_spec, config.kv_events_config
        return Setup(
            options=Options.of(transfer.kv_connector_extra_config),
            identity=Identity(config.model_config.model, _facts(config, spec)),
            block_tokens=spec.block_size,
            attention=DONE[type(spec).__name__],
            ranks=all_ranks(parallel.tensor_parallel_size // replicas, parallel.pipeline_parallel_size),
            replicas=replicas,
            layers=list(group.layer_names),
            num_blocks=kv_cache_config.num_blocks,
            loads=transfer.kv_role != "kv_producer",
            saves=transfer.kv_role != "kv_consumer",
            steps_alone=parallel.pipeline_parallel_size == 1 and parallel.data_parallel_size == 1,
            tells=events is not None and events.enable_kv_cache_events,
        )

    def rank(self, tensor: int, pipeline: int) -> Rank:
        """Of the worker at these places."""
        sizes = self.ranks[0]
        return Rank(tensor // self.replicas, sizes.tensor_size, pipeline, sizes.pipeline_size)

    def cache_name(self, rank: Rank) -> str:
        named = self.options.cache
        if named is None:
            return self.identity.cache_name(rank)
        return named if len(self.ranks) == 1 else f"{named}.{rank.label}"

    def own_layers(self, kv_caches: Mapping[str, Any]) -> list[Any]:
        """A worker's layers in the model's order, each once where several share their memory."""
        mine = [kv_caches[name] for name in self.layers if name in kv_caches]
        return list({(layer.data_ptr(), layer.stride()): layer for layer in mine}.values())

    def cache_config(self, num_layers: int, layer_values: int, dtype_bytes: int) -> CacheConfig | None:
        """The cache of one rank, whose blocks have `layer_values` values in each layer; None where one that is
        there is to be taken."""
        page, rest = self.block_tokens, layer_values % self.block_tokens
        page, inner = (1, layer_values) if rest else (page, layer_values // page)
        shape = Shape(num_layers, 1, page, inner, dtype_bytes)
        return self.options.cache_config(shape, len(self.ranks))


def _only_group(kv_cache_config: Any) -> Any:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise Unsupported(f"CairnConnector does one KV cache group; this model has {len(groups)} ({kinds})")
    kind = type(groups[0].kv_cache_spec).__name__
    if kind not in DONE:
        raise Unsupported(f"CairnConnector does {' and '.join(DONE)}; this model has {kind}")
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
        # A drafter's layers lie in the same blocks.
        "speculative": None if speculative is None else [str(speculative.method), str(speculative.model)],
    }
