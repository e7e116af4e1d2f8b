"""`foretell import` against the virtual GPU: `python benchmarks/import_accuracy.py [--gpu NAME] [JOB ...]` prints the
table of docs/cpu-engine.md. Each job is recorded on the CPU and run on the virtual GPU, by this same file.

The jobs of SEEN were looked at while the rules were written; the others were run once the rules were there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

Loss = Callable[[Any, Any], Any]
Job = tuple[Any, Callable[[], Any], Loss, str, dict[str, Any]]
"""Model, batch, loss, optimizer and its options."""


def mlp(optimizer: str, **options: Any) -> Job:
    from torch import nn, randn

    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.1))]
    return nn.Sequential(*layers), lambda: randn(512, 1024), lambda model, x: model(x).sum(), optimizer, options


def vision(name: str, size: int, optimizer: str = "AdamW", batch: int = 8, **options: Any) -> Job:
    import torchvision
    from torch import randn

    model = getattr(torchvision.models, name)()
    return model, lambda: randn(batch, 3, size, size), lambda model, x: model(x).logsumexp(1).sum(), optimizer, options


def text(name: str, optimizer: str = "AdamW", is_labelled: bool = True, **config: Any) -> Job:
    import transformers
    from torch import randint, zeros

    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(vocab_size=8000, **config))

    def loss(model: Any, ids: Any) -> Any:
        labels = ids if is_labelled else zeros(ids.shape[0], dtype=ids.dtype, device=ids.device)
        return model(input_ids=ids, labels=labels).loss

    return model, lambda: randint(0, 8000, (8, 128)), loss, optimizer, {}


def vit() -> Job:
    from torch import randn
    from torchvision.models import VisionTransformer

    model = VisionTransformer(image_size=64, patch_size=8, num_layers=3, num_heads=4, hidden_dim=256, mlp_dim=1024)
    return model, lambda: randn(16, 3, 64, 64), lambda model, x: model(x).logsumexp(1).sum(), "SGD", {"lr": 0.1}


def encoder() -> Job:
    from torch import nn, randint

    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 3)
    model = nn.Sequential(nn.Embedding(8000, 256), layers, nn.Linear(256, 8000))
    loss = lambda model, ids: nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())  # noqa: E731
    return model, lambda: randint(0, 8000, (32, 128)), loss, "AdamW", {}


def lstm() -> Job:
    from torch import nn, randn

    model = nn.LSTM(256, 512, 2, batch_first=True)
    return model, lambda: randn(32, 64, 256), lambda model, x: model(x)[0].sum(), "AdamW", {}


def language_model() -> Job:
    from torch import nn, randint

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5000, 200), nn.Linear(300, 5000)
            self.lstm = nn.LSTM(200, 300, 2, batch_first=True, dropout=0.3)

        def forward(self, ids: Any) -> Any:
            return self.head(self.lstm(self.embedding(ids))[0])

    loss = lambda model, ids: nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())  # noqa: E731
    return Model(), lambda: randint(0, 5000, (32, 50)), loss, "SGD", {}


def packed_gru() -> Job:
    from torch import linspace, nn, randn

    def loss(model: Any, x: Any) -> Any:
        lengths = linspace(x.shape[1], 3, x.shape[0]).long()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return model(packed)[0].data.square().sum()

    return nn.GRU(128, 256, bidirectional=True), lambda: randn(16, 40, 128), loss, "AdamW", {}


def decoder() -> Job:
    """Step by step: the same net is called twelve times."""
    from torch import cat, nn, randn

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(256, 256, 2), nn.Linear(256, 256)

        def forward(self, y: Any) -> Any:
            state, words = None, []
            for _ in range(12):
                y, state = self.gru(y, state)
                y = self.head(y)
                words.append(y)
            return cat(words)

    return Decoder(), lambda: randn(1, 64, 256), lambda model, x: model(x).square().mean(), "AdamW", {}


def autoencoder(is_mixed: bool) -> Job:
    """Transposed, dilated and grouped convolutions, some under autocast."""
    from torch import autocast, bfloat16, nn, randn

    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(), nn.Conv2d(256, 256, 3, padding=2, dilation=2, groups=4), nn.ReLU(),
        nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(),
        nn.Conv2d(64, 3, 1),
    )  # fmt: skip

    def loss(model: Any, x: Any) -> Any:
        with autocast(x.device.type, bfloat16, enabled=is_mixed):
            return model(x).float().square().mean()

    return model, lambda: randn(8, 3, 96, 96), loss, "AdamW", {}


def segmentation() -> Job:
    from torch import randn
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None)
    return model, lambda: randn(4, 3, 160, 160), lambda model, x: model(x)["out"].square().mean(), "SGD", {"lr": 0.1}


def resnext() -> Job:
    from torch import autocast, bfloat16, channels_last, randn
    from torchvision.models import resnext50_32x4d

    def loss(model: Any, x: Any) -> Any:
        with autocast(x.device.type, bfloat16):
            return model(x.contiguous(memory_format=channels_last)).float().logsumexp(1).sum()

    model = resnext50_32x4d().to(memory_format=channels_last)
    return model, lambda: randn(8, 3, 128, 128), loss, "SGD", {"lr": 0.1, "momentum": 0.9}


def generator() -> Job:
    """DCGAN's."""
    from torch import nn, randn

    widths, layers = (100, 512, 256, 128, 64), []
    for at, (wide, narrow) in enumerate(pairwise(widths)):
        transposed = nn.ConvTranspose2d(wide, narrow, 4, 1 if at == 0 else 2, 0 if at == 0 else 1, bias=False)
        layers += [transposed, nn.BatchNorm2d(narrow), nn.ReLU(True)]
    model = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())
    return model, lambda: randn(64, 100, 1, 1), lambda model, x: model(x).square().mean(), "Adam", {}


