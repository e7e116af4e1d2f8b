"""What the installed cuDNN asks for to compute the convolutions of common nets: the table behind convolution_plans.py.

    python benchmarks/convolution_workspaces.py FILE.csv [--gpu NAME ...] [--layers N] [--rows N] [--seed N]

Runs each direction of each layer once on the virtual GPU of each card and writes what cuDNN planned. A convolution of
one element stands between any two, so that a call torch computes without cuDNN (depthwise, mostly) leaves a gap
instead of shifting the rest. Torch has to be one with cuDNN 9.8 or newer: older ones cannot be asked without a device.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GPUS = ("t4", "a100-40gb", "rtx-3060", "rtx-4090", "h100-sxm", "b200", "rtx-5090")
DIRECTIONS = ("forward", "data", "weights")  # in the order in which they are run
DTYPES = ("float32", "float16")  # bfloat16 got what float16 did in 19 of 20 cases
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CHANNELS = (
    (1, 6), (1, 32), (3, 16), (6, 16), (10, 20), (16, 32), (24, 24), (32, 64), (33, 65), (40, 80), (48, 96), (72, 72),
    (100, 50), (96, 192), (128, 128), (160, 320), (192, 384), (256, 256), (384, 384), (512, 512),
)  # fmt: skip
AUDIO = (  # length, channels, filter
    (16000, 1, 64, 80), (16000, 1, 512, 10), (3200, 512, 512, 3), (1600, 512, 512, 2), (3000, 80, 384, 3),
    (3000, 384, 384, 3), (800, 128, 256, 5), (400, 256, 256, 7), (4000, 64, 64, 3),
)  # fmt: skip
MAX_BYTES = 1 << 30  # of x, y and w together: far from the limit of every card, where torch would take another plan
FIELDS = ("gpu", "direction", "dtype", "format", "x", "y", "w", "stride", "padding", "dilation", "groups", "workspace")

Layer = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gpu", nargs="+", default=GPUS)
    parser.add_argument("--layers", type=int, default=100_000, help="a random sample of this size")
    parser.add_argument("--rows", type=int, default=100_000, help="a random sample of this size per GPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        convolve(json.loads(arguments.file.read_text()))
    else:
        collect(arguments)


def collect(arguments: argparse.Namespace) -> None:
    draw = random.Random(arguments.seed)
    layers = chosen(arguments.layers, draw)
    with arguments.file.open("w", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        for gpu in arguments.gpu:
            rows = list(asked(layers, gpu))
            table.writerows(draw.sample(rows, min(arguments.rows, len(rows))))


def chosen(num_layers: int, draw: random.Random) -> list[Layer]:
    """Each layer with two batch sizes."""
    layers = sorted({json.dumps(layer): layer for layer in (*torchvision_layers(), *other_layers())}.items())
    sized = [layer | {"x": [batch, *layer["x"][1:]]} for _, layer in layers for batch in draw.sample(BATCHES, 2)]
    fitting = [layer for layer in sized if 4 * sum(map(size, (layer["x"], output(layer), layer["w"]))) <= MAX_BYTES]
    return draw.sample(fitting, min(num_layers, len(fitting)))


def torchvision_layers() -> Iterator[Layer]:
    import torch
    import torchvision

    nets = {
        "resnet18": (32, 64, 224), "resnet50": (64, 224, 320), "resnext50_32x4d": (224,), "vgg16": (32, 64, 224),
        "mobilenet_v2": (96, 224), "mobilenet_v3_large": (224,), "efficientnet_b0": (224,), "efficientnet_b3": (300,),
        "convnext_tiny": (64, 224), "convnext_base": (224,), "densenet121": (32, 224), "inception_v3": (299,),
        "googlenet": (224,), "shufflenet_v2_x1_0": (224,), "wide_resnet50_2": (224,), "squeezenet1_1": (224,),
        "alexnet": (224,), "vit_b_16": (224,),
    }  # fmt: skip
    found: list[Layer] = []

    def note(module: Any, inputs: tuple[Any, ...], _: Any) -> None:
        found.append(
            {"x": [1, *inputs[0].shape[1:]], "w": [*module.weight.shape], "stride": [*module.stride],
             "padding": [*module.padding], "dilation": [*module.dilation], "groups": module.groups}
        )  # fmt: skip

    with torch.device("meta"):
        for name, sides in nets.items():
            options = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
            for side in sides:
                net = torchvision.models.get_model(name, weights=None, **options)
                for module in net.modules():
                    if isinstance(module, torch.nn.Conv2d):
                        module.register_forward_hook(note)
                net(torch.empty(2, 3, side, side))
        net = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None)
        for module in net.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_hook(note)
        net(torch.empty(2, 3, 256, 256))
    yield from found


def layer(
    c: int, k: int, image: tuple[int, ...], filter: tuple[int, ...], *, stride: int = 1, groups: int = 1
) -> Layer:
    padding = [0 if filter == (2, 2) else side // 2 for side in filter]
    return {"x": [1, c, *image], "w": [k, c // groups, *filter], "stride": [min(stride, side) for side in image],
            "padding": padding, "dilation": [1] * len(filter), "groups": groups}  # fmt: skip


def other_layers() -> Iterator[Layer]:
    """U-Net, GANs (their transposed convolutions are data gradients here), audio in 1-D, small nets, video."""
    for side, c in ((256, 32), (128, 64), (64, 128), (32, 256), (16, 512), (572, 64), (286, 128)):
        yield layer(c, c, (side, side), (3, 3))
        yield layer(2 * c, c, (side, side), (3, 3))
        yield layer(c, 2 * c, (side, side), (2, 2), stride=2)
        yield layer(c, 2 * c, (side, side), (3, 3), stride=2)
        yield layer(c, 1, (side, side), (1, 1))
        yield layer(c, 3, (side, side), (3, 3))
        yield layer(3, c, (side, side), (3, 3))
    for side, c, k in (
        (64, 3, 64),
        (32, 64, 128),
        (16, 128, 256),
        (8, 256, 512),
        (4, 512, 1024),
        (28, 1, 64),
        (14, 64, 128),
    ):
        yield layer(c, k, (side, side), (4, 4), stride=2) | {"padding": [1, 1]}
        yield layer(c, k, (side, side), (5, 5), stride=2)
    for length, c, k, width in AUDIO:
        for stride in (1, 2):
            yield layer(c, k, (1, length), (1, width), stride=stride)
    for side in (7, 12, 14, 20, 28, 32, 40, 56, 64, 100, 128):
        for c, k in CHANNELS:
            for filter in ((3, 3), (5, 5)):
                yield layer(c, k, (side, side), filter)
            yield layer(c, k, (side, side), (1, 1))
    for side in (14, 28, 56, 112):
        for c in (32, 96, 192, 384, 512):
            for filter in (3, 5, 7):
                yield layer(c, c, (side, side), (filter, filter), groups=c)
            yield layer(c, c, (side, side), (3, 3), groups=c, stride=2)
    for side, c, k in ((112, 3, 64), (56, 64, 64), (28, 64, 128), (14, 128, 256), (7, 256, 512)):
        yield layer(c, k, (16, side, side), (3, 3, 3))
        yield layer(c, k, (8, side, side), (1, 3, 3))


def size(shape: list[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def output(layer: Layer) -> list[int]:
    sides = zip(layer["x"][2:], layer["w"][2:], layer["stride"], layer["padding"], layer["dilation"], strict=True)
    return [layer["x"][0], layer["w"][0], *((x + 2 * p - d * (w - 1) - 1) // s + 1 for x, w, s, p, d in sides)]


def asked(layers: list[Layer], gpu: str) -> Iterator[dict[str, Any]]:
    from foretell import trace
    from foretell.protocol import native_log

    with tempfile.TemporaryDirectory() as folder:
        case, saved = Path(folder) / "layers.json", Path(folder) / "trace"
        case.write_text(json.dumps(layers))
        command = ["-m", "foretell", "run", "--gpu", gpu, "--trace", str(saved), __file__, "--inside", str(case)]
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        told = trace.load(saved)
    calls = told.convolutions
    groups: list[list[int]] = []
    for i, sizes in enumerate(zip(calls.x_bytes, calls.y_bytes, calls.w_bytes, strict=True)):
        if sizes == (4, 4, 4):
            groups.append([])
        else:
            groups[-1].append(i)
    wanted = list(runs(layers))
    assert len(groups) == len(wanted), (len(groups), len(wanted))
    for rows, (layer, dtype, memory_format, direction) in zip(groups, wanted, strict=True):
        element = 4 if dtype == "float32" else 2
        shapes = layer["x"], output(layer), layer["w"]
        if len(rows) != 1:
            continue
        found = [column[rows[0]] for column in (calls.x_bytes, calls.y_bytes, calls.w_bytes)]
        assert native_log.DIRECTIONS[calls.direction[rows[0]]] == direction, (layer, direction)
        assert found == [element * size(shape) for shape in shapes], (layer, found)
        texts = {name: "x".join(map(str, value)) for name, value in zip("xyw", shapes, strict=True)}
        texts |= {name: "x".join(map(str, layer[name])) for name in ("stride", "padding", "dilation")}
        case = {"gpu": gpu, "direction": direction, "dtype": dtype, "format": memory_format, "groups": layer["groups"]}
        yield case | texts | {"workspace": calls.workspace_bytes[rows[0]]}


def runs(layers: list[Layer]) -> Iterator[tuple[Layer, str, str, str]]:
    for layer in layers:
        for dtype in DTYPES:
            for memory_format in ("contiguous", "channels_last"):
                for direction in DIRECTIONS:
                    yield layer, dtype, memory_format, direction


def convolve(layers: list[Layer]) -> None:
    """Under `foretell run`."""
    import torch

    one = torch.empty(1, 1, 1, 1, device="cuda")
    for layer, dtype, memory_format, direction in runs(layers):
        torch.nn.functional.conv2d(one, one)
        is_volume = len(layer["x"]) == 5
        strides = {
            "contiguous": torch.contiguous_format,
            "channels_last": torch.channels_last_3d if is_volume else torch.channels_last,
        }
        x, y, w = (
            torch.empty(shape, device="cuda", dtype=getattr(torch, dtype), memory_format=strides[memory_format])
            for shape in (layer["x"], output(layer), layer["w"])
        )
        where = layer["stride"], layer["padding"], layer["dilation"]
        if direction == "forward":
            torch.ops.aten.convolution(x, w, None, *where, False, [0] * len(where[0]), layer["groups"])
        else:
            mask = [direction == "data", direction == "weights", False]
            torch.ops.aten.convolution_backward(
                y, x, w, None, *where, False, [0] * len(where[0]), layer["groups"], mask
            )


if __name__ == "__main__":
    main()
