"""Every architecture of transformers that has one of the heads below, as a tiny random model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from benchmarks.coverage.tiny_configs import LENGTH, tiny_config
from benchmarks.coverage.training import Task, classes, generator, images
from torch import Tensor, nn
from transformers.models.auto import modeling_auto

HEADS = {
    "CausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "Seq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "SequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "ImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "AudioClassification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "AudioFrameClassification": "MODEL_FOR_AUDIO_FRAME_CLASSIFICATION_MAPPING_NAMES",
    "AudioXVector": "MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES",
    "CTC": "MODEL_FOR_CTC_MAPPING_NAMES",
    "SpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
}
IMAGE_SIZES = (32, 64, 128, 224, 256, 384)
FRAMES_FIRST, BINS_FIRST = 0, 1
"""How a spectrogram lies: what a model wants is found by trying."""
SPEECH = ("AudioClassification", "AudioFrameClassification", "AudioXVector", "CTC", "SpeechSeq2Seq")
TOKENS = (10, 100)
"""Ids of ordinary tokens; special ones are below."""
WAVEFORM = 16_000
FRAMES = 128


def names() -> list[tuple[str, str]]:
    return [(name, head) for head, mapping in HEADS.items() for name in sorted(getattr(modeling_auto, mapping))]


def model_class(name: str, head: str) -> Any:
    found = getattr(modeling_auto, HEADS[head])[name]
    return getattr(transformers, found if isinstance(found, str) else found[0])


def modules_of(name: str, head: str) -> list[str]:
    """Where its class is, by transformers' own table of what to import when: nothing of it is imported here. Older
    versions name the package alone."""
    found = getattr(modeling_auto, HEADS[head])[name]
    place = transformers._class_to_module.get(found if isinstance(found, str) else found[0])
    return [f"transformers.{place}", f"transformers.{place}.modeling_{place.rpartition('.')[2]}"] if place else []


def sizes(head: str) -> Iterable[int | None]:
    if head == "ImageClassification":
        return IMAGE_SIZES
    return (FRAMES_FIRST, BINS_FIRST) if head in SPEECH else (None,)


def build(name: str, head: str, size: int | None) -> Task:
    cls = model_class(name, head)
    model = cls(tiny_config(name, head, cls.config_class, image_size=size))
    batch = BATCHES.get(head, text)(model, size)
    return Task(model=model, batch=INPUTS.get(name, lambda model, batch: batch)(model, batch), loss=loss)


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The model's own; from one that has none for this head, its first output."""
    output = model(**batch)
    own = getattr(output, "loss", None)
    if own is not None:
        return own.mean()
    return next(value for value in output.values() if value.is_floating_point()).float().mean()


# --- inputs by head ---------------------------------------------------------------------------------------------------


def text(model: Any, size: int | None) -> dict[str, Tensor]:
    ids = tokens(model)
    return {"input_ids": ids, "attention_mask": padding(), "labels": ids.clone()}


def tokens(model: Any, *, length: int = LENGTH) -> Tensor:
    """Ordinary ones, with the end of the text at the end."""
    config = model.config.get_text_config()
    vocabulary = getattr(config, "vocab_size", None) or TOKENS[1]
    ids = torch.randint(TOKENS[0], min(TOKENS[1], vocabulary), (2, length), generator=generator())
    end = getattr(config, "eos_token_id", None)
    if end is not None:
        ids[:, -1] = end[0] if isinstance(end, (list, tuple)) else end
    return ids


