"""What vLLM's configuration means for Cairn: which caches, with which blocks. Raises `Unsupported` with the
reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cairn.engine.groups import Group, Groups
from cairn.engine.keys import Identity, Rank, all_ranks
from cairn.engine.options import MAX_ROW_VALUES, Options, Unsupported
from cairn.engine.store import Part
from cairn.model import CacheConfig, KvGroup, Shape

# A request that takes longer counts as a miss.
LOOKUP_TIMEOUT_S = 2.0
# The supported kinds of layers, with their names in vLLM's events. Some of vLLM's other kinds derive from these.
FULL = {"FullAttentionSpec": "full_attention", "MLAAttentionSpec": "mla_attention"}
WINDOWS = {
    "SlidingWindowSpec": "sliding_window",
    "SlidingWindowMLASpec": "sliding_window_mla",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
}
STATES = {"MambaSpec": "mamba"}
SUPPORTED = FULL | WINDOWS | STATES
# The server's limits.
MAX_GROUPS = 16
MAX_HEADS = 1024
# The only one of vLLM's modes in which it keeps states at the ends of blocks and says where.
STATE_MODE = "align"
# Parts of a model's configuration that describe the machine or the library and do not change any value.
NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "architectures")


@dataclass(frozen=True)
class LayerGroup:
    """Layers with a block table of their own."""

    number: int  # of the table in vLLM
    group: Group
    attention: str  # its name in vLLM's events
    layers: Sequence[str]

    def own_layers(self, kv_caches: Mapping[str, Any]) -> list[Any]:
        """A worker's layers in the model's order. Layers that share memory appear once."""
        own = [kv_caches[name] for name in self.layers if name in kv_caches]
        return list({(layer.data_ptr(), layer.stride()): layer for layer in own}.values())


@dataclass(frozen=True)
class BlockShape:
    """A group's blocks in a worker's memory."""

    num_layers: int
    layer_values: int
    dtype_bytes: int


@dataclass(frozen=True)
class Setup:
    """What the scheduler and the workers of an engine agree on."""

    options: Options
    identity: Identity
    layer_groups: Sequence[LayerGroup]
    left_out: Sequence[str]  # groups that no other request can use
    ranks: list[Rank]
    replicas: int  # how many workers hold the same bytes of each block; the first of them saves
    num_blocks: int
    loads: bool
    saves: bool
    steps_alone: bool  # no other step runs in parallel, and no other engine waits for this one's steps
    publishes_events: bool  # to those who subscribe to the engine's events
    # The KV heads of the whole model, if its blocks are cut by heads: all tensor ranks then share a cache, and each
    # has its part of the blocks.
    heads: int | None = None
    head_ranks: int = 1  # how many parts the engine's ranks have

    @staticmethod
    def of(config: Any, kv_cache_config: Any) -> Setup:
        """config: vLLM's `VllmConfig`."""
        left_out, groups = _groups(config, kv_cache_config)
        if config.model_config.use_mla and not config.cache_config.enable_prefix_caching:
            # vLLM switches its prefix cache off if its MLA kernel cannot compute after a prefix, as one for CPUs
            # cannot.
            raise Unsupported("CairnConnector supports MLA only with prefix caching, but prefix caching is off")
        parallel, transfer = config.parallel_config, config.kv_transfer_config
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, name, 1) != 1:
                raise Unsupported(f"CairnConnector does not support {name}={getattr(parallel, name)}, only 1")
        if len(groups) > 1 and parallel.pipeline_parallel_size > 1:
            raise Unsupported(
                f"CairnConnector does not support pipeline_parallel_size={parallel.pipeline_parallel_size} "
                f"with {len(groups)} KV cache groups, only 1"
            )
        events = config.kv_events_config
        own = [kv_cache_config.kv_cache_groups[group.number] for group in groups]
        specs = [group.kv_cache_spec for group in own]
        replicas = max(getattr(kv_cache_config, "kv_tp_replicas", 1), _head_replicas(config, specs))
        parts = parallel.tensor_parallel_size // replicas
        heads = _heads(specs, parts)
        # Engines with other numbers of ranks then find the blocks.
        is_shared = heads is not None or (parts == 1 and config.model_config.use_mla)
        return Setup(
            options=Options.of(transfer.kv_connector_extra_config),
            identity=Identity(config.model_config.model, _facts(config, own, is_shared=is_shared)),
            layer_groups=groups,
            left_out=left_out,
            ranks=all_ranks(1 if heads else parts, parallel.pipeline_parallel_size),
            replicas=replicas,
            num_blocks=kv_cache_config.num_blocks,
            loads=transfer.kv_role != "kv_producer",
            saves=transfer.kv_role != "kv_consumer",
            steps_alone=parallel.pipeline_parallel_size == 1 and parallel.data_parallel_size == 1,
            publishes_events=events is not None and events.enable_kv_cache_events,
            heads=heads,
            head_ranks=parts if heads else 1,
        )

    @property
    def groups(self) -> Groups:
        return Groups.of([one.group for one in self.layer_groups])

    @property
    def has_kv_groups(self) -> bool:
        """Whether the caches have KV groups. A single full group is a cache with a layout."""
        return len(self.layer_groups) > 1 or self.layer_groups[0].group.kind != "full"

    def rank(self, tensor: int, pipeline: int) -> Rank:
        """The rank of the worker at these positions."""
        sizes = self.ranks[0]
        tensor = 0 if self.heads else tensor // self.replicas
        return Rank(tensor, sizes.tensor_size, pipeline, sizes.pipeline_size)

    def part(self, tensor: int) -> Part | None:
        """The part of each block that the worker at this position has; None if it has whole blocks."""
        return None if self.head_ranks == 1 else Part(tensor // self.replicas, self.head_ranks)

    def cache_name(self, rank: Rank) -> str:
        named = self.options.cache
        if named is None:
            return self.identity.cache_name(rank, self.heads)
        return named if len(self.ranks) == 1 else f"{named}.{rank.label}"

    def cache_config(self, num_layers: int, layer_values: int, dtype_bytes: int) -> CacheConfig | None:
        """The configuration of one rank's cache, whose blocks have `layer_values` values in each layer; None if an
        existing cache must be used."""
        if self.heads:
            values = self.groups.key_tokens * (self.heads // self.head_ranks)
            if layer_values % values:
                raise Unsupported(
                    f"CairnConnector does not support {layer_values} values for {values} heads and tokens"
                )
            inner = layer_values // values
            shape = Shape(num_layers, self.heads, self.groups.key_tokens, inner, dtype_bytes, shards=self.heads)
            return self.options.cache_config(shape, len(self.ranks))
        page, rest = self.groups.key_tokens, layer_values % self.groups.key_tokens
        page, inner = (1, layer_values) if rest else (page, layer_values // page)
        shape = Shape(num_layers, 1, page, inner, dtype_bytes)
        return self.options.cache_config(shape, len(self.ranks))

    def group_cache_config(self, kv_groups: Sequence[KvGroup]) -> CacheConfig | None:
        """Like `cache_config`, with KV groups."""
        return self.options.group_cache_config(kv_groups, self.groups.key_tokens, len(self.ranks))

    def kv_groups(self, shapes: Sequence[BlockShape]) -> list[KvGroup]:
        """The groups of one rank's cache, for blocks of these shapes."""
        return [_kv_group(one.group, shape) for one, shape in zip(self.layer_groups, shapes, strict=True)]


def _groups(config: Any, kv_cache_config: Any) -> tuple[list[str], list[LayerGroup]]:
    """The names of the groups that are left out, and the other groups."""
    left_out, groups = [], []
    several = len(kv_cache_config.kv_cache_groups) > 1
    for number, given in enumerate(kv_cache_config.kv_cache_groups):
        spec = given.kv_cache_spec
        kind = type(spec).__name__
        transfers = getattr(given, "enable_kv_transfer", True) and getattr(spec, "prefix_cacheable", True)
        if several and not transfers:
            left_out.append(f"{number} ({kind} of {given.layer_names[0]})")
            continue
        if kind not in SUPPORTED:
            raise Unsupported(f"CairnConnector supports {', '.join(SUPPORTED)}; this model has {kind}")
        if several and (getattr(given, "is_eagle_group", False) or getattr(spec, "extra_retained_tokens", 0)):
            raise Unsupported(
                "CairnConnector does not support draft layers in models with several KV cache groups"
            )
        groups.append(LayerGroup(number, _group(config, number, spec), SUPPORTED[kind], list(given.layer_names)))
    if not any(one.group.kind != "window" for one in groups):
        raise Unsupported(
            "CairnConnector needs a KV cache group of full attention or of states; this model has none"
        )
    if len(groups) > MAX_GROUPS:
        raise Unsupported(f"CairnConnector supports {MAX_GROUPS} KV cache groups; this model has {len(groups)}")
    return left_out, groups


def _group(config: Any, number: int, spec: Any) -> Group:
    kind, tokens = type(spec).__name__, spec.block_size
    if kind in FULL:
        return Group(f"full{number}", "full", tokens)
    if kind in STATES:
        if spec.mamba_cache_mode != STATE_MODE:
            raise Unsupported(
                f"CairnConnector supports states only with prefix caching and mamba_cache_mode={STATE_MODE}; "
                f"here it is {spec.mamba_cache_mode}"
            )
        return Group(f"state{number}", "state", tokens)
    in_chunks = kind == "ChunkedLocalAttentionSpec"
    # vLLM's token attends to itself and to the `sliding_window` - 1 tokens before it, as Cairn's does.
    window = spec.attention_chunk_size if in_chunks else spec.sliding_window
    return Group(f"window{number}", "window", tokens, window, in_chunks)


def _kv_group(group: Group, shape: BlockShape) -> KvGroup:
    page = 1 if group.kind == "state" else group.block_tokens
    inner, rest = divmod(shape.layer_values, page)
    if rest or inner > MAX_ROW_VALUES:
        raise Unsupported(
            f"CairnConnector does not support {shape.layer_values} values for {page} tokens of a layer "
            f"in the KV cache group {group.name}"
        )
    layout = Shape(shape.num_layers, 1, page, inner, shape.dtype_bytes)
    return KvGroup(group.name, group.kind, layout, group.window_tokens or None)


def _is_full_attention(specs: Sequence[Any]) -> bool:
    return len(specs) == 1 and type(specs[0]).__name__ == "FullAttentionSpec"


def _head_replicas(config: Any, specs: Sequence[Any]) -> int:
    """How many consecutive ranks have the same KV head, because the model has fewer of them than there are ranks.
    vLLM itself does not say so for each kind of attention. Ranks never share states."""
    total = getattr(config.model_config, "get_total_num_kv_heads", None)
    if total is None or not _is_full_attention(specs):
        return 1
    return max(int(config.parallel_config.tensor_parallel_size) // max(int(total()), 1), 1)


def _heads(specs: Sequence[Any], parts: int) -> int | None:
    """The KV heads of the whole model, if each of `parts` ranks has some of them in blocks of one kind. Blocks of
    states cannot be cut by heads, and a latent is the same on all ranks."""
    if not _is_full_attention(specs):
        return None
    heads = getattr(specs[0], "num_kv_heads", 0) * parts
    return heads if 0 < heads <= MAX_HEADS else None


def _facts(config: Any, groups: Sequence[Any], *, is_shared: bool) -> dict[str, object]:
    """The facts that two engines must agree on to share blocks. is_shared: the number of ranks is none of them."""
    model, parallel = config.model_config, config.parallel_config
    described = model.hf_config.to_dict()
    speculative = getattr(config, "speculative_config", None)
    facts: dict[str, object] = {
        "revision": model.revision,
        "config": {name: str(value) for name, value in described.items() if name not in NOT_OF_THE_MODEL},
        "dtype": str(model.dtype),
        "quantization": model.quantization,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "tensor_parallel_size": 1 if is_shared else parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        # A drafter's layers are part of the same blocks.
        "speculative": None if speculative is None else [str(speculative.method), str(speculative.model)],
    }
    specs = [group.kv_cache_spec for group in groups]
    if len(specs) == 1 and type(specs[0]).__name__ in FULL:
        # Keys made by earlier versions stay valid.
        return facts | {"kv_dtype": str(specs[0].dtype), "block_tokens": specs[0].block_size}
    return facts | {"kv_groups": [[_described(group.kv_cache_spec), list(group.layer_names)] for group in groups]}


def _described(spec: Any) -> dict[str, str]:
    """Everything that a group's bytes depend on."""
    names = (
        "block_size",
        "dtype",
        "dtypes",
        "shapes",
        "sliding_window",
        "attention_chunk_size",
        "tokens_per_state",
    )
    given = {name: getattr(spec, name, None) for name in names}
    return {"kind": type(spec).__name__} | {name: str(value) for name, value in given.items() if value is not None}
