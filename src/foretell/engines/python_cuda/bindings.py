"""`torch._C._cuda_*`, the bindings under torch.cuda. With these replaced, torch.cuda works unchanged."""

from __future__ import annotations

import contextlib
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ...inside.watch.allocator import settings_of_environment
from . import streams
from .memory import Memory
from .shapes import refuse_other_card


class DeviceProperties(SimpleNamespace):
    """Stands for `torch._C._CudaDeviceProperties`, whose `name` and `total_memory` are properties of the class, too."""

    name = property(lambda self: self._name)
    total_memory = property(lambda self: self._total_memory)


class Bindings:
    def __init__(self, torch: Any, memory: Memory, card: dict[str, Any], capture: Any) -> None:
        self._torch = torch
        self._memory = memory
        self._card = card
        self._capture = capture
        self._fraction = 1.0
        self.when_cuda_starts: list[Any] = []
        self._generator = torch._C.Generator("cpu")

    def install(self) -> None:
        torch, replace = self._torch, self._capture.patches.replace
        self._watch_the_real_allocator(torch)
        for name, function in self._functions().items():
            replace(torch._C, name, function)
        replace(torch._C, "_CudaDeviceProperties", DeviceProperties)
        replace(torch._C, "_has_cuda", True)
        cuda = torch.cuda
        replace(cuda, "_cudart", SimpleNamespace(cudaMemGetInfo=lambda device: self._mem_get_info()))
        replace(cuda, "_exchange_device", torch._C._cuda_exchangeDevice)
        replace(cuda, "_maybe_exchange_device", torch._C._cuda_maybeExchangeDevice)
        replace(cuda, "_get_device_properties", self._properties)
        self._put_streams(cuda)
        self._put_generators(torch)
        self._put((cuda, cuda.memory), "mem_get_info", self._mem_get_info)
        replace(cuda, "device_count", lambda: int(self._card["count"]))
        replace(torch.backends.cuda, "is_built", lambda: True)
        replace(torch.backends.cudnn, "is_available", lambda: True)
        replace(torch.backends.cudnn, "is_acceptable", lambda tensor: True)
        replace(torch.backends.cudnn, "version", lambda: int(self._card["cudnn_version"]))
        modes = SimpleNamespace(rnn_relu=0, rnn_tanh=1, lstm=2, gru=3)
        get_mode = import_module("torch.backends.cudnn.rnn").get_cudnn_mode  # the module hides its own names
        get_mode.__globals__["_cudnn"] = SimpleNamespace(RNNMode=modes)
        for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
            replace(cuda.nvtx, name, lambda *args, **kwargs: 0)
        for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate"):
            replace(cuda, name, lambda *args: 0)
        self._put_graphs(cuda)
        self._put_accelerator(torch)
        self._put_storages(torch)
        # All host memory is the same here: pinning makes no difference to the card.
        replace(torch.Tensor, "is_pinned", lambda tensor, *args: False)
        record_stream = self._memory.record_stream
        replace(torch.Tensor, "record_stream", lambda tensor, stream: record_stream(tensor, stream.stream_id))

    def _put(self, modules: tuple[Any, ...], name: str, replacement: Any) -> None:
        """Replace a name in every module that has it."""
        for module in modules:
            self._capture.patches.replace(module, name, replacement)

    def _watch_the_real_allocator(self, torch: Any) -> None:
        """A CUDA build of torch also has the real allocator, which only operators not replaced here use."""
        if not torch.version.cuda:
            return
        initialise, count, statistics = torch._C._cuda_init, torch._C._cuda_getDeviceCount, torch._C._cuda_memoryStats
        if not count():
            return
        initialise()

        def tell() -> None:
            num_bytes = statistics(0)["allocated_bytes"]["all"]["peak"]
            if num_bytes:
                self._capture.caveat(
                    f"operators unknown to the CPU engine allocated up to {num_bytes} bytes, which are not counted"
                )

        self._capture.before_end.append(tell)

    # ---- torch._C ----------------------------------------------------------------------------------------------------

    def _functions(self) -> dict[str, Any]:
        memory, allocator = self._memory, self._memory.allocator

        def nothing(*args: Any, **kwargs: Any) -> None:
            return None

        def exchange(device: int) -> int:
            refuse_other_card(device)
            return 0 if device >= 0 else -1

        def set_stream(stream_id: int, device_index: int = 0, device_type: int = 1) -> None:
            memory.where.stream = stream_id

        return {
            "_cuda_init": self._init,
            "_cuda_getDeviceCount": lambda: int(self._card["count"]),
            "_cuda_getDevice": lambda: 0,
            "_cuda_setDevice": refuse_other_card,
            "_cuda_exchangeDevice": exchange,
            "_cuda_maybeExchangeDevice": exchange,
            "_cuda_canDeviceAccessPeer": lambda *devices: True,
            "_cuda_synchronize": allocator.synchronize,
            "_cuda_ipc_collect": nothing,
            "_cuda_sleep": nothing,
            "_cuda_getArchFlags": lambda: f"sm_{self._card['major']}{self._card['minor']}",
            "_cuda_getCompiledVersion": lambda: 13020,
            "_cuda_getCurrentStream": lambda device: (memory.where.stream, 0, 1),
            "_cuda_getDefaultStream": lambda device: (0, 0, 1),
            "_cuda_getStreamFromExternal": lambda pointer, device: (pointer, 0, 1),
            "_cuda_getCurrentRawStream": lambda device: memory.where.stream,
            "_cuda_setStream": set_stream,
            "_cuda_isCurrentStreamCapturing": lambda: False,
            "_cuda_getCurrentBlasHandle": lambda: 1,
            "_cuda_clearCublasWorkspaces": nothing,
            "_cuda_set_sync_debug_mode": nothing,
            "_cuda_get_sync_debug_mode": lambda: 0,
            "_cuda_get_cudnn_benchmark_limit": lambda: 10,
            "_cuda_set_cudnn_benchmark_limit": nothing,
            "_cuda_is_jiterator_enabled": lambda: False,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_cudaCachingAllocator_set_allocator_settings": memory.allocator.set_settings,
            "_accelerator_setAllocatorSettings": memory.allocator.set_settings,
            "_cuda_emptyCache": memory.empty_cache,
            "_cuda_memoryStats": lambda device=0: self._stats(),
            "_cuda_hostMemoryStats": lambda: _nested(SimpleNamespace()),
            "_cuda_resetAccumulatedMemoryStats": nothing,
            "_cuda_resetAccumulatedHostMemoryStats": nothing,
            "_cuda_resetPeakMemoryStats": lambda device=0: allocator.reset_peaks(),
            "_cuda_resetPeakHostMemoryStats": nothing,
            "_cuda_setMemoryFraction": self._set_fraction,
            "_cuda_getMemoryFraction": lambda device=0: self._fraction,
            "_cuda_memorySnapshot": self._snapshot,
            "_cuda_record_memory_history": self._record_history,
            "_cuda_record_memory_history_legacy": self._record_history,
            "_cuda_isHistoryEnabled": lambda: memory.history is not None,
            "_cuda_attach_out_of_memory_observer": memory.on_oom.append,
            "_cuda_setCublasWorkspaceSize": nothing,
            "_cuda_lock_mutex": nothing,
            "_cuda_unlock_mutex": nothing,
        }

    def _init(self) -> None:
        allocator = self._memory.allocator
        if allocator.settings_text is None:  # torch, too, reads the variable only once, when CUDA starts
            allocator.set_settings(settings_of_environment())
        cuda = self._torch.cuda
        self._capture.patches.replace(cuda, "default_generators", (self._generator,))
        cuda._get_device_properties = self._properties  # torch.cuda has just taken its own from torch._C
        for begin in self.when_cuda_starts:
            begin()

    def _properties(self, device: Any = 0) -> Any:
        card = self._card
        return DeviceProperties(
            _name=card["name"],
            major=int(card["major"]),
            minor=int(card["minor"]),
            _total_memory=int(card["total"]),
            multi_processor_count=int(card["sms"]),
            max_threads_per_multi_processor=int(card["threads_per_sm"]),
            max_threads_per_block=1024,
            warp_size=32,
            regs_per_multiprocessor=int(card["registers_per_sm"]),
            shared_memory_per_block=int(card["shared_per_block"]),
            shared_memory_per_block_optin=int(card["shared_per_block_optin"]),
            shared_memory_per_multiprocessor=int(card["shared_per_sm"]),
            L2_cache_size=int(card["l2"]),
            memory_bus_width=int(card["bus_bits"]),
            clock_rate=int(card["clock_khz"]),
            memory_clock_rate=int(card["memory_clock_khz"]),
            is_integrated=0,
            is_multi_gpu_board=0,
            gcnArchName="",
            uuid="00000000-0000-0000-0000-000000000000",
            pci_bus_id=0,
            pci_device_id=0,
            pci_domain_id=0,
        )

    def _mem_get_info(self, device: Any = None) -> tuple[int, int]:
        self._torch.cuda._lazy_init()
        level = self._memory.allocator.device
        return max(0, level.capacity_bytes - level.used_bytes), level.total_bytes

    def _stats(self) -> dict[str, Any]:
        allocator = self._memory.allocator
        return _nested(allocator, num_allocations=self._memory.num_allocations)

    def _set_fraction(self, fraction: float, device: int = 0) -> None:
        self._fraction = fraction
        self._memory.allocator.limit_bytes = int(fraction * self._memory.allocator.device.total_bytes)

    def _record_history(self, enabled: Any, *args: Any, **kwargs: Any) -> None:
        self._memory.history = None if enabled in (None, False) else []

    def _snapshot(self, *args: Any) -> dict[str, Any]:
        allocator = self._memory.allocator
        segments = []
        for segment in allocator.segments():
            address, blocks = segment.address, []
            for size, is_allocated in segment.blocks:
                state = "active_allocated" if is_allocated else "inactive"
                blocks.append({"address": address, "size": size, "requested_size": size, "state": state, "frames": []})
                address += size
            allocated = sum(size for size, is_allocated in segment.blocks if is_allocated)
            segments.append(
                {
                    "device": 0,
                    "address": segment.address,
                    "total_size": segment.size,
                    "allocated_size": allocated,
                    "active_size": allocated,
                    "requested_size": allocated,
                    "stream": segment.stream,
                    "segment_type": "small" if segment.is_small else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": segment.is_expandable,
                    "frames": [],
                    "blocks": blocks,
                }
            )
        return {
            "segments": segments,
            "device_traces": [list(self._memory.history or ())],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": self._memory.allocator.settings_text},
        }

    # ---- Python classes ----------------------------------------------------------------------------------------------

    def _put_streams(self, cuda: Any) -> None:
        stream, external, event = streams.make_classes(self._torch, self._memory)
        for name, kind in (("Stream", stream), ("ExternalStream", external), ("Event", event)):
            self._put((cuda, cuda.streams), name, kind)

    def _put_generators(self, torch: Any) -> None:
        original = torch.Generator

        class Generator(original):  # type: ignore[misc, valid-type]
            """A host generator: the card draws no random numbers."""

            def __new__(cls, device: Any = "cpu") -> Any:
                return super().__new__(cls, "cpu")

        self._capture.patches.replace(torch, "Generator", Generator)

    def _put_storages(self, torch: Any) -> None:
        """A storage without a tensor, as torch.load makes, and one that is emptied and refilled, as FSDP does."""
        memory = self._memory
        storage_class = torch.UntypedStorage
        original_new, original_resize = storage_class.__new__, storage_class.resize_

        def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
            if device is None or torch.device(device).type != "cuda":
                given = {} if device is None else {"device": device}
                return original_new(cls, *args, **given, **kwargs)
            return memory.empty((args[0] if args else 0,), (1,), torch.uint8).untyped_storage()

        def resize(storage: Any, size: int) -> Any:
            if storage.device.type != "cuda":
                return original_resize(storage, size)
            if size != storage.nbytes():
                self._capture.refuse(
                    "the CPU engine cannot resize the storage of a tensor, as FSDP does",
                    "Use --engine virtual with a CUDA build of torch",
                )
            return None

        self._capture.patches.replace(storage_class, "__new__", new)
        self._capture.patches.replace(storage_class, "resize_", resize)

    def _put_graphs(self, cuda: Any) -> None:
        capture = self._capture

        class CUDAGraph:
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                capture.caveat("the CPU engine does not capture CUDA graphs; this is the memory without them")

            def __getattr__(self, name: str) -> Any:
                return lambda *args, **kwargs: (0, 0)

        modules = (cuda, cuda.graphs)
        self._put(modules, "CUDAGraph", CUDAGraph)
        self._put(modules, "graph", lambda *args, **kwargs: contextlib.nullcontext())
        self._put(modules, "make_graphed_callables", lambda callables, *args, **kwargs: callables)

    def _put_accelerator(self, torch: Any) -> None:
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is None:
            return
        cuda = torch.cuda
        memory = getattr(accelerator, "memory", accelerator)
        for name in (
            "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "empty_cache",
            "reset_peak_memory_stats", "memory_stats",
        ):  # fmt: skip
            for module in (accelerator, memory):
                if hasattr(module, name):
                    self._capture.patches.replace(module, name, getattr(cuda, name))
        replacements = {
            "synchronize": cuda.synchronize,
            "current_device_index": lambda: 0,
            "set_device_index": lambda *args: None,
            "device_count": cuda.device_count,
            "current_stream": lambda *args: cuda.current_stream(),
        }
        for name, replacement in replacements.items():
            self._capture.patches.replace(accelerator, name, replacement)


