"""Reads a Chrome trace of torch.profiler: operators and memory events on one timeline.

A tick is a position in the order of all begins, ends and memory events: times may be equal, ticks are not, and what a
card does in addition fits between two of them (moments.py). Standard library only: reading a trace does not need torch.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from foretell import disk
from foretell.engines.imported.moments import Moment
from foretell.errors import UnsupportedError, UsageError
from foretell.plain import parse_json
from foretell.units import GIB, MIB, format_bytes

_HOW_TO_RECORD = (
    "Record one with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True, "
    "record_shapes=True) around a few training steps, and save it with export_chrome_trace."
)
_CUBLAS_CONFIG = "CUBLAS_WORKSPACE_CONFIG"
"""Key that `profiler.add_metadata(name, value)` writes."""
_MOST_BYTES = 4 * GIB
_UNPACKED_BYTES, _MOST_RATIO = 64 * MIB, 100
"""A packed profile may have so many bytes, and so many times its own: profiles have up to 30 times."""
_MOST_ELEMENTS = 1 << 50
"""More than any machine has memory for."""
_CPU, _CUDA = 0, 1
"""c10::DeviceType."""
_OPERATORS = ("cpu_op", "user_annotation", "python_function")
_ELEMENT_BYTES = {
    "double": 8, "long int": 8, "long": 8, "int64_t": 8, "unsigned long": 8, "float": 4, "int": 4, "unsigned int": 4,
    "c10::Half": 2, "c10::BFloat16": 2, "short": 2, "short int": 2, "unsigned short": 2, "bool": 1, "signed char": 1,
    "unsigned char": 1, "c10::complex<float>": 8, "c10::complex<double>": 16, "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
}  # fmt: skip
"""Keyed by C++ type name, as profiles name element types."""
_FLOATING_TYPES = {"double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input tensor, as recorded with record_shapes=True."""

    shape: tuple[int, ...]
    element: str
    strides: tuple[int, ...] = field(default=(), compare=False)
    """Empty if not recorded. Not compared: parameters are counted by shape and type alone."""

    @property
    def element_bytes(self) -> int:
        return _ELEMENT_BYTES.get(self.element, 4)

    @property
    def dtype(self) -> str:
        """PyTorch's name of the type, as the rules expect it."""
        return _FLOATING_TYPES.get(self.element, self.element)

    @property
    def is_contiguous(self) -> bool:
        """Assumed true if strides were not recorded."""
        packed = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=False):
            if extent > 1 and stride != packed:
                return False
            packed *= extent
        return True

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator, an annotation or a Python function, from its begin to its end."""

    name: str
    begin: Moment
    end: Moment
    parent: int | None
    """Number of the caller; None at the top."""
    is_annotation: bool = False
    """Named by the script, the profiler or Python; not a PyTorch operator."""
    inputs: tuple[Tensor | None, ...] = ()
    """None for arguments that are not tensors."""
    values: tuple[str, ...] = ()
    """Non-tensor arguments as text; empty strings for tensors."""
    sequence: int | None = None
    """Sequence number of the autograd node: a node has the number of the operator that made it."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.inputs if tensor is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    tick: Moment
    address: int
    num_bytes: int
    """Negative for a free."""
    operator: int | None
    """The innermost running operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProfile:
    operators: tuple[Operator, ...]
    """In order of begin."""
    memory: tuple[MemoryEvent, ...]
    num_ticks: int
    has_shapes: bool
    cublas_config: str = ""
    """CUBLAS_WORKSPACE_CONFIG of the job, if the script wrote it into the profile."""


def read(path: Path) -> CpuProfile:
    """Read a profile. Raises `UsageError` if the file is not a profile, `UnsupportedError` if it cannot be used."""
    document = _document(path)
    try:
        return _profile(document, path)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is a damaged profile ({type(error).__name__}: {error}). {_HOW_TO_RECORD}") from None


def _profile(document: dict[str, Any], path: Path) -> CpuProfile:
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    memory = [event for event in events if event.get("name") == "[memory]" and isinstance(event.get("args"), dict)]
    spans = [e for e in events if e.get("ph") == "X" and e.get("cat") in _OPERATORS]
    if not spans:
        raise UsageError(f"{path} has no operators, so it is not a profile of a PyTorch job. {_HOW_TO_RECORD}")
    if not memory:
        raise UsageError(f"{path} has no memory events: it was recorded without profile_memory=True. {_HOW_TO_RECORD}")
    on_cpu = [event for event in memory if event["args"].get("Device Type") == _CPU]
    on_cuda = [event for event in memory if event["args"].get("Device Type") == _CUDA]
    if on_cuda:
        reserved = max(int(event["args"].get("Total Reserved", 0)) for event in on_cuda)
        raise UnsupportedError(
            f"{path} was recorded on a GPU, so there is nothing to predict: PyTorch reserved up to "
            f"{format_bytes(reserved)} there. Import a profile of the same job on the CPU instead."
        )
    if not on_cpu:
        kinds = sorted({str(event["args"].get("Device Type")) for event in memory})
        raise UnsupportedError(f"{path} has no memory events of the CPU, only of device types {', '.join(kinds)}.")
    return _on_one_line(spans, on_cpu, cublas_config=str(document.get(_CUBLAS_CONFIG, "")))


def _document(path: Path) -> dict[str, Any]:
    try:
        text = disk.read(path, most_bytes=_MOST_BYTES)
        if text[:2] == b"\x1f\x8b":
            text = disk.unpack(text, most_bytes=min(_MOST_BYTES, _UNPACKED_BYTES + len(text) * _MOST_RATIO))
        document = parse_json(text)
    except FileNotFoundError:
        raise UsageError(f"no such profile: {path}. {_HOW_TO_RECORD}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is truncated or damaged ({error}). Save it again.") from None
    except OSError as error:
        raise UsageError(f"cannot read the profile {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is neither JSON nor gzip. {_HOW_TO_RECORD}") from None
    except json.JSONDecodeError as error:
        is_cut = text.lstrip()[:1] in (b"{", b"[") and error.pos >= len(text) - 1000
        what = "is truncated" if is_cut else "is not JSON"
        raise UsageError(f"{path} {what} ({error}). {_HOW_TO_RECORD}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not a profile: {error}. {_HOW_TO_RECORD}") from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise UsageError(f"{path} is JSON without traceEvents, so it is not a torch.profiler profile. {_HOW_TO_RECORD}")
    return document


def _on_one_line(spans: list[dict[str, Any]], memory: list[dict[str, Any]], *, cublas_config: str) -> CpuProfile:
    """Put all events in one order. Operators nest by thread, so each thread has a stack."""
    points: list[tuple[int, int, int, int, dict[str, Any]]] = []  # nanoseconds, kind, order among equals, number, event
    for number, span in enumerate(spans):
        begin, length = _nanoseconds(span["ts"]), _nanoseconds(span.get("dur", 0))
        points.append((begin, 0, -length, number, span))  # the longer one is outside
        points.append((begin + length, 2, length, -number, span))
    for number, event in enumerate(memory):
        points.append((_nanoseconds(event["ts"]), 1, int(event["args"].get("Ev Idx", number)), number, event))
    points.sort(key=lambda point: point[:4])
    begins: dict[int, tuple[int, Moment, int | None]] = {}
    ends: dict[int, Moment] = {}
    stacks: dict[Any, dict[int, None]] = {}  # the numbers of running operators, of which any may be the first to end
    events: list[MemoryEvent] = []
    for at, (_, kind, _, _, event) in enumerate(points):
        tick = (at,)
        stack = stacks.setdefault(event.get("tid"), {})
        if kind == 0:
            begins[id(event)] = (len(begins), tick, next(reversed(stack), None))
            stack[len(begins) - 1] = None
        elif kind == 2:
            number = begins[id(event)][0]
            ends[number] = tick
            stack.pop(number, None)
        else:
            arguments = event["args"]
            events.append(
                MemoryEvent(
                    tick=tick,
                    address=int(arguments["Addr"]),
                    num_bytes=_num_bytes(arguments["Bytes"]),
                    operator=next(reversed(stack), None),
                )
            )
    operators = [_operator(span, *begins[id(span)][1:], ends[begins[id(span)][0]]) for span in spans]
    operators.sort(key=lambda operator: operator.begin)
    return CpuProfile(
        operators=tuple(operators),
        memory=tuple(events),
        num_ticks=len(points),
        has_shapes=any(operator.inputs for operator in operators),
        cublas_config=cublas_config,
    )


def _num_bytes(value: Any) -> int:
    if abs(int(value)) > _MOST_ELEMENTS:
        raise ValueError(f"{int(value)} bytes"[:80])
    return int(value)


def _nanoseconds(microseconds: Any) -> int:
    return round(float(microseconds) * 1000)


def _operator(span: dict[str, Any], begin: Moment, parent: int | None, end: Moment) -> Operator:
    arguments = span.get("args") or {}
    sequence = arguments.get("Sequence number")
    return Operator(
        name=str(span["name"]),
        begin=begin,
        end=end,
        parent=parent,
        is_annotation=span.get("cat") != "cpu_op",
        inputs=tuple(_inputs(arguments)),
        values=tuple(str(value) for value in arguments.get("Concrete Inputs") or []),
        sequence=int(sequence) if sequence is not None and int(sequence) >= 0 else None,
    )


def _extents(shape: Sequence[Any]) -> tuple[int, ...]:
    extents = tuple(map(int, shape))
    if prod(extents) > _MOST_ELEMENTS or min(extents, default=0) < 0:
        raise ValueError(f"a tensor of the shape {extents}"[:80])
    return extents


def _inputs(arguments: dict[str, Any]) -> Iterator[Tensor | None]:
    """Yield the input tensors. A list of tensors is one argument whose shape is a list of shapes; its tensors come one
    by one."""
    shapes, types = (arguments.get(key) or [] for key in ("Input Dims", "Input type"))
    strides = arguments.get("Input Strides") or [[]] * len(shapes)
    for shape, element, steps in zip(shapes, types, strides, strict=False):
        if element == "TensorList" or (shape and isinstance(shape[0], list)):
            yield from (Tensor(shape=_extents(each), element="float") for each in shape if isinstance(each, list))
        elif element in _ELEMENT_BYTES:
            yield Tensor(shape=_extents(shape), element=str(element), strides=tuple(map(int, steps)))
        else:
            yield None
