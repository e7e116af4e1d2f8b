"""How a run ended: whether it gives a number, whether that number is complete, and the OOM that decides the verdict."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from foretell.errors import NothingOnGpuError, ScriptError, UnsupportedError
from foretell.records import EndedBy, OutOfMemory
from foretell.trace import ACTIONS, MissingFunction, OomMark, Trace

_NOTHING = "nothing was put on the GPU"
_STOPPED = ("interrupted", "time_limit", "unknown_value")
_ALLOCATION = ACTIONS.index("alloc")
DECIDES = "decides "
"""In what is said of an unknown read: its value decided a branch, a size, an index or a loop."""
_OF_READ_VALUES = ("IndexError", "KeyError", "ZeroDivisionError")
_OF_VALUES = (*_OF_READ_VALUES, "AssertionError", "RuntimeError", "ValueError")
"""Errors that a value can cause; the first ones also where the code does not show that it decides anything."""
_CAUGHT = re.compile(r"Caught \S+ (in [^\n]+)\.\n")
_OF_NCCL = re.compile(r"NCCL.*last error:\s*(rank[^\n]+)", re.IGNORECASE | re.DOTALL)
_REMEDIES = {
    "time_limit": "Increase the limit, or run fewer steps with --steps N.",
    "host_memory": "Increase the limit, or load less data on the host.",
}


def refuse(trace: Trace) -> None:
    """Raise if the run says nothing about a real GPU, however it ended."""
    for reason in trace.unsupported:
        raise UnsupportedError(f"{_sentence(reason.what)} {_sentence(reason.hint)}".strip())
    if trace.unimplemented:  # even if the script continued: on a real card it would have taken another path
        raise UnsupportedError(_not_implemented(trace.unimplemented))


def require_a_number(trace: Trace, ended_by: EndedBy | None) -> None:
    """Raise if too little was seen: no whole training step before a failure, or nothing on the GPU."""
    counters = [*trace.final, *(device for step in trace.steps for device in step.devices)]
    is_used = any(device.peak_reserved_bytes for device in counters) or len(trace.driver.time_us) > 0
    if is_used and (ended_by is None or trace.steps or ended_by.kind in _STOPPED):
        return
    has_trained = bool(trace.steps) or "backward" in trace.phases_seen
    if ended_by is not None and not (ended_by.kind in _STOPPED and has_trained):
        remedy = _REMEDIES.get(ended_by.kind)
        raise ScriptError(f"{_sentence(ended_by.message)} {remedy}" if remedy else ended_by.message)
    what = f"{_sentence(ended_by.message)} Nothing was put on the GPU by then" if ended_by else _NOTHING
    raise NothingOnGpuError(f"{what}, so there is nothing to estimate. {_where_to_look(trace, has_trained)}")


def _where_to_look(trace: Trace, has_trained: bool) -> str:
    if trace.pid is None:
        return "The command started no Python process."
    if trace.torch_version is None:
        return "The script did not import torch."
    return (
        f"The script {'trained on the CPU' if has_trained else 'did not use it'}. Check for an option that selects the "
        "device (--device, --cuda, --accel) and for CUDA_VISIBLE_DEVICES, which hides the GPU if it is empty. Under "
        "foretell, torch.cuda.is_available() returns True otherwise."
    )


def ended_by(trace: Trace, oom: OutOfMemory | None) -> EndedBy | None:
    """What ended the run before its time; None if it ended well, or by running out of memory (`oom`)."""
    count = len(trace.steps)
    steps = "1 training step" if count == 1 else f"{count} training steps"
    after = f"after {steps}" if count else "before the first training step was complete"
    if trace.is_interrupted:
        return EndedBy(kind="interrupted", message=f"the run was interrupted {after}")
    if trace.is_timed_out:
        failed = f", after it had {_failure(trace)}" if trace.exception is not None else ""
        message = f"the script was stopped at its time limit (--timeout) {after}{failed}"
        return EndedBy(kind="time_limit", message=message)
    if trace.is_over_host_memory:
        message = f"the script was stopped at its limit of host memory (most_host_bytes) {after}"
        return EndedBy(kind="host_memory", message=message)
    if oom is None and trace.endless_loop is not None:
        return EndedBy(kind="unknown_value", message=f"the run was ended in {trace.endless_loop}, {after}")
    if oom is not None or has_ended_well(trace):
        return None
    if trace.exit_status < 0:
        return EndedBy(kind="script", message=f"the script was killed by {_killer(-trace.exit_status)} {after}")
    if trace.exception is not None and trace.exception.network is not None:
        wanted = f"the script wanted {trace.exception.network}, but has no network here; --online allows downloads"
        return EndedBy(kind="script", message=f"{wanted}. It {_failure(trace)}")
    if not trace.is_cut_short:
        reason = _other_reason(trace)
        failed = f"the script itself {_failure(trace)}"
        return EndedBy(kind="script", message=f"{_sentence(failed)} {reason}" if reason else failed)
    cut = "an evaluation" if trace.cut_loops and trace.cut_loops[-1].kind == "evaluation" else "the training"
    message = f"after foretell had ended {cut} early, the script {_failure(trace)}"
    return EndedBy(kind="early_end", message=message)


def _killer(number: int) -> str:
    name = signal_name(number)
    if name != "SIGKILL":
        return name
    return "SIGKILL (probably because this machine ran out of RAM: the script's own data on the host uses it)"


def _failure(trace: Trace) -> str:
    if trace.exception is None:
        return f"ended with exit code {trace.exit_status}"
    where = f" at {trace.exception.where}" if trace.exception.where else ""
    message = trace.exception.message.strip().splitlines()
    rank = "" if trace.exception.rank is None else f" on rank {trace.exception.rank}"
    if nccl := _OF_NCCL.search(trace.exception.message):  # the reason, behind what PyTorch says of the call
        return f"failed{rank}{where}: {nccl[1]}"
    if quoted := _CAUGHT.match(trace.exception.message):  # from a worker of a DataLoader, a replica of DataParallel
        return f"failed{rank}{where}: {message[-1]} ({quoted[1]})"
    return f"failed{rank}{where}: {trace.exception.type}{': ' + message[0] if message else ''}"


def _other_reason(trace: Trace) -> str:
    """What the script may have failed for, other than its own mistake."""
    if trace.exception is None:
        return ""
    if trace.exception.unreached is not None and not trace.steps:
        return f"Before that, it could not reach {trace.exception.unreached}; --online allows downloads"
    if trace.exception.type == "ModuleNotFoundError" and not trace.steps:
        return "To use the packages of another environment, name its Python: foretell run -- /path/to/python SCRIPT.py"
    if "'get_ipython'" in trace.exception.message:
        return "A notebook's commands need IPython: foretell run -- ipython SCRIPT.py"
    if "invalid device ordinal" in trace.exception.message:
        return "It asked for a GPU that this machine does not have: --gpus-per-node N gives it N of them"
    kind = trace.exception.type
    if kind == "KeyError" and not trace.exception.message.lstrip("-").isdigit():  # not a number
        return ""
    reads = [read for read in trace.unknown_reads if kind in _OF_READ_VALUES or DECIDES in read.what]
    if reads and kind in _OF_VALUES:
        where = f" at {reads[-1].where}" if reads[-1].where else ""
        return f"It had read an unknown value{where} (kernels are not executed), which may be the reason"
    return ""


def has_ended_well(trace: Trace) -> bool:
    return trace.exit_status == 0 or crashed_after_its_end(trace)


def crashed_after_its_end(trace: Trace) -> bool:
    """Whether the process crashed after the script had finished: torch's threads can make Python abort at shutdown."""
    return trace.exit_status in (-signal.SIGABRT, -signal.SIGSEGV) and trace.is_ended and trace.exception is None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _not_implemented(functions: tuple[MissingFunction, ...]) -> str:
    named = "; ".join(_called_by(function) for function in functions[:5])
    more = f"; and {len(functions) - 5} more" if len(functions) > 5 else ""
    return (
        f"this script needs CUDA functions that the virtual GPU does not implement yet: {named}{more}. Its memory on a "
        "real GPU is therefore unknown. Please open an issue with this message and the output of `foretell doctor`."
    )