def _nested(allocator: Any, num_allocations: int = 0) -> dict[str, Any]:
    """Nested statistics as the C++ function returns them; torch.cuda flattens them."""

    def statistic(current: int = 0, peak: int = 0, allocated: int = 0) -> dict[str, dict[str, int]]:
        numbers = {"current": current, "peak": peak, "allocated": allocated, "freed": 0}
        return {"all": numbers, "large_pool": dict.fromkeys(numbers, 0), "small_pool": dict.fromkeys(numbers, 0)}

    def of(kind: str) -> dict[str, dict[str, int]]:
        return statistic(getattr(allocator, f"{kind}_bytes", 0), getattr(allocator, f"peak_{kind}_bytes", 0))

    return {
        "num_alloc_retries": getattr(allocator, "num_retries", 0),
        "num_ooms": getattr(allocator, "num_ooms", 0),
        "num_sync_all_streams": 0,
        "num_device_alloc": 0,
        "num_device_free": 0,
        "max_split_size": -1,
        "allocation": statistic(allocated=num_allocations),
        "segment": statistic(),
        "active": statistic(),
        "inactive_split": statistic(),
        "allocated_bytes": of("allocated"),
        "reserved_bytes": of("reserved"),
        "active_bytes": of("active"),
        "inactive_split_bytes": statistic(),
        "requested_bytes": of("requested"),
        "oversize_allocations": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
        "oversize_segments": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
    }
