"""A tiny configuration of any architecture of transformers: its default one, made small by rules on names.

What no rule names keeps its default, so that what makes an architecture special stays. OVERRIDES holds what rules on
names cannot know.
"""

from __future__ import annotations

import re
from typing import Any

VOCABULARY = 128
LENGTH = 16
HIDDEN, HEADS, HEAD_DIM = 64, 4, 16

# The first pattern that matches the whole name of an attribute decides; None leaves it alone. Numbers only get smaller.
RULES: tuple[tuple[str, int | None], ...] = (
    (r"num_feat_extract_layers|num_hidden_groups|.*_every_n_layers|max_window_layers", None),
    (r"num_kv_shared_layers", 0),
    (r".*vocab_size.*|codebook_size|num_codevectors.*", VOCABULARY),
    (r"max_(source|target)_positions", 64),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length|max_sequence_length", 256),
    (r"(.*_)?(n_)?layers?|.*num_hidden_layers|.*layers_per_stack|depth|.*_depth|num_blocks", 2),
    (r"(.*_)?(n_)?experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|top_k_experts|num_selected_experts|moe_k|moe_top_k", 2),
    (r"n_groups?|topk_group|num_expert_group", 1),
    (r"qk_head_dim", 2 * HEAD_DIM),
    (r"rotary_dim", 8),
    (r".*head_?dim|d_kv|(.*_)?head_size|kv_channels|d_head|mamba_d_head|dim_head", HEAD_DIM),
    (r".*lora_rank|.*d_state", 16),
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"mamba_d_ssm", 128),
    (r"(.*_)?num_key_value_heads|num_kv_heads|multi_query_group_num", 2),
    (r"(.*_)?(n_)?heads?", HEADS),
    (r".*intermediate_size|.*ffn_dim|.*ffn_hidden_size|d_ff|n_inner|d_inner|.*dim_feedforward|.*mlp_dim", 128),
    (
        r"(.*_)?hidden_size(_global)?|(.*_)?d_model|n_embd|dim|embed_dim|(.*_)?hidden_dim|.*embedding_(size|dim)|d_embed",
        HIDDEN,
    ),
    (r".*projection_dim|.*_proj_dim|(proj_)?codevector_dim|classifier_proj_size|xvector_output_dim", HIDDEN),
)
LISTS: tuple[tuple[str, int], ...] = (
    (r"depths|num_layers|layers|num_blocks|layer_depths|num_block_repeats", 1),
    (r"conv_dim|tdnn_dim", 32),
    (r"intermediate_size", 128),
)
# Some default configurations leave out what the model cannot be built without.
MISSING = {
    "head_dim": HEAD_DIM,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
}
SPECIAL_TOKENS = {"pad": 0, "bos": 1, "cls": 1, "decoder_start": 1, "forced_bos": 1, "eos": 2, "sep": 2, "mask": 3}
OTHER_TOKEN = 4
"""For an image, an audio clip ...: the texts here hold none of them."""

# What of a default configuration is computed from the rest, and would no longer fit.
DERIVED = frozenset(
    {"transformers_version", "id2label", "label2id", "architectures", "per_layer_config", "stage_names"}
    | {"out_features", "out_indices"}
)
NUM_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
STAGES = ("num_heads", "num_attention_heads", "depths", "hidden_sizes")

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MAMBA_AND_SHARED_ATTENTION = {
    "num_hidden_layers": 5,
    "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"],
    "attention_hidden_size": 128,
    "attention_head_dim": 32,
}
_INDEXER = {
    "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
    "indexer_compress_ratio": 4, "ple_embed_dim": 64, "ngram_vocab_size_base": 1000, "split_ngram_parts": 8,
}  # fmt: skip
# By architecture, or architecture/head. The reason stands beside each.
OVERRIDES: dict[str, dict[str, Any]] = {
    # of each eight layers one attends, of each two one has experts
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    # the second hybrid layer shares the first one's weights
    "zamba": _MAMBA_AND_SHARED_ATTENTION,
    "zamba2": {**_MAMBA_AND_SHARED_ATTENTION, "hybrid_layer_ids": [2, 4], "n_mamba_heads": 8, "mamba_headdim": 16},
    # heads times their size must be the expanded width
    "mamba2": {"num_heads": 8},
    "falcon_h1": {"mamba_d_ssm": 64},
    # half of a head is turned: its size is the sum of both parts
    "mistral4": {"head_dim": 2 * HEAD_DIM},
    # the default names no kind of layer, or one kind only, with which its own cache does not work
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    # the default's rotary parameters are empty, or not by kind of layer
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    # the cache has an entry for each layer in each cycle
    "hrm_text": {"num_hidden_layers": 16},
    # the default has no sizes for its indexer
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": _INDEXER,
    # the default lacks an attribute that the model reads
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "moonshine_streaming": {"num_key_value_heads": HEADS},
    "blt": {"use_cache": False},
    # widths are sums or quotients of other sizes
    "lilt": {"hidden_size": 96},
    "layoutlmv3": {"coordinate_size": 12, "shape_size": 8},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "mobilebert": {"intra_bottleneck_size": 64, "true_hidden_size": 64},
    "efficientnet": {"hidden_dim": 2560, "num_hidden_layers": 28},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    # positions are a grid of just the text's length, attended in chunks of it
    "reformer": {
        "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [32, 32], "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8, "num_buckets": 2,
    },
    "reformer/CausalLM": {"is_decoder": True},
    # the decoder gives as many tokens as there are positions
    "perceiver": {
        "max_position_embeddings": LENGTH, "d_latents": 64, "num_latents": 16, "num_self_attends_per_block": 2,
    },
    # tokens by their number in a vocabulary
    "shieldgemma2": {"yes_token_index": 10, "no_token_index": 11},
    "xmod": {"default_language": "en_XX"},
    # a convolution in as many groups as its codec is wide
    "kyutai_speech_to_text": {"codec_config": {"upsample_groups": 64}},
    # names of its own
    "cpmant": {"dim_model": 64, "prompt_length": 8, "prompt_types": 4, "segment_types": 4},
}  # fmt: skip


