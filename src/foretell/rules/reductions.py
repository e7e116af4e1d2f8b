"""Memory that PyTorch's reductions take for a while. Standard library only."""

from __future__ import annotations

_LANES, _VECTOR = 32, 4
_BLOCKS = 108 * 64
"""Of 32 threads each that an A100 holds; other data-center cards hold more."""
_ROWS_A_BLOCK = (16, 256)
"""At least and at most."""


def column_sums_bytes(rows: int, columns: int) -> int:
    """Partial sums of the rows of a matrix, in single precision, if many blocks share its columns, as for the gradient
    of a bias. ReduceConfig of ATen/native/cuda/Reduce.cuh, where four columns are read at once."""
    if columns % _VECTOR or columns < _LANES * _VECTOR or rows < _ROWS_A_BLOCK[1]:
        return 0
    least, most = (-(-rows // each) for each in reversed(_ROWS_A_BLOCK))
    blocks = max(min(-(-_BLOCKS // -(-columns // (_LANES * _VECTOR))), most), least)
    return 4 * columns * _LANES * blocks if blocks > 1 else 0
