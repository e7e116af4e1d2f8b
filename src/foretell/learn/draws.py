"""Draws random training jobs: what the data set is made of. Plain values, from a seed."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from foretell.errors import UsageError
from foretell.features import ZeroGrad
from foretell.plain import to_plain

Kind = Literal["mlp", "cnn", "encoder", "torchvision", "timm", "language_model"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OPTIMIZERS = ("SGD", "SGD-momentum", "Adam", "Adam-for", "AdamW", "Adagrad", "RMSprop", "Adamax", "NAdam", "Adadelta")
_LANGUAGE_OPTIMIZERS = ("SGD", "SGD-momentum", "Adam", "AdamW", "AdamW-for", "Adagrad", "RMSprop", "Adafactor")
PRECISIONS = ("float32", "amp", "bfloat16")
ACTIVATIONS = (
    "relu", "leaky_relu", "prelu", "elu", "selu", "tanh", "softplus", "swish", "mish", "gelu", "identity",
)  # fmt: skip
_ZERO_GRADS: tuple[ZeroGrad, ...] = ("before_forward", "before_forward", "before_backward", "later")
_SOURCES = ("tf", "legacy", "wide", "ese", "eca", "dm", "nf", "gluon")
"""Words before the name of an architecture."""
_PLAIN_SHARE = 0.6
"""Of the jobs, with Adam in float32: what most people, and all of the measured runs, train with."""
_OF_IMAGES = ("cnn", "torchvision", "timm")
_CHANNELS_LAST_SHARE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A job to label."""

    kind: Kind
    options: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    batch_size: int
    optimizer: str = "Adam"
    precision: str = "float32"
    has_summary: bool = False
    """A forward pass of two samples comes first, as tools that print a summary of the model do it."""
    has_rehearsal: bool = False
    """Two forward passes of a whole batch come first, whose input stays."""
    zero_grad: ZeroGrad = "before_forward"
    keeps_gradients: bool = False
    lengths: tuple[int, ...] = ()
    """Of the texts of each step; empty: as long as the options say."""
    is_channels_last: bool = False
    """Images and the weights of convolutions."""

    @property
    def key(self) -> str:
        return json.dumps(list(to_plain(self).values()))

    @property
    def group(self) -> str:
        """Jobs of one group are not independent of one another: the split is by group."""
        head = head_of(str(next(filter(None, map(self.options.get, ("model", "model_type", "architecture"))), "")))
        return f"{self.kind}-{head}" if head else self.kind


def head_of(model: str) -> str:
    """What names of an architecture have in common: `efficientnet` of `tf_efficientnet_b0`, `gpt` of `openai/gpt2`."""
    words = re.findall(r"[a-z]+", model.rpartition("/")[2].lower())
    return next((word for word in words if word not in _SOURCES), "")


