"""What optimizers keep of each parameter, and what a step needs for a while. Standard library only."""

from __future__ import annotations

_STATES = {
    "SGD": 0, "Adafactor": 0, "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "RMSprop": 1,
    "Adadelta": 2, "ASGD": 1, "Rprop": 2, "Lion": 1, "LBFGS": 10,
}  # fmt: skip
"""State tensors of the size of each parameter, as the classes of torch.optim allocate them. Adafactor's are rows and
columns."""
_UNKNOWN_STATES = 2
_TEMPORARIES = {"SGD": 0, "Adagrad": 2, "Adadelta": 2, "RAdam": 2, "Rprop": 2}
"""Of a step on lists of tensors; of others, one."""


def num_states(optimizer: str | None, *, has_momentum: bool) -> int:
    """An unknown one counts like Adam."""
    states = _STATES.get(optimizer or "Adam", _UNKNOWN_STATES)
    return states + (optimizer in ("SGD", "RMSprop") and has_momentum)


def num_temporaries(optimizer: str | None, *, works_on_lists: bool, element_bytes: int) -> int:
    """As large as all parameters, of a step on lists (foreach); else as large as the parameter whose turn it is."""
    if works_on_lists:
        return _TEMPORARIES.get(optimizer or "Adam", 1)
    # Adafactor computes in single precision: of other parameters it makes copies, and of their gradients.
    return 8 if optimizer == "Adafactor" and element_bytes < 4 else 2
