"""Queries an installed cuDNN for its plans for a convolution on an absent card, and the workspace of each.

From 9.8 on, cuDNN plans for a card described in JSON; under a CUDA build of torch native/libraries/cudnn.c uses that,
too. A layer takes PyTorch's path through the backend API (ATen/native/cudnn/Conv_v8.cpp of 2.6 to 2.15, and the
builders of cudnn-frontend): operation graph, heuristics, the configurations that torch's flags allow, a plan of each.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...protocol.native_log import CUDNN_DATA_TYPES
from ...rules.convolution import Convolution

OLDEST = 90800
"""The first version that plans without a card."""
_NAMES = ("libcudnn.so.9", "cudnn64_9.dll")
_PARTS = ("lib", "bin")
"""Subfolders of nvidia/cudnn with the library, in the packages nvidia-cudnn-cu12 and nvidia-cudnn-cu13."""

# From cudnn_graph_v9.h: descriptor types,
_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN, _GRAPH, _TENSOR, _DEVICE = 1, 2, 3, 4, 5, 15, 17, 38
_OPERATION = {"forward": 10, "weights": 11, "data": 12}
# attribute types,
_DATA_TYPE, _INT64, _FLOAT, _CONVOLUTION_MODE, _HEURISTICS_MODE, _NOTE, _DESCRIPTOR, _CHAR = 1, 3, 4, 7, 8, 11, 15, 24
_BEHAVIOR_NOTE = 19
# attributes,
_COMPUTE_TYPE, _MODE, _DILATIONS, _STRIDES, _POST_PADDINGS, _PRE_PADDINGS, _NUM_DIMENSIONS = range(100, 107)
_HEURISTICS_MODE_IS, _HEURISTICS_GRAPH, _HEURISTICS_RESULTS, _HEURISTICS_DEVICE = 200, 201, 202, 204
_CONFIG_ENGINE, _CONFIG_WORKSPACE, _PLAN_CONFIG, _PLAN_WORKSPACE, _PLAN_DEVICE = 300, 303, 401, 402, 407
_GRAPH_OPERATIONS = 801
_TENSOR_ALIGNMENT, _TENSOR_TYPE, _TENSOR_SIZES, _TENSOR_STRIDES, _TENSOR_ID = 900, 901, 902, 903, 906
_ENGINE_NOTES, _ENGINE_BEHAVIOR, _DEVICE_JSON = 1303, 1305, 2702
_FIRST_OF_OPERATION = {"forward": 700, "data": 706, "weights": 712}
"""Alpha; then beta, the convolution, w, x and y."""
# and values.
_CROSS_CORRELATION = 1
_TENSOR_CORES, _ROUNDED_INPUTS, _NOT_DETERMINISTIC, _NUM_NOTES = 0, 1, 4, 16
_RUNTIME_COMPILATION = 0
_INSTANT, _MODE_B, _FALLBACK = 0, 1, 2


class Placement(NamedTuple):
    """How a tensor lies in memory."""

    strides: tuple[int, ...]
    alignment: int
    """Alignment of the first byte, at most 32."""


class Layer(NamedTuple):
    """A convolution as torch hands it to cuDNN."""

    convolution: Convolution
    dtype: str
    x: Placement
    y: Placement
    w: Placement
    is_deterministic: bool
    allows_tf32: bool


class CudnnError(RuntimeError):
    """The error torch raises."""


def library_of(torch: Any) -> str | None:
    """Path of the cuDNN that a CUDA build of torch has loaded, else that of an installed package. Not the system's: the
    job might not run with it."""
    if torch.version.cuda:
        return _NAMES[0] if os.name == "posix" else _NAMES[1]
    for folder in sys.path:
        packages = os.path.join(folder, "nvidia")
        for part, name in zip(_PARTS, _NAMES, strict=True):
            path = os.path.join(packages, "cudnn", part, name)
            if os.path.isfile(path) and glob.glob(os.path.join(packages, "*", part, "*cublasLt*")):
                return path  # without cuBLAS, a dependency of its package, it aborts the process
    return None


def is_driver_preloaded() -> bool:
    """Whether foretell's own driver (virtual/native) is loaded: with it cuDNN finds a driver on a machine without
    one."""
    return hasattr(ctypes.CDLL(None), "foretell_on_let_go")


class Cudnn:
    def __init__(self, path: str, card: dict[str, Any]) -> None:
        real = library = ctypes.CDLL(path)
        real.cudnnGetVersion.restype = real.cudnnGetCudartVersion.restype = ctypes.c_size_t
        self.version = int(real.cudnnGetVersion())
        if self.version < OLDEST:
            raise CudnnError(f"version {self.version}")
        pointer, number, count = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        if is_driver_preloaded():
            # The driver's functions of the same names come first, also for cuDNN's internal calls; they forward ours.
            library = ctypes.CDLL(None)
        self._is_ordered_by_driver = library is not real
        self._create = _typed(library.cudnnBackendCreateDescriptor, number, pointer)
        self._destroy = _typed(library.cudnnBackendDestroyDescriptor, pointer)
        self._finalize = _typed(library.cudnnBackendFinalize, pointer)
        self._set = _typed(library.cudnnBackendSetAttribute, pointer, number, number, count, pointer)
        self._get = _typed(library.cudnnBackendGetAttribute, pointer, number, number, count, pointer, pointer)
        self._wanted = card.get("workspaces", "asked")
        text = json.dumps(_described(card, int(real.cudnnGetCudartVersion()))).encode()
        self._device = _Descriptor(self, _DEVICE)
        self._device.set(_DEVICE_JSON, _CHAR, (ctypes.c_char * len(text)).from_buffer_copy(text))
        self._device.finalize()
        if not self._device.get(_DEVICE_JSON, _CHAR, None):
            raise CudnnError("the description of the card was not taken")  # then the driver answers by rule

    def plans(self, layer: Layer, *, is_benchmarked: bool) -> Iterator[int]:
        """Workspace of each plan, in the order torch tries them; plans are made on demand."""
        graph = self._graph(layer)
        wants_mode_b = os.environ.get("TORCH_CUDNN_USE_HEURISTIC_MODE_B") == "1" and not is_benchmarked
        for mode in (_MODE_B if wants_mode_b else _INSTANT, _FALLBACK):
            for config in self._configs(graph, mode):
                engine = self._engine(config)
                if not engine.notes(_ENGINE_NOTES, _NOTE) & _forbidden(layer):
                    size = self._workspace(config, engine)
                    if size is not None:
                        yield size

    def _graph(self, layer: Layer) -> _Descriptor:
        asked = layer.convolution
        convolution = _Descriptor(self, _CONVOLUTION)
        # Half precision accumulates in single.
        compute_type = layer.dtype if layer.dtype == "float64" else "float32"
        convolution.set(_COMPUTE_TYPE, _DATA_TYPE, _numbers(CUDNN_DATA_TYPES[compute_type], kind=ctypes.c_int))
        convolution.set(_MODE, _CONVOLUTION_MODE, _numbers(_CROSS_CORRELATION, kind=ctypes.c_int))
        convolution.set(_NUM_DIMENSIONS, _INT64, _numbers(len(asked.stride)))
        for attribute, values in (
            (_PRE_PADDINGS, asked.padding),
            (_POST_PADDINGS, asked.padding),
            (_DILATIONS, asked.dilation),
            (_STRIDES, asked.stride),
        ):
            convolution.set(attribute, _INT64, _numbers(*values))
        convolution.finalize()
        operation = _Descriptor(self, _OPERATION[asked.direction])
        alpha = _FIRST_OF_OPERATION[asked.direction]
        operation.set(alpha, _FLOAT, _numbers(1.0, kind=ctypes.c_float))
        operation.set(alpha + 1, _FLOAT, _numbers(0.0, kind=ctypes.c_float))
        operation.set_descriptors(alpha + 2, convolution)
        tensors = ((asked.w, layer.w), (asked.x, layer.x), (asked.y, layer.y))
        for number, (name, (sizes, placement)) in enumerate(zip("wxy", tensors, strict=True)):
            operation.set_descriptors(alpha + 3 + number, self._tensor(sizes, placement, name, layer.dtype))
        operation.finalize()
        graph = _Descriptor(self, _GRAPH)
        graph.set_descriptors(_GRAPH_OPERATIONS, operation)
        graph.finalize()
        return graph

    def _tensor(self, sizes: tuple[int, ...], placement: Placement, name: str, dtype: str) -> _Descriptor:
        tensor = _Descriptor(self, _TENSOR)
        tensor.set(_TENSOR_TYPE, _DATA_TYPE, _numbers(CUDNN_DATA_TYPES[dtype], kind=ctypes.c_int))
        tensor.set(_TENSOR_SIZES, _INT64, _numbers(*sizes))
        tensor.set(_TENSOR_STRIDES, _INT64, _numbers(*placement.strides))
        tensor.set(_TENSOR_ID, _INT64, _numbers(ord(name)))
        tensor.set(_TENSOR_ALIGNMENT, _INT64, _numbers(placement.alignment))
        tensor.finalize()
        return tensor

    def _configs(self, graph: _Descriptor, mode: int) -> list[_Descriptor]:
        heuristics = _Descriptor(self, _HEURISTICS)
        heuristics.set_descriptors(_HEURISTICS_GRAPH, graph)
        heuristics.set(_HEURISTICS_MODE_IS, _HEURISTICS_MODE, _numbers(mode, kind=ctypes.c_int))
        heuristics.set_descriptors(_HEURISTICS_DEVICE, self._device)
        heuristics.finalize()
        configs = [_Descriptor(self, _CONFIG) for _ in range(heuristics.get(_HEURISTICS_RESULTS, _DESCRIPTOR, None))]
        if not configs:
            return []
        return self._ordered(configs[: heuristics.get(_HEURISTICS_RESULTS, _DESCRIPTOR, _addresses(*configs))])

    def _ordered(self, configs: list[_Descriptor]) -> list[_Descriptor]:
        """order_configs of native/libraries/cudnn.c, which does it where the driver is preloaded."""
        if self._wanted == "asked" or self._is_ordered_by_driver:
            return configs
        sizes = {id(config): config.number(_CONFIG_WORKSPACE) for config in configs}
        if self._wanted == "none":
            return sorted(configs, key=lambda config: sizes[id(config)])
        first = sizes[id(configs[0])]
        return sorted(configs, key=lambda config: abs(sizes[id(config)] - first) <= max(512, first // 20))

    def _engine(self, config: _Descriptor) -> _Descriptor:
        engine = _Descriptor(self, _ENGINE)
        config.get(_CONFIG_ENGINE, _DESCRIPTOR, _addresses(engine))
        return engine

    def _workspace(self, config: _Descriptor, engine: _Descriptor) -> int | None:
        """None if the plan the heuristics suggest cannot be built."""
        try:
            if _RUNTIME_COMPILATION in engine.notes(_ENGINE_BEHAVIOR, _BEHAVIOR_NOTE):
                # Building would compile the kernel; native/libraries/cudnn.c says how the two sizes compare.
                return config.number(_CONFIG_WORKSPACE)
            return self._plan(config).number(_PLAN_WORKSPACE)
        except CudnnError:
            return None

    def _plan(self, config: _Descriptor) -> _Descriptor:
        plan = _Descriptor(self, _PLAN)
        plan.set_descriptors(_PLAN_CONFIG, config)
        plan.set_descriptors(_PLAN_DEVICE, self._device)
        plan.finalize()
        return plan


class _Descriptor:
    """A cuDNN descriptor, destroyed with this object; those it was made from may be destroyed earlier."""

    def __init__(self, cudnn: Any, kind: int) -> None:
        self._cudnn = cudnn
        self.address = ctypes.c_void_p()
        _check(cudnn._create(kind, ctypes.byref(self.address)))

    def __del__(self) -> None:
        if self.address:
            self._cudnn._destroy(self.address)

    def set(self, attribute: int, kind: int, values: Any) -> None:
        _check(self._cudnn._set(self.address, attribute, kind, len(values), values))

    def set_descriptors(self, attribute: int, *descriptors: _Descriptor) -> None:
        self.set(attribute, _DESCRIPTOR, _addresses(*descriptors))

    def get(self, attribute: int, kind: int, values: Any) -> int:
        """Read an attribute into `values`, as many as fit, and return how many there are."""
        count = ctypes.c_int64()
        room = 0 if values is None else len(values)
        _check(self._cudnn._get(self.address, attribute, kind, room, ctypes.byref(count), values))
        return count.value

    def number(self, attribute: int) -> int:
        value = _numbers(0)
        self.get(attribute, _INT64, value)
        return int(value[0])

    def notes(self, attribute: int, kind: int) -> frozenset[int]:
        """The properties of an engine: numerical ones, or of its behavior."""
        notes = (ctypes.c_int * _NUM_NOTES)()
        return frozenset(notes[: self.get(attribute, kind, notes)])

    def finalize(self) -> None:
        _check(self._cudnn._finalize(self.address))


def _forbidden(layer: Layer) -> set[int]:
    """filterEngineConfigs of Conv_v8.cpp."""
    notes = {_ROUNDED_INPUTS}
    if layer.is_deterministic:
        notes.add(_NOT_DETERMINISTIC)
    if layer.dtype == "float32" and not layer.allows_tf32:
        notes.add(_TENSOR_CORES)
    return notes


def _described(card: dict[str, Any], driver: int) -> dict[str, Any]:
    """The card in cuDNN's terms, as native/libraries/cudnn.c describes it."""
    number = {name: int(value) for name, value in card.items() if str(value).isdigit()}
    return {
        "cudaDeviceId": 0,
        "deviceVer": 100 * number["major"] + 10 * number["minor"],
        "driverVer": driver,
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": number["sms"],
        "smCountOrigin": 0,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": number["shared_per_block"],
        "maxSharedMemoryPerBlockOptin": number["shared_per_block_optin"],
        "reservedSharedMemoryPerBlock": 1024 if number["major"] >= 8 else 0,
        "oversizedSharedMemoryPerBlock": 0,
        "maxRegistersPerSM": number["registers_per_sm"],
        "maxCtasPerSM": number["blocks_per_sm"],
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": number["threads_per_sm"],
        "pciDeviceId": number["pci_device_id"],
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": number["total"],
        "smClockRateKHz": number["clock_khz"],
        "memClockRateKHz": number["memory_clock_khz"],
        "memoryBusWidth": number["bus_bits"],
        "l2CacheSize": number["l2"],
        "deviceName": card["name"],
    }


def _typed(function: Any, *types: Any) -> Any:
    function.argtypes = types
    return function


def _numbers(*values: Any, kind: Any = ctypes.c_int64) -> Any:
    return (kind * len(values))(*values)


def _addresses(*descriptors: _Descriptor) -> Any:
    return (ctypes.c_void_p * len(descriptors))(*[each.address.value for each in descriptors])


def _check(status: int) -> None:
    if status:
        raise CudnnError(f"cuDNN error: status {status}")