def tiny_config(name: str, head: str, config_class: Any, *, image_size: int | None = None) -> Any:
    small = shrunk(config_class().to_dict(), image_size)
    small = merged(small, merged(OVERRIDES.get(name, {}), OVERRIDES.get(f"{name}/{head}", {})))
    if small.get("is_encoder_decoder") and small.get("decoder_start_token_id") is None:
        small["decoder_start_token_id"] = SPECIAL_TOKENS["decoder_start"]
    return config_class.from_dict(small)


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The second counts where both say something; what is nested is merged too."""
    both = {name for name in first if name in second and isinstance(second[name], dict) and first[name]}
    return {**first, **second, **{name: merged(first[name], second[name]) for name in both}}


def shrunk(given: dict[str, Any], image_size: int | None) -> dict[str, Any]:
    has_stages = any(isinstance(given.get(name), (list, tuple)) for name in STAGES)
    layers = next((given[name] for name in NUM_LAYERS if type(given.get(name)) is int), 0)
    kept = layers_to_keep(given, layers)
    small: dict[str, Any] = {}
    for name, value in given.items():
        if name in DERIVED:
            continue
        if isinstance(value, dict) and "model_type" in value:
            small[name] = shrunk(value, image_size)
        elif name == "image_size" and image_size is not None and value is not None:
            small[name] = [image_size] * len(value) if isinstance(value, (list, tuple)) else image_size
        elif name in NUM_LAYERS and type(value) is int:
            small[name] = len(kept)
        elif name.endswith(("_token_id", "_token_index", "_token_ids")):
            small[name] = special_token(name, value)
        elif layers > 1 and isinstance(value, (list, tuple)) and len(value) == layers:
            small[name] = shrunk_list(name, [value[index] for index in kept])
        elif isinstance(value, (list, tuple)):
            small[name] = shrunk_list(name, value)
        elif type(value) is int:
            small[name] = shrunk_number(name, value, given, has_stages)
        elif "layerdrop" in name:
            small[name] = 0.0  # drawn on the host between numbers that a GPU draws by itself
        else:
            small[name] = value
    for name, value in MISSING.items():
        if small.get(name, 0) is None or (name == "pad_token_id" and name not in small):
            small[name] = value
    return small


def layers_to_keep(given: dict[str, Any], layers: int) -> list[int]:
    """Two, and one more for each further kind of layer: a hybrid stays one."""
    per_layer = [
        value
        for value in given.values()
        if isinstance(value, (list, tuple)) and len(value) == layers and all(isinstance(each, str) for each in value)
    ]
    kinds: dict[str, int] = {}
    for index in range(layers):
        kinds.setdefault(repr([value[index] for value in per_layer]), index)
    first = range(min(2, layers))
    return sorted({*kinds.values(), *first}) if len(kinds) > 1 else list(first)


def shrunk_list(name: str, value: Any) -> Any:
    for pattern, most in LISTS:
        if re.fullmatch(pattern, name) and all(type(each) is int for each in value):
            return [min(each, most) for each in value]
    return value


def shrunk_number(name: str, value: int, given: dict[str, Any], has_stages: bool) -> int:
    for pattern, most in RULES:
        if re.fullmatch(pattern, name):
            if most is None or (has_stages and most in (HIDDEN, HEADS, HEAD_DIM)):
                return value  # widths that grow from stage to stage fit the numbers of heads they have
            is_grouped = name.endswith("num_key_value_heads") and value < given.get("num_attention_heads", 0)
            return min(value, HEADS if name.endswith("num_key_value_heads") and not is_grouped else most)
    return value


def special_token(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [special_token(name, each) for each in value[:1]]
    if type(value) is not int or value < VOCABULARY:
        return value
    kind = name.removesuffix("_token_id").removesuffix("_token_index")
    return SPECIAL_TOKENS.get(kind, OTHER_TOKEN)
