"""PyTorch's CUDA caching allocator, written again in Python: for estimates without a CUDA build of torch, and for
what-ifs (another card, other options) from a saved trace. Tests hold it equal to the real one, byte for byte."""

from foretell.allocator.caching import CachingAllocator, OutOfMemoryError
from foretell.allocator.device import Device
from foretell.allocator.what_if import Outcome, play_again

__all__ = ["CachingAllocator", "Device", "OutOfMemoryError", "Outcome", "play_again"]
