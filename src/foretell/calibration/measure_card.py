"""Measures a card and writes the results as JSON. A script that runs on the card, started by its path; standard library
and torch only.

Memory outside PyTorch is what NVML shows as used, less the amount before and PyTorch's reserved memory; a library's own
memory is the increase at its first use. A convolution's workspace is the memory that PyTorch's allocator handed out for
the call and got back at its end.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

PROBE = 1024
# Channels in and out, filter size, stride, groups, image size: from ResNet, VGG, MobileNet, EfficientNet, ConvNeXt,
# U-Net. At two batch sizes each.
CONVOLUTIONS = [
    (3, 64, 7, 2, 1, 224), (3, 32, 3, 2, 1, 224), (3, 64, 3, 1, 1, 224), (3, 96, 4, 4, 1, 224),
    (64, 64, 3, 1, 1, 224), (64, 128, 3, 1, 1, 112), (128, 128, 3, 1, 1, 112), (128, 256, 3, 1, 1, 56),
    (256, 256, 3, 1, 1, 56), (256, 512, 3, 1, 1, 28), (512, 512, 3, 1, 1, 28), (512, 512, 3, 1, 1, 14),
    (64, 64, 1, 1, 1, 56), (64, 64, 3, 1, 1, 56), (64, 256, 1, 1, 1, 56), (256, 64, 1, 1, 1, 56),
    (256, 128, 1, 1, 1, 56), (128, 128, 3, 2, 1, 56), (128, 128, 3, 1, 1, 28), (128, 512, 1, 1, 1, 28),
    (512, 128, 1, 1, 1, 28), (256, 512, 1, 2, 1, 56), (256, 256, 3, 1, 1, 14), (256, 1024, 1, 1, 1, 14),
    (1024, 256, 1, 1, 1, 14), (512, 1024, 1, 2, 1, 28), (512, 512, 3, 1, 1, 7), (512, 2048, 1, 1, 1, 7),
    (2048, 512, 1, 1, 1, 7), (1024, 2048, 1, 2, 1, 14), (32, 16, 1, 1, 1, 112), (16, 96, 1, 1, 1, 112),
    (24, 144, 1, 1, 1, 56), (144, 24, 1, 1, 1, 56), (32, 192, 1, 1, 1, 28), (192, 32, 1, 1, 1, 28),
    (96, 192, 2, 2, 1, 56), (192, 384, 2, 2, 1, 28), (384, 768, 2, 2, 1, 14), (32, 32, 3, 1, 1, 64),
    (64, 128, 3, 2, 1, 64), (256, 256, 3, 1, 32, 56), (128, 128, 3, 1, 32, 56),
]  # fmt: skip
BATCH_SIZES = (8, 32)


class Nvml:
    """Memory use from NVML. Cards are keyed by UUID: NVML lists all cards, in another order than CUDA."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._check(self._library.nvmlInit_v2())
        count = ctypes.c_uint()
        self._check(self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        self._handles: dict[str, ctypes.c_void_p] = {}
        for index in range(count.value):
            handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            self._check(self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
            self._check(self._library.nvmlDeviceGetUUID(handle, uuid, len(uuid)))
            self._handles[uuid.value.decode()] = handle

    def used_bytes(self) -> dict[str, int]:
        """Used memory of every card."""
        memory = (ctypes.c_ulonglong * 3)()
        found = {}
        for uuid, handle in self._handles.items():
            self._check(self._library.nvmlDeviceGetMemoryInfo(handle, memory))
            found[uuid] = int(memory[2])
        return found

    def _check(self, status: int) -> None:
        if status:
            raise SystemExit(f"NVML failed with status {status}")

    def driver_version(self) -> str:
        text = ctypes.create_string_buffer(96)
        self._library.nvmlSystemGetDriverVersion(text, len(text))
        return text.value.decode()


def main() -> None:
    device, target = int(sys.argv[1]), sys.argv[2]
    nvml = Nvml()
    before = nvml.used_bytes()
    torch.cuda.set_device(device)
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    if uuid not in before:
        raise SystemExit(f"NVML lists {sorted(before)}, but not CUDA device {device}, {uuid}")
    kept = torch.zeros(1, device="cuda")

    def beside_pytorch() -> int:
        torch.cuda.synchronize()
        return nvml.used_bytes()[uuid] - before[uuid] - int(torch.cuda.memory_reserved())

    context = beside_pytorch()
    multiply()
    with_cublas = beside_pytorch()
    image = torch.randn(8, 64, 56, 56, device="cuda", requires_grad=True)
    convolve(image)
    with_cudnn = beside_pytorch()
    F.batch_norm(
        image, None, None, torch.ones(64, device="cuda"), torch.zeros(64, device="cuda"), True
    ).sum().backward()
    with_batch_norm = beside_pytorch()
    del image, kept
    properties = torch.cuda.get_device_properties(device)
    found = {
        "device_name": properties.name,
        "total_bytes": properties.total_memory,
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "cudnn_version": torch.backends.cudnn.version(),
        "driver_version": nvml.driver_version(),
        "context_bytes": context,
        "libraries": {
            "cublas": with_cublas - context,
            "cudnn": with_cudnn - with_cublas,
            "nccl": 0,
            "cudnn_batch_norm": with_batch_norm - with_cudnn,
        },
        "convolutions": [
            found for shape in CONVOLUTIONS for batch in BATCH_SIZES for found in workspaces(batch, *shape)
        ],
    }
    with open(target, "w") as file:
        json.dump(found, file)


def multiply() -> None:
    """Multiply in both directions, and in the thread of the backward pass, which has its own handle."""
    a = torch.randn(PROBE, PROBE, device="cuda", requires_grad=True)
    F.linear(a, a, a[0]).sum().backward()


def convolve(image: torch.Tensor) -> None:
    weight = torch.randn(64, 64, 3, 3, device="cuda", requires_grad=True)
    F.conv2d(image, weight, padding=1).sum().backward()


def workspaces(
    batch: int, channels: int, out: int, filter_size: int, stride: int, groups: int, size: int
) -> list[dict[str, Any]]:
    padding = filter_size // 2 if filter_size % 2 else 0
    x = torch.randn(batch, channels, size, size, device="cuda")
    w = torch.randn(out, channels // groups, filter_size, filter_size, device="cuda")
    y = F.conv2d(x, w, None, stride, padding, 1, groups)
    shapes = {"x": list(x.shape), "y": list(y.shape), "w": list(w.shape), "element_bytes": x.element_size()}

    def backward(*wanted: bool) -> object:
        return torch.ops.aten.convolution_backward(
            y, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, [*wanted, False]
        )

    calls = {
        "forward": lambda: F.conv2d(x, w, None, stride, padding, 1, groups),
        "data": lambda: backward(True, False),
        "weights": lambda: backward(False, True),
    }
    return [{"direction": name, **shapes, "workspace_bytes": workspace(call)} for name, call in calls.items()]


def workspace(call: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    result = call()
    taken_back = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del result
    return int(taken_back)


if __name__ == "__main__":
    main()
