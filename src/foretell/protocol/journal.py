"""The journal `journal-<pid>.jsonl`: which kinds of lines there are, what each carries, and how to read them.

Every line is a JSON object with `kind` and `time_us` (Unix time, microseconds). The watched process writes them
(`inside/journal.py`). A killed process may leave half a line at the end; the readers skip it.
"""

from __future__ import annotations

import json
from typing import Any


class Key:
    """What a kind of line carries under one name."""

    __slots__ = ("is_optional", "meaning", "type")

    def __init__(self, type: str, meaning: str = "", *, is_optional: bool = False) -> None:
        assert all(each in TYPES for each in type.split(" | ")), type
        self.type = type
        """One of TYPES, or several with ` | ` between them."""
        self.meaning = meaning
        self.is_optional = is_optional


class Kind:
    __slots__ = ("is_early", "keys", "meaning", "names", "required")

    def __init__(self, meaning: str, keys: dict[str, Key], *, is_early: bool = False) -> None:
        self.meaning = meaning
        self.keys = keys
        self.is_early = is_early
        """Kept back in a process that may turn out not to matter, as a DataLoader worker."""
        self.names = frozenset(keys)
        self.required = frozenset(name for name, key in keys.items() if not key.is_optional)


TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "list": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
"""JSON's, by the names of Python."""

DEVICES = Key(
    "list", "`[{device, allocated_bytes, reserved_bytes, peak_allocated_bytes, peak_reserved_bytes}]`; peaks since the "
    "process began",
)  # fmt: skip
WHERE = Key("str | null", "`file:line` of the user's code")