def draw(kinds: tuple[str, ...], num: int, *, seed: int) -> list[Draw]:
    """`num` jobs, the kinds in turn. The same seed gives the same first jobs, however many are drawn."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise UsageError(f"--kinds {','.join(kinds)}: must be among {', '.join(KINDS)}.")
    generator = random.Random(seed)
    return [_DRAWERS[kinds[i % len(kinds)]](random.Random(generator.getrandbits(64))) for i in range(num)]


def _with(
    generator: random.Random, kind: Kind, batch_size: int, *, optimizers: tuple[str, ...] = OPTIMIZERS,
    has_rehearsal: bool = False, **options: str | int | float | bool | None,
) -> Draw:  # fmt: skip
    is_plain = generator.random() < _PLAIN_SHARE
    optimizer, precision = generator.choice(optimizers), generator.choice(PRECISIONS)
    has_summary = not has_rehearsal and generator.random() < 0.5
    zero_grad, keeps_gradients = generator.choice(_ZERO_GRADS), generator.random() < 0.1
    is_channels_last = kind in _OF_IMAGES and generator.random() < _CHANNELS_LAST_SHARE
    if is_plain:
        is_channels_last = False
        optimizer, precision, zero_grad, keeps_gradients = "Adam", "float32", "before_forward", False
    return Draw(
        kind=kind, options=options, batch_size=batch_size, has_summary=has_summary, has_rehearsal=has_rehearsal,
        optimizer=optimizer, precision=precision, zero_grad=zero_grad, keeps_gradients=keeps_gradients,
        is_channels_last=is_channels_last,
    )  # fmt: skip


def _log_uniform(generator: random.Random, low: float, high: float) -> int:
    return round(math.exp(generator.uniform(math.log(low), math.log(high))))


def _mlp(generator: random.Random) -> Draw:
    return _with(
        generator, "mlp", _log_uniform(generator, 4, 4096),
        input_size=_log_uniform(generator, 4, 8192), output_size=_log_uniform(generator, 1, 2048),
        hidden_layers=generator.randint(1, 12),
        architecture=generator.choice(["uniform", "gradual", "pyramid", "bottleneck"]),
        activation=generator.choice(ACTIVATIONS), batch_norm=generator.random() < 0.5,
        dropout=generator.choice([None, 0.1, 0.3, 0.5]), softmax=generator.random() < 0.5,
    )  # fmt: skip


def _cnn(generator: random.Random) -> Draw:
    architecture = generator.choice(
        ["uniform", "gradual", "pyramid", "bottleneck", "hourglass", "residual", "dense"]
    )  # fmt: skip
    image_size = _log_uniform(generator, 8, 256)
    depth = generator.randint(2, 40)
    # Jobs far beyond any card would teach little: the batch is drawn below a limit on the pixels.
    largest = max(2.0, min(512.0, 3e7 / (image_size**2 * depth)))
    return _with(
        generator, "cnn", _log_uniform(generator, 2, largest),
        input_channels=generator.choice([1, 3, 3, 4]), num_classes=_log_uniform(generator, 2, 2000), depth=depth,
        architecture=architecture, base_filters=_log_uniform(generator, 8, 160), image_size=image_size,
        activation=generator.choice(ACTIVATIONS[:-1]), batch_norm=generator.random() < 0.5,
        dropout=generator.choice([None, None, 0.2]), pooling_frequency=generator.randint(1, 8),
    )  # fmt: skip


def _encoder(generator: random.Random) -> Draw:
    heads = generator.choice([1, 2, 4, 8, 16])
    length = generator.choice([16, 32, 64, 128, 256, 512, 1024])
    return _with(
        generator, "encoder", _log_uniform(generator, 1, max(2, 65536 / length)),
        has_rehearsal=generator.random() < 0.5,
        num_classes=_log_uniform(generator, 2, 1000), embedding_size=heads * 8 * generator.randint(2, 16),
        num_layers=generator.randint(1, 16), num_heads=heads, ff_hidden_size=_log_uniform(generator, 64, 4096),
        seq_length=length, vocab_size=_log_uniform(generator, 500, 1_000_000),
        dropout=round(generator.uniform(0.0, 0.5), 3),
    )  # fmt: skip


def _torchvision(generator: random.Random) -> Draw:
    name = generator.choice(_TORCHVISION)
    small = name in ("inception_v3", "maxvit_t") or name.startswith(("vit_", "swin"))
    size = {"inception_v3": 299}.get(name, 224) if small else generator.choice([64, 86, 96, 128, 160, 224, 288])
    return _with(generator, "torchvision", _log_uniform(generator, 2, 128), model=name, image_size=size)


def _timm(generator: random.Random) -> Draw:
    return _with(generator, "timm", _log_uniform(generator, 2, 64), model=generator.choice(_TIMM))


def _language_model(generator: random.Random) -> Draw:
    is_large = generator.random() < 0.15
    kind = generator.choice(["gpt2", "gpt2", "llama", "opt", "qwen2", "qwen3", "gpt_neo", "bloom", "gpt_neox"])
    heads = generator.choice([8, 16, 24, 32]) if is_large else generator.choice([4, 8, 12, 16])
    width = heads * generator.choice([64, 80, 96, 128]) if is_large else heads * 16 * generator.randint(1, 6)
    layers = generator.randint(12, 36) if is_large else generator.randint(2, 24)
    length = generator.choice([32, 64, 128, 128, 256, 512])
    vocabulary = generator.choice([8000, 32000, 50257, 50257, 128000, 152000])
    sizes: dict[str, str | int | float | bool | None] = {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocabulary,
    }  # fmt: skip
    if kind == "gpt2":
        sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": vocabulary}
        if generator.random() < 0.3:
            sizes |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    elif kind == "bloom":
        sizes = {"hidden_size": width, "n_layer": layers, "n_head": heads, "vocab_size": vocabulary}
    elif kind == "gpt_neo":
        sizes = {"hidden_size": width, "num_layers": layers, "num_heads": heads, "vocab_size": vocabulary,
                 "attention_types": json.dumps([[["global"], layers]])}  # fmt: skip
    elif kind == "opt":
        sizes |= {"ffn_dim": 4 * width, "word_embed_proj_dim": width}
    elif kind in ("llama", "qwen2", "qwen3"):
        sizes |= {"intermediate_size": round(generator.uniform(2.7, 4) * width), "num_key_value_heads": heads // 4 or 1,
                  "head_dim": width // heads, "tie_word_embeddings": generator.random() < 0.5}  # fmt: skip
        if kind == "qwen2":
            del sizes["head_dim"]
    elif kind == "gpt_neox":
        sizes |= {"intermediate_size": 4 * width}
    # Batches of few texts are the shorter the fewer there are; the first one here is the longest.
    has_texts = generator.random() < 0.25
    lengths = (length, *(generator.randint(length // 4, length) for _ in range(3))) if has_texts else ()
    batch_size = _log_uniform(generator, 1, max(2, (2048 if is_large else 16384) / length))
    drawn = _with(generator, "language_model", batch_size, optimizers=_LANGUAGE_OPTIMIZERS)
    return replace(drawn, options={"model_type": kind, "length": length, **sizes}, lengths=lengths)


_TORCHVISION = (
    "alexnet", "convnext_tiny", "convnext_small", "densenet121", "densenet169", "efficientnet_b0", "efficientnet_b2",
    "efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mnasnet1_0", "mobilenet_v2",
    "mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_1_6gf", "regnet_y_3_2gf", "resnet18",
    "resnet34", "resnet50", "resnet101", "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_0", "squeezenet1_1",
    "swin_t", "vgg11", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vit_b_16", "vit_b_32", "wide_resnet50_2",
)  # fmt: skip
_TIMM = (
    "bat_resnext26ts", "beit3_base_patch16_224", "beit_base_patch16_224", "botnet26t_256", "caformer_b36",
    "cait_s24_224", "cait_xxs24_224", "coat_lite_medium", "coat_lite_tiny", "coat_tiny", "coatnet_0_224",
    "coatnet_2_rw_224", "coatnet_bn_0_rw_224", "coatnet_rmlp_1_rw2_224", "coatnext_nano_rw_224", "convformer_b36",
    "convit_base", "convit_tiny", "convmixer_1024_20_ks9_p14", "convmixer_768_32", "convnext_atto",
    "convnext_femto_ols", "convnext_small", "convnextv2_atto", "convnextv2_nano", "cpubone_b0_bfrobust",
    "cpubone_b2pt5_dwnorm", "crossvit_15_240", "crossvit_18_dagger_408", "crossvit_tiny_240", "cs3darknet_focus_l",
    "cs3darknet_l", "cs3edgenet_x", "csatv2", "cspdarknet53", "cspresnet50", "cspresnext50", "darknet17", "darknet53",
    "darknetaa53", "davit_base", "deepseek_vit_412m", "deit3_base_patch16_224", "deit_base_patch16_224",
    "deit_small_patch16_224", "densenet121", "densenetblur121d", "dla102", "dla34", "dla60", "dla60_res2net",
    "dm_nfnet_f0", "dm_nfnet_f4", "dpn107", "dpn68", "eca_botnext26ts_256", "eca_halonext26ts", "eca_nfnet_l0",
    "eca_nfnet_l3", "eca_resnet33ts", "eca_resnext26ts", "eca_vovnet39b", "ecaresnet101d", "ecaresnet50d",
    "ecaresnetlight", "edgenext_base", "edgenext_small", "efficientformer_l1", "efficientformerv2_l", "efficientnet_b0",
    "efficientnet_b3", "efficientnet_cc_b0_4e", "efficientnet_lite0", "efficientnetv2_l", "efficientnetv2_rw_t",
    "efficientvim_m1", "efficientvim_m3", "efficientvit_b0", "efficientvit_l1", "efficientvit_m2", "ese_vovnet39b",
    "ese_vovnet39b_evos", "fasternet_l", "fasternet_t0", "fastvit_ma36", "fastvit_mci3", "fastvit_sa24", "fbnetc_100",
    "fbnetv3_b", "flexivit_base", "focalnet_base_lrf", "focalnet_small_srf", "gc_efficientnetv2_rw_t", "gcresnet33ts",
    "gcresnext26ts", "gcvit_base", "gemma4_vit_167m", "gernet_l", "gernet_m", "ghostnet_050", "ghostnet_100",
    "ghostnetv2_100", "ghostnetv3_050", "gmixer_12_224", "gmlp_b16_224", "gmlp_s16_224", "halo2botnet50ts_256",
    "halonet26t", "haloregnetz_b", "hardcorenas_a", "hardcorenas_d", "hgnet_base", "hgnetv2_b0", "hgnetv2_b3",
    "hiera_base_224", "hiera_small_224", "hieradet_small", "hrnet_w18", "hrnet_w32", "iformer_h", "iformer_m",
    "inception_next_atto", "inception_next_tiny", "inception_resnet_v2", "inception_v4", "lambda_resnet26rpt_256",
    "lamhalobotnet50ts_256", "lcnet_035", "lcnet_100", "lcnetv2_base", "legacy_senet154", "legacy_seresnet101",
    "legacy_seresnet50", "legacy_xception", "levit_128", "levit_192", "levit_conv_128", "lowformer_b0", "lowformer_b3",
    "mambaout_base", "mambaout_femto", "maxvit_base_tf_224", "maxvit_nano_rw_256", "maxvit_rmlp_nano_rw_256",
    "maxvit_small_tf_224", "maxxvit_rmlp_nano_rw_256", "maxxvitv2_nano_rw_256", "mixer_b16_224", "mixer_l32_224",
    "mixer_s16_224", "mixnet_l", "mixnet_s", "mixnet_xxl", "mnasnet_050", "mobilenet_edgetpu_100", "mobilenetv1_100",
    "mobilenetv2_075", "mobilenetv2_100", "mobilenetv3_large_100", "mobilenetv3_small_050", "mobilenetv4_conv_medium",
    "mobilenetv5_300m", "mobileone_s0", "mobilevit_s", "mobilevitv2_050", "mobilevitv2_125", "mvitv2_base",
    "nasnetalarge", "nest_base", "nest_small_jx", "nextvit_base", "nf_regnet_b0", "nf_regnet_b3", "nf_resnet50",
    "nfnet_f4", "pit_b_224", "pit_s_224", "pit_ti_224", "pnasnet5large", "poolformer_m36", "poolformer_s12",
    "poolformerv2_m36", "pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2_li", "qwen3_vit_306m", "qwen3_vit_416m_enc", "rdnet_base",
    "regnetv_040", "regnetx_002", "regnetx_008", "regnetx_032", "regnetx_064", "regnety_002", "regnety_008_tv",
    "regnety_016", "regnety_064", "regnety_1280", "regnetz_005", "regnetz_c16", "repghostnet_050", "repghostnet_111",
    "repvgg_a0", "repvgg_a2", "repvgg_b1g4", "repvit_m0_9", "repvit_m1_5", "res2net101_26w_4s", "res2net50_26w_4s",
    "res2net50_26w_6s", "resmlp_12_224", "resnest101e", "resnest269e", "resnest26d", "resnet101d", "resnet152d",
    "resnet26", "resnet34d", "resnet50d", "resnet50s", "resnetaa101d", "resnetblur101d", "resnetrs101", "resnetrs270",
    "resnetrs50", "resnetv2_101", "resnetv2_152", "resnetv2_34", "resnetv2_50", "resnetv2_50d_frn", "resnext50_32x4d",
    "rexnet_100", "rexnetr_100", "sam2_hiera_base_plus", "samvit_base_patch16", "sebotnet33ts_256", "sedarknet21",
    "sehalonet33ts", "selecsls42", "selecsls42b", "semnasnet_050", "semnasnet_100", "sequencer2d_l", "sequencer2d_s",
    "seresnet152", "seresnet269d", "seresnet50", "seresnetaa50d", "seresnext101_32x8d", "seresnextaa101d_32x8d",
    "shvit_s1", "skresnet18", "skresnet34", "spnasnet_100", "starnet_s050", "starnet_s150", "swiftformer_l1",
    "swin_base_patch4_window7_224", "swin_s3_tiny_224", "swin_tiny_patch4_window7_224", "swinv2_base_window12_192",
    "swinv2_cr_base_ns_224", "swinv2_cr_tiny_ns_224", "tf_efficientnet_b0", "tf_efficientnet_b1",
    "tf_efficientnet_cc_b1_8e", "tf_efficientnetv2_b2", "tiny_vit_11m_224", "tinynet_a", "tnt_b_patch16_224",
    "tresnet_l", "tresnet_m", "twins_pcpvt_base", "vgg11", "vgg13_bn", "vgg16", "visformer_small",
    "vit_5b_patch16_sapiens2", "vit_base_patch16_rope_mixed_224", "vit_base_resnet50d_224",
    "vit_medium_patch16_reg1_gap_256", "vit_relpos_base_patch32_plus_rpn_256", "vit_small_patch16_224",
    "vit_small_patch16_rope_mixed_224", "volo_d1_224", "wide_resnet50_2", "xception41", "xception65",
    "xcit_medium_24_p16_224", "xcit_small_12_p16_224", "xcit_tiny_12_p16_224",
)  # fmt: skip
_DRAWERS: dict[str, Callable[[random.Random], Draw]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "encoder": _encoder,
    "torchvision": _torchvision,
    "timm": _timm,
    "language_model": _language_model,
}
