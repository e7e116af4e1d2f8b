"""Records the operators of a step with the shapes of their inputs, for a model of time (protocol/operators.py).

PyTorch's own profiler sees them, in forward and backward and inside autocast. It takes no GPU memory and does not
change what is dispatched, so memory stays the same to the byte; a TorchDispatchMode would change it. Recorded is the
last of the first steps, when the optimizer's state exists and everything is compiled; of a script that only calls
models without gradients, its second such call. The operators that are captured into a CUDA graph are recorded too: a
step that launches the graph does their work. If a graph holds whole steps, those of its launches are recorded, instead
of the steps before, which warm up.

Kernels of Triton are no operators: their launches are recorded as calls of COMPILED with their own arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import marshal
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from typing import Any

from ...protocol.operators import COLUMNS, COMPILED, LIST, LOADER
from ..capture import Capture, in_main_thread
from ..stop.autograd_threads import wait_for_autograd
from .delay import delay_ns

STEPS = (1, 2)
"""These are recorded; the later one counts."""
PASS = 1
MAX_OPERATORS = 400_000
LOOP_LENGTH = 20_000
NUM_MARKS = 3
_MARK = "foretell::time"
_DEVICE_OR_MANAGED = (2, 3)
"""cudaMemoryType. The device of a tensor is not asked of the profiler: in torch 2.15 that corrupts the heap."""
_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_strided", "empty_like", "detach", "view", "as_strided", "t", "transpose", "permute", "expand",
        "reshape", "unsqueeze", "squeeze", "select", "slice", "alias", "result_type", "lift_fresh", "resolve_conj",
        "resolve_neg", "is_same_size", "narrow", "split", "chunk", "unbind", "flatten", "view_as", "_unsafe_view",
        "movedim", "contiguous", "item", "_local_scalar_dense",
    )
)  # fmt: skip
"""Operators that only describe memory anew, where no kernel runs: left out, if they call no others."""


class Operators:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._torch: Any = None
        self._profile: Any = None
        self._pid = 0
        self._num_passes = 0
        self._begin: tuple[str, int, int, int] = ("", 0, 0, 0)
        """Kind, number, and time and CPU time at its begin, in nanoseconds."""
        self._delay_before = self._loading_before = 0
        self._has_loader = False
        self._is_due = False
        """To begin with the next batch."""
        self._recorded: dict[str, Any] | None = None
        self._phases: list[tuple[int, str]] = []
        self._rows: _Rows | None = None
        self._num_kept = 0
        """Rows that graphs need; others make room for those of the next step."""
        self._marks: list[tuple[int, int, int]] = []
        """Nanoseconds before, inside and after calls that only tell the time."""
        self._phases_kept: list[tuple[int, str]] = []
        """Of the same time."""
        self._has_captured = False
        """In what is being recorded now."""

    def install(self, torch: Any) -> None:
        """Call while CUDA is being initialised, after the other hooks."""
        self._torch = torch
        self._pid = os.getpid()
        self._capture.after_step.insert(0, self._guarded(self._step_ends))
        self._capture.after_step.append(self._guarded(self._step_begins))
        self._capture.before_evaluation.append(self._guarded(self._pass_begins))
        self._capture.on_phase.append(self._phase_begins)
        self._capture.on_batch.append(self._guarded(self._batch_comes))
        self._capture.before_end.append(self._guarded(self._process_ends))
        self._capture.guarded("CUDA graphs", self._watch_graphs)
        self._capture.guarded("ranges of the profiler", self._leave_out_ranges)
        watch = self._capture.imports.when_imported
        watch("triton.runtime.jit", lambda jit: self._watch_kernels(jit.JITFunction))
        watch(
            "torch._inductor.runtime.triton_heuristics", lambda module: self._watch_kernels(module.CachingAutotuner)
        )

    def _leave_out_ranges(self) -> None:
        """A range that begins while the profiler runs writes its end into the profiler's memory. Steps end inside of
        one, that of `Optimizer.step`, or of the script: the memory would be gone by then."""

        def entering(original: Any) -> Any:
            @wraps(original)
            def enter(scope: Any) -> Any:
                if self._profile is None or str(scope.name).startswith(LOADER):
                    return original(scope)
                scope.run_callbacks_on_exit = False
                return scope

            return enter

        self._capture.patches.wrap(self._torch.autograd.profiler.record_function, "__enter__", entering)

    def _watch_graphs(self) -> None:
        graph, patches = self._torch.cuda.CUDAGraph, self._capture.patches
        if not hasattr(graph, "capture_begin"):  # a torch without CUDA
            return
        patches.wrap(graph, "capture_begin", self._before_capture)
        patches.wrap(graph, "capture_end", self._after_capture)

    def _before_capture(self, original: Any) -> Any:
        @wraps(original)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self._guarded(self._capture_begins)()
            return original(*args, **kwargs)

        return capture_begin

    def _after_capture(self, original: Any) -> Any:
        @wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._guarded(self._capture_ends)()
            return result

        return capture_end

    def _watch_kernels(self, kernel_class: Any) -> None:
        """Each launch is a call in the profiler's eyes, with tensors that are read and written as two arguments."""

        def recording(original: Any) -> Any:
            @wraps(original)
            def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
                if self._profile is None:
                    return original(kernel, *args, **kwargs)
                name, inputs = self._as_call(kernel, args, kwargs)
                with self._torch._C._profiler._RecordFunctionFast(name, inputs):
                    return original(kernel, *args, **kwargs)

            return run

        self._capture.patches.wrap(kernel_class, "run", recording)

    def _as_call(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
        """A launch of a Triton kernel as one of COMPILED, with its tensors and sizes."""
        names = kernel.arg_names if hasattr(kernel, "arg_names") else kernel.fn.arg_names
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        inputs: list[Any] = []
        for name in names:
            value = given.get(name)
            if isinstance(value, self._torch.Tensor):
                inputs += [value, value] if name.startswith("in_out_ptr") else [value]
            elif type(value) is int and name.endswith("numel"):
                inputs.append(value)
        title = str(getattr(kernel, "inductor_meta", {}).get("kernel_name", ""))
        return next(kind for begin, kind in COMPILED.items() if title.startswith(begin)), inputs

    def _capture_begins(self) -> None:
        if self._profile is None:
            self._start("capture", 0)
        self._has_captured = self._profile is not None

    def _capture_ends(self) -> None:
        if self._begin[0] == "capture":
            self._stop()

    def _guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        """Without the time of a step there is still its memory: the script must not fail for it."""
        return lambda: self._capture.guarded("the operators of a step", call)

    def _phase_begins(self, phase: str) -> None:
        if self._profile is not None:
            self._phases.append((time.time_ns() // 1000, phase))

    def _step_ends(self) -> None:
        if not in_main_thread():
            return  # an optimizer that steps inside backward
        if self._begin[0] == "training":
            self._stop()
            if self._number() > STEPS[-1]:
                self._write()
        elif self._begin[0] != "capture":  # of a step that is captured, the rest is
            self._abandon()

    def _number(self) -> int:
        """Of steps; once they are in a graph, of its launches."""
        return self._capture.num_graph_steps or self._capture.num_steps

    def _step_begins(self) -> None:
        step = self._number()
        self._is_due = step == STEPS[0] and self._has_loader
        if step in STEPS and not self._is_due and not self._capture.is_capturing_graph:
            self._start("training", step)

    def _batch_comes(self) -> None:
        """The batch of the first of the steps is loaded without the profiler, which slows it down: for its time."""
        self._has_loader = True
        if self._is_due and in_main_thread():
            self._is_due = False
            self._start("training", self._number())

    def _pass_begins(self) -> None:
        if self._capture.num_steps or not in_main_thread() or self._begin[0] == "capture":
            return
        self._stop()
        if self._num_passes == PASS:
            self._start("inference", PASS)
        self._num_passes += 1

    def _process_ends(self) -> None:
        if os.getpid() != self._pid:
            return
        if self._begin[0] == "inference":
            self._stop()
        self._abandon()
        self._write()

    def _start(self, kind: str, number: int) -> None:
        if not in_main_thread() or self._torch._C._autograd._profiler_enabled():
            return  # the script profiles itself: there is one profiler per thread
        profile = self._torch.autograd.profiler.profile(use_device=None, record_shapes=True)
        with _quiet():
            profile._prepare_trace()
            self._phases = [(time.time_ns() // 1000, self._capture.phase)]
            self._profile = profile
            profile._start_trace()
        self._marks.clear()
        self._mark_time()
        self._begin = (kind, number, time.time_ns(), time.process_time_ns())
        self._delay_before, self._loading_before = delay_ns(), self._capture.loading_ns

    def _stop(self) -> None:
        if self._profile is None:
            return
        cpu, now, delay = time.process_time_ns(), time.time_ns(), delay_ns()
        kind, number, begin, cpu_before = self._begin
        self._mark_time()
        loading = self._capture.loading_ns - self._loading_before
        results = self._disable()
        rows = self._rows = self._rows or _Rows(self._torch, self._capture.is_on_gpu or _pointer_kinds())
        rows.truncate(self._num_kept)
        rows.add(results.experimental_event_tree(), self._marks)  # while the results are alive
        self._begin = ("", 0, 0, 0)
        if self._has_captured:
            self._num_kept, self._has_captured = len(rows), False
            self._phases_kept += self._phases
        if kind == "capture":
            return
        self._recorded = {
            "kind": kind, "step": number, "begin_us": begin // 1000, "end_us": now // 1000,
            "cpu_us": (cpu - cpu_before) // 1000, "delay_us": (delay - self._delay_before) // 1000,
            "loading_us": loading // 1000, "loop_us": loop_us(), "phases": [*self._phases_kept, *self._phases],
        }  # fmt: skip

    def _mark_time(self) -> None:
        """Let the profiler see calls whose time is known: its own clock follows from the processor's, and on a busy
        machine may be off by more than an operator takes."""
        for _ in range(NUM_MARKS):
            before = time.time_ns()
            with self._torch._C._profiler._RecordFunctionFast(_MARK):
                inside = time.time_ns()
            self._marks.append((before, inside, time.time_ns()))

    def _abandon(self) -> None:
        if self._profile is not None:
            self._disable()
            self._begin = ("", 0, 0, 0)

    def _disable(self) -> Any:
        self._profile = None
        self._torch.autograd.profiler._run_on_profiler_stop()
        if not self._torch.is_inference_mode_enabled():
            # This thread may be here before a backward thread has left the profiler, whose events would be freed then.
            wait_for_autograd(self._torch)
        return self._torch.autograd._disable_profiler()

    def _write(self) -> None:
        if self._recorded is None or self._rows is None:
            return
        recorded, rows, self._recorded = self._recorded, self._rows, None
        recorded["signatures"] = list(rows.signatures)
        recorded["columns"] = {name: rows.columns[name].tobytes() for name in COLUMNS}
        path = os.path.join(self._capture.options.directory, f"operators-{self._pid}.marshal")
        with open(path, "wb") as file:
            marshal.dump(recorded, file, 2)


class _Rows:
    """The tree of the profiler's events as a table."""

    def __init__(self, torch: Any, is_on_gpu: Callable[[int | None], bool]) -> None:
        self._kind = torch._C._profiler._EventType.TorchOp
        self._tensor = torch._C._profiler._TensorMetadata
        self._threads: dict[int, int] = {}
        self._is_on_gpu = is_on_gpu
        self._texts: dict[tuple[Any, ...], int] = {}
        self.signatures: dict[str, int] = {}
        self.columns = {name: array(letter) for name, letter in COLUMNS.items()}

    def __len__(self) -> int:
        return len(self.columns["parent"])

    def truncate(self, length: int) -> None:
        for column in self.columns.values():
            del column[length:]

    def add(self, tree: Any, marks: list[tuple[int, int, int]]) -> None:
        first, seen = len(self), []
        waiting = [(event, -1) for event in reversed(tree)]
        columns = self.columns
        while waiting:
            event, parent = waiting.pop()
            children = event.children
            if event.name == _MARK:
                seen.append((event.start_time_ns, event.start_time_ns + event.duration_time_ns))
                continue
            if event.tag == self._kind and (children or event.name not in _VIEWS):
                row = len(self)
                if row >= MAX_OPERATORS:
                    break
                begin = event.start_time_ns
                columns["begin_us"].append(begin)
                columns["end_us"].append(begin + event.duration_time_ns)
                columns["signature"].append(self._number(event))
                columns["parent"].append(parent)
                thread = self._threads.setdefault(event.start_tid, len(self._threads))
                columns["thread"].append(min(thread, 255))
                parent = row
            waiting += [(child, parent) for child in reversed(children)]
        late = lateness(seen, marks)
        for name in ("begin_us", "end_us"):
            column = columns[name]
            for row in range(first, len(self)):
                column[row] = (column[row] - round(late(column[row]))) // 1000

    def _number(self, event: Any) -> int:
        inputs = tuple(map(self._input, event.extra_fields.inputs))
        key = (event.name, inputs)
        number = self._texts.get(key)
        if number is None:
            text = json.dumps([event.name, inputs], separators=(",", ":"))
            number = self._texts[key] = self.signatures.setdefault(text, len(self.signatures))
        return number

    def _input(self, value: Any) -> Any:
        if isinstance(value, self._tensor):
            sizes = tuple(value.sizes)
            dtype = str(value.dtype).removeprefix("torch.")
            return dtype, sizes, layout(sizes, tuple(value.strides)), self._is_on_gpu(value.storage_data_ptr)
        if isinstance(value, list):
            return (LIST, *map(self._input, value))
        return value if isinstance(value, bool | int | float) else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The profiler reads how much to print on stderr when it is first used."""
    name, given = "KINETO_LOG_LEVEL", os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if given is None:
            del os.environ[name]


def loop_us() -> float:
    """CPU time of a fixed loop: how fast this machine is, while other processes share it."""
    times = []
    for _ in range(5):
        begin = time.thread_time_ns()
        total = 0
        for number in range(LOOP_LENGTH):
            total += number * number
        times.append(time.thread_time_ns() - begin)
    return sorted(times)[2] / 1000


def lateness(
    seen: list[tuple[int, int]], marks: list[tuple[int, int, int]]
) -> Callable[[int], float]:
    """How many nanoseconds the profiler's clock is ahead at one of its times: from when it saw the marks begin and end,
    those at the begin and those at the end of the recording. 0 where what it saw agrees with them."""
    if len(seen) != len(marks) or not marks:
        return lambda time_ns: 0.0
    pairs = list(zip(seen, marks, strict=True))
    points = []
    for part in (pairs[:NUM_MARKS], pairs[-NUM_MARKS:]):
        (begin, end), (before, inside, after) = min(part, key=lambda pair: pair[1][2] - pair[1][0])
        ahead = 0 if before <= begin <= inside <= end <= after else (begin + end) / 2 - inside
        points.append(((begin + end) / 2, ahead))
    (start, at_start), (stop, at_stop) = points
    slope = (at_stop - at_start) / max(1.0, stop - start)
    return lambda time_ns: at_start + slope * (time_ns - start)


def _pointer_kinds() -> Callable[[int | None], bool]:
    """Whether an address is GPU memory, as the virtual GPU knows it."""
    ask = ctypes.CDLL(None).cudaPointerGetAttributes
    answer = (ctypes.c_int * 64)()

    @cache
    def is_on_gpu(address: int | None) -> bool:
        if not address or ask(answer, ctypes.c_void_p(address)):
            return False
        return answer[0] in _DEVICE_OR_MANAGED

    return is_on_gpu


def layout(sizes: tuple[int, ...], strides: tuple[int, ...]) -> str:
    """One of protocol.operators.LAYOUTS; dimensions of one element have any stride."""
    wide = [(stride, size) for size, stride in zip(sizes, strides, strict=False) if size > 1]
    if any(stride == 0 for stride, _ in wide):
        return "broadcast"
    if _is_dense(reversed(wide)):
        return "contiguous"
    last = [1, *range(len(sizes) - 1, 1, -1), 0]
    if len(sizes) in (4, 5) and _is_dense((strides[at], sizes[at]) for at in last if sizes[at] > 1):
        return "channels_last"
    return "strided"


def _is_dense(inner_first: Iterable[tuple[int, int]]) -> bool:
    expected = 1
    for stride, size in inner_first:
        if stride != expected:
            return False
        expected *= size
    return True