KINDS: dict[str, Kind] = {
    "process": Kind(
        "the process has started",
        {
            "pid": Key("int"),
            "argv": Key("list"),
            "executable": Key("str"),
            "python": Key("str", "version"),
            "library_folders": Key("list", "where this Python keeps libraries: code elsewhere is the user's"),
            "own_folders": Key("list", "where the code of foretell lies that runs in this process"),
        },
        is_early=True,
    ),
    "torch": Kind(
        "torch has been imported",
        {
            "version": Key("str"),
            "cuda": Key("str | null"),
            "cudnn": Key("int | null"),
            "engine": Key("str", "`virtual` or `cpu`"),
        },
        is_early=True,
    ),
    "cuda": Kind(
        "the GPU is used for the first time",
        {
            "device_count": Key("int"),
            "arch_list": Key("list", "what this torch has kernels for"),
            "cublas_workspace_config": Key("str | null", "CUBLAS_WORKSPACE_CONFIG at that time"),
        },
    ),
    "rank": Kind(
        "the process is one rank of several",
        {
            "rank": Key("int"),
            "world_size": Key("int"),
            "local_rank": Key("int | null", "LOCAL_RANK: its number on its machine"),
            "gpus_per_node": Key("int | null", "LOCAL_WORLD_SIZE"),
        },
    ),
    "communicators": Kind(
        "what NCCL's communicators of this rank were used for, when it ends",
        {
            "communicators": Key(
                "list",
                "`size`, `kinds` of collectives, `bytes` of buffers, `channels`, `ranks` (of the job, if only some "
                "run) and `neighbours` among them in a pipeline",
            )
        },
    ),
    "rank_needed": Kind(
        "a rank that was not run is started, because this one needs its data",
        {
            "rank": Key("int"),
            "by": Key("int", "the rank that needs it"),
            "what": Key("str", "NCCL's function"),
            "where": WHERE,
        },
    ),
    "rank_waits": Kind(
        "the process has waited long for another rank",
        {"text": Key("str", "`rank 0 waits in ncclAllReduce at train.py:8 for rank 1`"), "seconds": Key("float")},
    ),
    "allocator": Kind(
        "the settings of PyTorch's allocator, when CUDA starts and whenever the script changes them",
        {
            "settings": Key("str", "in the syntax of PYTORCH_ALLOC_CONF"),
            "backend": Key("str", "`native` or `cudaMallocAsync`"),
        },
    ),
    "card_query": Kind(
        "the script, or a library it uses, has asked for what differs between cards of one kind",
        {"what": Key("str", "`the card's memory`"), "where": WHERE},
    ),
    "cudnn": Kind("the CPU engine has found a cuDNN to ask for workspaces", {"version": Key("int")}),
    "phase": Kind("a phase begins", {"phase": Key("str", "see PHASES"), "step": Key("int", "it belongs to this one")}),
    "step": Kind("a step has ended", {"index": Key("int"), "devices": DEVICES}),
    "pass": Kind(
        "a pass over a DataLoader begins",
        {
            "number": Key("int", "of the pass"),
            "length": Key("int | null", "batches in it"),
            "num_samples": Key("int | null", "of its dataset"),
            "batch_size": Key("int | null"),
            "sampler": Key("str", "its class"),
            "num_workers": Key("int"),
        },
    ),
    "batch": Kind(
        "a DataLoader has delivered a batch",
        {
            "loader": Key("int", "number of the pass"),
            "index": Key("int", "in the pass"),
            "step": Key("int", "the current one; prefetchers are a batch ahead of it"),
            "shape": Key("int", "number of its shapes and dtypes"),
            "tensors": Key("list", "`[[name, dtype, shape]]`, with the first batch of this `shape`", is_optional=True),
            "num_elements": Key("int"),
            "samples": Key("list", "the first of those that the sampler drew for it", is_optional=True),
            "num_samples": Key("int", "how many it drew", is_optional=True),
            "is_trained": Key("bool", "false: it was only looked at (`steps` is `worst`)", is_optional=True),
            "took_us": Key("int", "with `time`: how long loading it took without hooks", is_optional=True),
            "worker_us": Key("int", "with `time`: how long a worker process takes for a batch", is_optional=True),
        },
    ),
    "operators": Kind("progress of the CPU engine with `execute`", {"count": Key("int", "computed so far")}),
    "oom": Kind(
        "PyTorch has raised an out-of-memory error",
        {
            "step": Key("int"),
            "phase": Key("str"),
            "requested_bytes": Key("int"),
            "message": Key("str"),
            "where": Key("str | null", "`file:line` of the model, the user's or a library's"),
            "free_bytes": Key("int"),
            "total_bytes": Key("int"),
            "device": Key("int"),
        },
    ),
    "exception": Kind(
        "an exception has left the script, or one of its threads",
        {
            "type": Key("str"),
            "message": Key("str"),
            "where": WHERE,
            "is_oom": Key("bool"),
            "thread": Key("bool", "it ended a thread other than the main one", is_optional=True),
            "network": Key("str", "the host or repository it wanted, but has no network", is_optional=True),
            "unreached": Key("str", "else a host that could not be reached before", is_optional=True),
        },
    ),
    "unknown_read": Kind(
        "the script has read a value that the virtual GPU never computed",
        {
            "bytes": Key("int"),
            "where": WHERE,
            "what": Key("str", "operator, and what the value decides"),
            "count": Key("int"),
        },
    ),
    "unimplemented": Kind(
        "the script has called a CUDA function that the virtual GPU lacks; foretell exits with 2",
        {"name": Key("str"), "operator": Key("str | null"), "where": WHERE},
    ),
    "redirected_write": Kind(
        "the script has changed a file, which went to the overlay",
        {"path": Key("str"), "change": Key("str", "`write` or `delete`")},
    ),
    "not_sent": Kind("a tracker or hub was kept offline", {"what": Key("str")}),
    "ended_early": Kind(
        "enough steps have been seen",
        {
            "how": Key("str", "`loader`, `trainer`, `lightning`, `ignite`, `exit`, `unknown_value`"),
            "step": Key("int"),
            "what": Key("str"),
            "loop": Key("str", "of a `loader`: `training` or `evaluation`", is_optional=True),
            "remaining_seconds": Key(
                "float | null",
                "of a `loader`: the least time in which the loop would have ended; null: its length is unknown",
                is_optional=True,
            ),
        },
    ),
    "unsupported": Kind("the run cannot be estimated; foretell exits with 2", {"what": Key("str"), "hint": Key("str")}),
    "survey": Kind(
        "what could be done otherwise; with the option `survey`",
        {
            "repeated_class": Key("str | null", "whose instances keep the most for the backward pass"),
            "repeated_count": Key("int"),
            "repeated_bytes": Key("int"),
            "is_autocast": Key("bool"),
            "parameter_bytes": Key("object", "by dtype"),
            "optimizers": Key("list"),
            "keeps_gradients": Key("bool"),
            "late_gradient_bytes": Key("int"),
            "has_smaller_batch": Key("bool"),
            "has_bitsandbytes": Key("bool"),
        },
    ),
    "features": Kind(
        "the job was described; with the option `describe`",
        {"features": Key("object", "fields of `foretell.features.JobFeatures`")},
    ),
    "alternative": Kind(
        "a change of the option `alternatives` was made",
        {
            "name": Key("str", "as before the `=`"),
            "by": Key("str", "checkpoint: `class` or `model`", is_optional=True),
        },
    ),
    "loader": Kind(
        "batches of this DataLoader are trained on; with the alternative `dataloader-batch-size`",
        {
            "mark": Key("str", "the same in every run"),
            "where": WHERE,
            "batch_size": Key("int | null", "null: the script has a batch sampler of its own, or makes no batches"),
            "num_samples": Key("int | null"),
        },
    ),
    "keeper": Kind(
        "a variable holds more GPU memory after each step",
        {
            "name": Key("str"),
            "what": Key("str", "`a list of tensors that grows`"),
            "where": Key("str", "the line that adds to it, else its file"),
        },
    ),
    "caveat": Kind("something the reader of the estimate should know", {"text": Key("str")}),
    "end": Kind(
        "the process ends",
        {
            "steps": Key("int"),
            "phases": Key("list", "those seen"),
            "devices": Key("list", "as in `step`", is_optional=True),
            "seconds": Key("object", "`{import_torch, script}`"),
        },
    ),
}


