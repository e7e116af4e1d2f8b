"""PyTorch's CUDA caching allocator, reimplemented in Python: for estimates without a CUDA build of torch, and for
what-ifs (another card, other options) from a saved trace. Tests compare it with the real one, byte for byte."""

from .caching import CachingAllocator, OutOfMemoryError
from .device import Device
from .settings import AllocatorSettings, check_alloc_conf

__all__ = ["AllocatorSettings", "CachingAllocator", "Device", "OutOfMemoryError", "check_alloc_conf"]
