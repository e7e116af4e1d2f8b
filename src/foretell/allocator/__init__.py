"""PyTorch's CUDA caching allocator, written again in Python: for estimates without a CUDA build of torch, and for
what-ifs (another card, other options) from a saved trace. Tests hold it equal to the real one, byte for byte."""

from .caching import CachingAllocator, OutOfMemoryError
from .device import Device
from .settings import AllocatorSettings

__all__ = ["AllocatorSettings", "CachingAllocator", "Device", "OutOfMemoryError"]