def mistake_in(kind: str, values: dict[str, Any]) -> str | None:
    """What is wrong with the names in a line; cheap enough for every line that is written."""
    known = KINDS.get(kind)
    if known is None:
        return f"there is no kind {kind!r}"
    if known.required <= values.keys() <= known.names:
        return None
    missing, unknown = sorted(known.required - values.keys()), sorted(values.keys() - known.names)
    return f"{kind}: missing keys {missing}, unknown keys {unknown}"


def mistake_in_types(kind: str, values: dict[str, Any]) -> str | None:
    """For tests: also looks at the type of each value."""
    for name, value in values.items():
        types = KINDS[kind].keys[name].type.split(" | ")
        # In Python a boolean is an integer; in the journal it is not.
        if not any(isinstance(value, TYPES[each]) and (each == "bool") >= isinstance(value, bool) for each in types):
            return f"{kind}: {name} is {value!r}, not {' | '.join(types)}"
    return None


WRITES = "writes.jsonl"
"""In the capture folder: lines of the kind `redirected_write`, by `namespaces/processes.py`."""


def read_journal(path: Any) -> list[dict[str, Any]]:
    """All whole lines."""
    with open(path, "rb") as file:
        return _parsed(file.read())


def lines_of(folder: Any, kind: str) -> list[dict[str, Any]]:
    """All lines of that kind in a capture folder (a `Path`), without `kind` and `time_us`."""
    lines = (line for path in sorted(folder.glob("journal-*.jsonl")) for line in read_journal(path))
    return [
        {name: value for name, value in line.items() if name not in ("kind", "time_us")}
        for line in lines
        if line["kind"] == kind
    ]


class JournalReader:
    """Reads a journal while it is being written."""

    def __init__(self, path: Any) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[dict[str, Any]]:
        """The whole lines added since the last call."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return _parsed(whole)


def _parsed(data: bytes) -> list[dict[str, Any]]:
    texts = [text for text in data.decode("utf-8", errors="replace").split("\n") if text.strip()]
    try:
        lines = json.loads(f"[{','.join(texts)}]")  # all at once takes half the time
    except ValueError:
        lines = [line for text in texts for line in _parsed_line(text)]
    return [line for line in lines if isinstance(line, dict) and isinstance(line.get("kind"), str)]


def _parsed_line(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError:
        return []
