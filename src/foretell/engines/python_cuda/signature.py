"""An operator's arguments and results, from its schema."""

from __future__ import annotations

from typing import Any

_LENGTHS_ON_HOST = {"_ctc_loss", "_ctc_loss_backward"}
_OVERWRITES = {
    "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_",
    "geometric_", "_foreach_zero_",
}  # fmt: skip


class Signature:
    def __init__(self, torch: Any, operator: Any) -> None:
        schema = operator._schema
        name = schema.name.rsplit("::", 1)[-1]
        self._torch = torch
        self._positions = {argument.name: number for number, argument in enumerate(schema.arguments)}
        types = [str(argument.type) for argument in schema.arguments]
        self._tensors = [number for number, each in enumerate(types) if each in ("Tensor", "Optional[Tensor]")]
        self.written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        """Arguments written to."""
        self.is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
        self.returns = [_written_into(schema, each) for each in schema.returns if not self.is_view]
        """For each result, the argument that it is, or None if new."""
        self.may_be_on_host = name in _LENGTHS_ON_HOST
        self.depends_on_floats = name.startswith(("arange", "linspace", "logspace", "range"))
        self.is_empty = name.startswith(("empty", "new_empty"))
        self.overwrites = any(a.is_out for a in schema.arguments) or name in _OVERWRITES
        """It does not read the arguments it writes to."""

    def argument(self, name: str, args: Any, kwargs: Any) -> Any:
        position = self._positions[name]
        return args[position] if position < len(args) else kwargs.get(name)

    def without_numbers(self, args: Any) -> Any:
        """Wrap numbers passed for tensors (`x % 2`): they arrive as numbers, which not every operator accepts."""
        numbers = [n for n in self._tensors if n < len(args) and isinstance(args[n], (int, float, complex))]
        if not numbers:
            return args
        torch = self._torch
        like = next((each for each in args if isinstance(each, torch.Tensor)), None)
        given = list(args)
        for n in numbers:
            dtype = torch.result_type(like, args[n]) if like is not None else None
            given[n] = torch.scalar_tensor(args[n], dtype=dtype, device="cpu")
        return given


def _written_into(schema: Any, result: Any) -> str | None:
    if result.alias_info is None:
        return None
    alias = next(iter(result.alias_info.before_set))
    named = [a.name for a in schema.arguments if a.alias_info is not None and alias in a.alias_info.before_set]
    return str(named[-1])