def _called_by(function: MissingFunction) -> str:
    operator = f", called by {function.operator}" if function.operator else ""
    where = f", at {function.where}" if function.where else ""
    return f"{function.name}{operator}{where}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


# --- out of memory ----------------------------------------------------------------------------------------------------


def fatal_oom(trace: Trace) -> OutOfMemory | None:
    """The OOM that decides the verdict: the last one, unless the script caught it and went on successfully."""
    if not trace.ooms:
        if trace.exception is not None and trace.exception.is_oom and trace.exit_status != 0:
            message = trace.exception.message or "CUDA out of memory."
            return OutOfMemory(
                step=len(trace.steps), phase="other", requested_bytes=0, message=message, where=trace.exception.where
            )
        return None
    last = trace.ooms[-1]
    is_uncaught = trace.exception is not None and trace.exception.is_oom
    if not is_uncaught and _went_on(trace, last):
        return None
    if trace.exception is not None and trace.exception.is_oom:
        # The uncaught exception has the full message; the allocator's observer sees only part of it.
        message = trace.exception.message or last.oom.message
        return replace(last.oom, message=message, where=last.oom.where or trace.exception.where)
    return last.oom


def _went_on(trace: Trace, oom: OomMark) -> bool:
    """Whether the work that ran out of memory succeeded later, as far as the GPU can tell.

    A script that trains (accelerate's find_executable_batch_size, Lightning's batch size scaler) must have made another
    step, or a backward pass if it has no optimizer. One that gives up, and a benchmark whose last configuration did not
    fit, have not. Only an evaluation may be followed by less: by any use of the GPU, such as smaller batches, and a
    good end. The same holds for everything in a script that never trains.
    """
    if trace.has_trained_since_oom or (trace.steps and trace.steps[-1].time_us > oom.time_us):
        return True
    trains = bool(trace.steps) or "backward" in trace.phases_seen
    if (trains and oom.oom.phase != "evaluation") or not has_ended_well(trace):
        return False
    allocations = zip(trace.memory.time_us, trace.memory.action, strict=True)
    of_driver = zip(trace.driver.time_us, trace.driver.is_free, strict=True)
    return any(time_us > oom.time_us and action == _ALLOCATION for time_us, action in allocations) or any(
        time_us > oom.time_us and not is_free for time_us, is_free in of_driver
    )