def text_recognition() -> Job:
    """CRNN: convolutions over a line of text, then LSTMs in both directions over its columns."""
    from torch import nn, randn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.columns = nn.Sequential(
                nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(),
                nn.MaxPool2d(2), nn.Conv2d(128, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(),
                nn.MaxPool2d((8, 1)),
            )  # fmt: skip
            self.lstm, self.head = nn.LSTM(256, 256, 2, bidirectional=True), nn.Linear(512, 80)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(self.columns(x).squeeze(2).permute(2, 0, 1))[0])

    return Model(), lambda: randn(16, 1, 32, 160), lambda model, x: model(x).logsumexp(2).sum(), "Adadelta", {}


def adapters() -> Job:
    from torch import nn, randn

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.ModuleList(nn.Linear(1024, 1024).requires_grad_(False) for _ in range(4))
            self.down = nn.ModuleList(nn.Linear(1024, 8, bias=False) for _ in range(4))
            self.up = nn.ModuleList(nn.Linear(8, 1024, bias=False) for _ in range(4))

        def forward(self, x: Any) -> Any:
            for base, down, up in zip(self.base, self.down, self.up, strict=True):
                x = (base(x) + up(down(x))).relu()
            return x

    return Adapted(), lambda: randn(256, 1024), lambda model, x: model(x).mean(), "AdamW", {}


