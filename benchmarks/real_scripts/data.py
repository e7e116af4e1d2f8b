"""The small random data that the scripts read, made once per machine. A name of the table is a function here."""

from __future__ import annotations

import csv
import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "r", "s", "ta", "lo")]


def ensure(name: str, folder: Path) -> None:
    """Make the data `name` in `folder/name` unless it is there; half-made data is never taken for whole."""
    target, unfinished = folder / name, folder / f"{name}.unfinished"
    if target.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    MAKERS[name](unfinished)
    unfinished.rename(target)


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(5, 30))) for _ in range(count)]


def image(size: tuple[int, int], seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def mnist(folder: Path) -> None:
    """The four files of MNIST, in torchvision's place for them."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for part, count in (("train", 2048), ("t10k", 1024)):
        pixels = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = draw.integers(0, 10, count, dtype=np.uint8)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def tokens(folder: Path) -> None:
    """Token numbers as 16-bit integers, as nanoGPT prepares them."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 500_000), ("val", 50_000)):
        draw.integers(0, 65, count, dtype=np.uint16).tofile(folder / f"{part}.bin")


def wikitext(folder: Path) -> None:
    for seed, part in enumerate(("train", "valid", "test")):
        (folder / f"{part}.txt").write_text("\n".join(sentences(2000 if part == "train" else 200, seed)) + "\n")


def image_folder(folder: Path) -> None:
    """Two classes, as torchvision's ImageFolder reads them."""
    for part, count in (("train", 60), ("val", 16)):
        for label in ("cat", "dog"):
            (folder / part / label).mkdir(parents=True)
            for number in range(count):
                image((96, 80), number).save(folder / part / label / f"{number}.jpg")


def glue(folder: Path) -> None:
    for seed, (part, count) in enumerate((("train", 200), ("validation", 60))):
        with open(folder / f"{part}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", "sentence2", "label"])
            pairs = zip(sentences(count, seed), sentences(count, seed + 10), strict=True)
            writer.writerows([first, second, number % 2] for number, (first, second) in enumerate(pairs))


def chats(folder: Path) -> None:
    """What TRL reads: prompts with completions, and with two of them."""
    rows = list(zip(sentences(100, 1), sentences(100, 2), sentences(100, 3), strict=True))
    kinds = {"sft": "prompt completion", "dpo": "prompt chosen rejected", "reward": "chosen rejected"}
    for name, keys in ((name, words.split()) for name, words in kinds.items()):
        (folder / name).mkdir()
        lines = [json.dumps(dict(zip(keys, row, strict=False))) for row in rows]
        (folder / name / "train.jsonl").write_text("\n".join(lines) + "\n")


def boxes(folder: Path) -> None:
    """A few images with boxes, as YOLO reads them."""
    for part in ("train", "val"):
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for number in range(24):
            image((160, 120), number).save(folder / "images" / part / f"{number}.jpg")
            (folder / "labels" / part / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.3\n1 0.3 0.6 0.2 0.2\n")
    (folder / "boxes.yaml").write_text("path: boxes\ntrain: images/train\nval: images/val\nnames: {0: cat, 1: dog}\n")


def tokenizer(folder: Path) -> None:
    """A tokenizer by words, as a folder transformers loads."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate(special + WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", eos_token="[SEP]", bos_token="[CLS]", model_max_length=512,
    )  # fmt: skip
    fast.save_pretrained(folder)


def bert(folder: Path) -> None:
    """BERT with random weights, and a tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=512, hidden_size=256, num_hidden_layers=4, num_attention_heads=4)
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer(folder)


def litgpt(folder: Path) -> None:
    """Text files, and a tokenizer as litgpt expects it in a checkpoint folder."""
    tokenizer(folder)
    (folder / "texts").mkdir()
    for seed in range(3):
        (folder / "texts" / f"{seed}.txt").write_text("\n".join(sentences(500, seed)))


def llama(folder: Path) -> None:
    """A small Llama with random weights, a tokenizer and a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        bos_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (mnist, tokens, wikitext, image_folder, glue, chats, boxes, tokenizer, bert, litgpt, llama)
}
