"""Memory of cuDNN's recurrent nets: the sizes of native/libraries/cudnn_rnn.c, from shapes alone. They are not
documented; docs/cudnn.md says what is known of them."""

from __future__ import annotations

from typing import Literal

Kind = Literal["lstm", "gru", "rnn"]
_GATES: dict[Kind, int] = {"lstm": 4, "gru": 3, "rnn": 1}
_KEPT: dict[Kind, int] = {"lstm": 6, "gru": 7, "rnn": 2}
"""In widths of the hidden state. LSTM: the gates, the cell and the hidden state."""


def recurrent_workspace(kind: Kind, *, samples: int, hidden: int, directions: int, element_bytes: int) -> int:
    """The gate inputs of one layer for all steps, computed as one product. `samples`: total over all steps."""
    return samples * _GATES[kind] * hidden * directions * element_bytes


def recurrent_reserve(
    kind: Kind,
    *,
    samples: int,
    hidden: int,
    projection: int,
    layers: int,
    directions: int,
    has_dropout: bool,
    element_bytes: int,
) -> int:
    """Memory kept for the backward pass of every layer and, with dropout, the dropped inputs of all but the first.
    `projection`: 0 without one."""
    kept = _KEPT[kind] * hidden + projection
    dropped = (layers - 1) * (projection or hidden) * directions if has_dropout else 0
    return samples * (kept * layers * directions + dropped) * element_bytes


def dropout_states(num_sms: int, threads_per_sm: int) -> int:
    """One random state per thread the card can run at once."""
    return num_sms * threads_per_sm * 16