def padding() -> Tensor:
    """The first row is shorter: masks are what much code decides by."""
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[0, LENGTH * 3 // 4 :] = 0
    return mask


def sequence(model: Any, size: int | None) -> dict[str, Tensor]:
    return {**text(model, size), "labels": classes(model.config.num_labels, 2)}


def pictures(model: Any, size: int | None) -> dict[str, Tensor]:
    if model.main_input_name == "input_ids":  # pictures as tokens
        return sequence(model, size)
    assert size is not None
    return {"pixel_values": images(size), "labels": classes(model.config.num_labels, 2)}


def audio(model: Any, layout: int | None) -> dict[str, Tensor]:
    """A waveform, or the spectrogram that a feature extractor would make of it, by what the model calls its input."""
    accepted = inspect.signature(model.forward).parameters
    if "input_values" in accepted:
        is_picture = hasattr(model.config, "num_mel_bins") and hasattr(model.config, "max_length")
        shape = (2, model.config.max_length, model.config.num_mel_bins) if is_picture else (2, WAVEFORM)
        batch = {"input_values": torch.rand(shape, generator=generator())}
        length = WAVEFORM
    else:
        frames = torch.rand(2, FRAMES, num_bins(model.config), generator=generator())
        batch = {"input_features": frames.mT.contiguous() if layout == BINS_FIRST else frames}
        length, is_picture = FRAMES, False
    if "attention_mask" in accepted and not is_picture:
        batch["attention_mask"] = torch.ones(2, length, dtype=torch.int64)
    return batch


def num_bins(config: Any) -> int:
    """Of the spectrogram; the part of the configuration that says so has one of these names."""
    parts = [config, *(getattr(config, name, None) for name in ("encoder_config", "audio_config"))]
    for name in ("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "d_model"):
        for part in parts:
            if isinstance(getattr(part, name, None), int):
                return getattr(part, name)
    return 80


def audio_classes(model: Any, layout: int | None) -> dict[str, Tensor]:
    return {**audio(model, layout), "labels": classes(model.config.num_labels, 2)}


def audio_frames(model: Any, layout: int | None) -> dict[str, Tensor]:
    batch = audio(model, layout)
    with torch.no_grad():
        _, frames, num_labels = model(**batch).logits.shape
    return {**batch, "labels": nn.functional.one_hot(classes(num_labels, 2, frames), num_labels)}


def transcript(model: Any, layout: int | None) -> dict[str, Tensor]:
    if model.main_input_name == "input_ids":  # a language model that may hear, too
        return text(model, None)
    return {**audio(model, layout), "labels": tokens(model, length=4)}


BATCHES: dict[str, Callable[[Any, int | None], dict[str, Tensor]]] = {
    "SequenceClassification": sequence,
    "ImageClassification": pictures,
    "AudioClassification": audio_classes,
    "AudioFrameClassification": audio_frames,
    "AudioXVector": audio_classes,
    "CTC": transcript,
    "SpeechSeq2Seq": transcript,
}


# --- inputs that no head tells ----------------------------------------------------------------------------------------


def several_codebooks(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each text is one row of tokens per codebook."""
    codebooks = model.config.num_codebooks
    ids = batch["input_ids"].repeat_interleave(codebooks, dim=0)
    labels = batch["labels"][:, :, None].expand(-1, -1, codebooks).contiguous()
    return {"input_ids": ids, "labels": labels}


def with_picture(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**batch, "pixel_values": images(model.config.vision_config.image_size)}


def patches(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Siglip 2 takes pictures of any form, cut into patches."""
    config = model.config.vision_config
    number = 16
    return {
        "pixel_values": torch.rand(2, number, config.num_channels * config.patch_size**2, generator=generator()),
        "pixel_attention_mask": torch.ones(2, number, dtype=torch.int64),
        "spatial_shapes": torch.tensor([[4, 4], [2, 8]]),
        "labels": batch["labels"],
    }


def codes_beside_text(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each step has one token of text and one of each of the audio's codebooks."""
    width = model.config.num_codebooks + 1
    return {**batch, "input_ids": batch["input_ids"][:, :, None].expand(-1, -1, width).contiguous()}


def one_label_per_channel(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**batch, "labels": classes(TOKENS[0], 2 * model.config.decoder_config.num_channels)}


def next_tokens(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """It classifies by the next token, and is trained as the language model it is."""
    return {**batch, "labels": batch["input_ids"].clone()}


def heard_in_step(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every token comes with the frames heard meanwhile."""
    config = model.config
    shape = 2, config.audio_config.num_mel_bins, LENGTH * config.audio_length_per_tok
    return {**text(model, None), "input_features": torch.rand(shape, generator=generator())}


def stacked_frames(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The feature extractor adds a delta to each frame and stacks two of them."""
    return {**batch, "input_features": batch["input_features"].repeat(1, 1, 4)}


INPUTS: dict[str, Callable[[Any, dict[str, Tensor]], dict[str, Tensor]]] = {
    "musicgen": several_codebooks,
    "musicgen_melody": several_codebooks,
    "git": with_picture,
    "siglip2": patches,
    "granite_speech5_ctc": stacked_frames,
    "kyutai_speech_to_text": codes_beside_text,
    "dia": one_label_per_channel,
    "shieldgemma2": next_tokens,
    "voxtral_realtime": heard_in_step,
}


def version() -> str:
    return transformers.__version__
