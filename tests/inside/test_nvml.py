"""NVML beside CUDA: it counts the cards of the machine, whatever CUDA_VISIBLE_DEVICES says."""

from __future__ import annotations

from .conftest import Run

SCRIPT = """
    import ctypes, torch
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    class Memory(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
    tensor = torch.zeros(10 << 20, device="cuda")
    nvml.nvmlInit_v2()
    for index in (0, 1):
        handle, memory = ctypes.c_void_p(), Memory()
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        print(index, memory.used - torch.cuda.memory_reserved() * index, torch.cuda.device_count())
"""


def test_the_memory_in_use_is_that_of_the_card_the_process_sees(capture: Run) -> None:
    # Cold: NVML reads the variable once, and torch may have asked NVML when it was imported.
    run = capture(SCRIPT, hooks=False, cold=True, environment={"CUDA_VISIBLE_DEVICES": "1"}).check()
    assert run.said == ["0 0 1", "1 0 1"]