BERT = {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
JOBS: dict[str, Callable[[], Job]] = {
    "MLP, SGD": lambda: mlp("SGD", lr=0.1),
    "MLP, SGD nesterov": lambda: mlp("SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "MLP, Adam": lambda: mlp("Adam", weight_decay=0.1),
    "MLP, RMSprop": lambda: mlp("RMSprop", weight_decay=0.1),
    "GPT-2": lambda: text("GPT2LMHeadModel", n_layer=3, n_embd=256, n_head=4),
    "BERT": lambda: text("BertForSequenceClassification", is_labelled=False, **BERT),
    "Llama": lambda: text("LlamaForCausalLM", use_cache=False, **BERT),
    "ViT, SGD": vit,
    "TransformerEncoder": encoder,
    "ResNet-18": lambda: vision("resnet18", 96),
    "ResNet-50, SGD": lambda: vision("resnet50", 128, "SGD", lr=0.1, momentum=0.9),
    "VGG-11, SGD": lambda: vision("vgg11", 64, "SGD", 16, lr=0.1, momentum=0.9),
    "MobileNetV3": lambda: vision("mobilenet_v3_small", 128, batch=32),
    "LSTM": lstm,
    "LSTM language model, SGD": language_model,
    "GRU, packed": packed_gru,
    "GRU, step by step": decoder,
    "autoencoder": lambda: autoencoder(is_mixed=False),
    "autoencoder, autocast": lambda: autoencoder(is_mixed=True),
    "adapters (LoRA)": adapters,
    "DenseNet-121, NAdam": lambda: vision("densenet121", 64, "NAdam"),
    "Swin-T": lambda: vision("swin_t", 96),
    "ConvNeXt-T, SGD": lambda: vision("convnext_tiny", 96, "SGD", lr=0.1),
    "EfficientNet-B0, RMSprop": lambda: vision("efficientnet_b0", 96, "RMSprop", momentum=0.9),
    "ALBERT, Adam": lambda: text("AlbertForMaskedLM", "Adam", embedding_size=64, **BERT),
    "T5, Adafactor": lambda: text("T5ForConditionalGeneration", "Adafactor", d_model=256, num_layers=2,
                                  num_heads=4, d_ff=1024, decoder_start_token_id=0),
    "MaxViT-T, SGD": lambda: vision("maxvit_t", 224, "SGD", 2, lr=0.1),
    "RegNet, Adagrad": lambda: vision("regnet_y_400mf", 96, "Adagrad"),
    "OPT, AdamW": lambda: text("OPTForCausalLM", num_hidden_layers=3, hidden_size=256, ffn_dim=1024,
                               num_attention_heads=4, word_embed_proj_dim=256),
    "RoBERTa, Adadelta": lambda: text("RobertaForMaskedLM", "Adadelta", **BERT),
    "ShuffleNetV2, Adam": lambda: vision("shufflenet_v2_x1_0", 128, "Adam", 16),
    "DeepLabV3, SGD": segmentation,
    "ResNeXt-50, channels last, autocast, SGD": resnext,
    "DCGAN's generator, Adam": generator,
    "CRNN, Adadelta": text_recognition,
}  # fmt: skip
SEEN = list(JOBS)[:20]


def train(name: str, device: str, on_built: Callable[[], object] = lambda: None) -> None:
    import torch

    torch.manual_seed(0)
    model, batch, loss, optimizer_name, options = JOBS[name]()
    model.to(device).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = getattr(torch.optim, optimizer_name)(trained, **options)
    on_built()
    for _ in range(3):
        x = batch().to(device)
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()


def record(name: str, path: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True)
    train(name, "cpu", profiler.start)
    profiler.stop()
    profiler.export_chrome_trace(path)


def peak(*command: str, folder: Path) -> dict[str, int]:
    target = folder / "estimate.json"
    target.unlink(missing_ok=True)
    options = [sys.executable, "-m", "foretell", command[0], "--json", str(target), *command[1:]]
    done = subprocess.run(options, capture_output=True, text=True, check=False)
    assert target.exists(), done.stderr
    found: dict[str, int] = json.loads(target.read_text())["peak"]
    return found


def compare(name: str, gpu: str, folder: Path) -> str:
    profile = str(folder / "profile.json")
    subprocess.run([sys.executable, __file__, "--record", profile, name], check=True, capture_output=True)
    imported = peak("import", "--gpu", gpu, "--torch", version("torch"), profile, folder=folder)
    real = peak("run", "--gpu", gpu, "--steps", "all", __file__, "--train", name, folder=folder)
    cells = [name, "yes" if name in SEEN else "no"]
    for key in ("allocated_bytes", "reserved_bytes"):
        cells += [f"{real[key] / 2**20:,.1f}", f"{imported[key] / real[key] - 1:+.1%}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB")
    parser.add_argument("--gpu", default="rtx-3060")
    parser.add_argument("--record", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record or options.train:
        (name,) = options.jobs
        record(name, options.record) if options.record else train(name, "cuda")
        return
    print("| job | seen | allocated, MiB | import | reserved, MiB | import |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.jobs or JOBS:
            print(compare(name, options.gpu, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
