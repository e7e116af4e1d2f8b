"""Reads the cases of a folder of measured runs (CSV files, one per set).

Every set has a reader here: which script repeats a row, on which card, and what the measured number includes.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from foretell.errors import UsageError
from foretell.evaluation import published, times
from foretell.evaluation.records import Case, OtherEstimate
from foretell.units import MIB

Row = dict[str, str]

A100_CONTEXT_BYTES = 1429 * MIB
"""For the 2024 campaign, whose numbers include it: whole-GPU nvidia-smi with an empty process."""
TORCH_OF_CAMPAIGNS = {"xmem": ("2.6",), "a100-2024": ("2.4", "2.5", "2.6")}
"""The versions with which a campaign was measured, as far as they are known; of the second inferred."""
_A100 = "a100-40gb"
_NAMED_CNNS = {"vgg16", "resnet50", "mobilenetV2", "efficientnet", "inception"}
_TIMM_FULL_MIB = 39_000
_CARD_SHARED = ("1", range(769, 950))
"""Step and places in the order of starts. nvidia-smi, which counts all processes, showed 498 to 2,020 MiB more of all
four known runs of transformer_a100 in these places than PyTorch needs; of the 41 others, within 20 MiB. They are
judged like all runs, but no constant is fitted to them."""
_MOST_DRAWN, _NUM_DRAWS = 26, 3
"""Up to 26 lines, a batch without a line of full length is among the four of a run in more than one of 20 runs, by the
draws of causal_lm.py."""


def read(folder: Path, sets: Sequence[str] = ()) -> list[Case]:
    """The cases of the named sets, or of all sets in the folder."""
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}. Give a folder with measured runs: {_names()}.")
    unknown = sorted(set(sets) - set(READERS))
    if unknown:
        raise UsageError(f"--sets {','.join(unknown)}: unknown set. Known sets: {', '.join(READERS)}.")
    present = [name for name in READERS if (folder / f"{name}.csv").is_file()]
    missing = sorted(set(sets) - set(present))
    if missing or not present:
        raise UsageError(f"{folder} does not contain {', '.join(f'{name}.csv' for name in missing) or _names()}.")
    return [case for name in present if not sets or name in sets for case in _read_set(folder / f"{name}.csv", name)]


def _names() -> str:
    return ", ".join(f"{name}.csv" for name in READERS)


def _read_set(path: Path, name: str) -> Iterator[Case]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(enumerate(csv.DictReader(file), start=2))  # as an editor counts: the header is line 1
    read_row = READERS[name]
    try:
        if name == "timm_a100":
            rows = _that_succeeded(rows)
        for number, row in rows:
            found = read_row(f"{name}/{number}", row)
            yield from (found,) if isinstance(found, Case) else found or ()
    except (KeyError, ValueError) as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}. Not a file of measured runs?") from None


# --- the sets ---------------------------------------------------------------------------------------------------------


def _named_model(workload: str, tools: Sequence[str]) -> Callable[[str, Row], Case | None]:
    """Named models on cards of 8, 12 and 40 GB; the measured number does not include the bare context."""

    def read_row(key: str, row: Row) -> Case:
        return Case(
            key=key,
            set=key.split("/")[0],
            workload=workload,
            arguments=_arguments(row, "model", "optimizer", "batch_size", zero_grad="zero_grad_mode"),
            gpu={"a100-sxm4-40gb": _A100}.get(row["gpu"], row["gpu"]),
            measured_bytes=int(row["measured_bytes"]),
            is_oom=row["oom"] == "true",
            context_bytes=None,
            campaign="xmem",
            draws=_other_lines(row) if workload == "causal_lm.py" else (),
            factors={
                "model": row["model"],
                "optimizer": row["optimizer"],
                "batch_size": float(row["batch_size"]),
                "zero_grad": row["zero_grad_mode"],
                "gpu": row["gpu"],
            },
            others={tool: _other(row, column) for tool, column in zip(tools, map(str.lower, tools), strict=True)},
        )

    return read_row


def _other_lines(row: Row) -> tuple[tuple[str, ...], ...]:
    """The texts of small batches are not known; in a large batch there is always one of the full length."""
    is_drawn = int(float(row["batch_size"])) <= _MOST_DRAWN
    return tuple(("--lines", str(seed)) for seed in range(1, 1 + _NUM_DRAWS)) if is_drawn else ()


def _other(row: Row, column: str) -> OtherEstimate:
    num_bytes = float(row.get(f"{column}_bytes") or -1)
    is_oom = row.get(f"{column}_oom")
    seconds = row.get(f"{column}_seconds")
    return OtherEstimate(
        num_bytes=int(num_bytes) if num_bytes > 0 else None,
        is_oom=is_oom == "true" if is_oom and num_bytes > 0 else None,
        seconds=float(seconds) if seconds else None,
    )


def _campaign_case(key: str, row: Row, workload: str, arguments: tuple[str, ...], factors: Sequence[str]) -> Case:
    return Case(
        key=key,
        set=key.split("/")[0],
        workload=workload,
        arguments=arguments,
        gpu=_A100,
        measured_bytes=int(float(row["max_gpu_memory_mib"])) * MIB,
        is_oom=row.get("status") == "OOM_CRASH",
        context_bytes=A100_CONTEXT_BYTES,
        campaign="a100-2024",
        factors={"batch_size": float(row["batch_size"]), **{name: row[name] for name in factors}},
        measured=times.shares_of(row),
    )


def _mlp(key: str, row: Row) -> Case | None:
    if row["usable"] != "True":
        return None
    columns = ("input_size", "output_size", "hidden_layers", "architecture", "batch_size", "activation")
    arguments = (*_arguments(row, *columns), *_flags(row))
    if key.startswith("mlp_a100/"):
        arguments += ("--softmax",)
    return _campaign_case(key, row, "mlp.py", arguments, ["architecture", "activation"])


def _cnn(key: str, row: Row) -> Case | None:
    if row["note"]:  # the script died before it trained
        return None
    columns = (
        "input_channels", "num_classes", "depth", "architecture", "base_filters", "batch_size", "image_size",
        "activation",
    )  # fmt: skip
    arguments = (*_arguments(row, *columns), *_flags(row))
    if row["dense_pooling_frequency"]:
        arguments += ("--pooling-frequency", str(int(float(row["dense_pooling_frequency"]))))
    return _campaign_case(key, row, "synthetic_cnn.py", arguments, ["architecture", "activation", "use_batch_norm"])


def _transformer_a100(key: str, row: Row) -> Case:
    columns = (
        "num_classes", "embedding_size", "num_layers", "num_heads", "ff_hidden_size", "seq_length", "vocab_size",
        "batch_size",
    )  # fmt: skip
    arguments = _arguments(row, *columns, dropout="dropout_rate")
    last = int(row.get("num_samples") or 0) % int(row["batch_size"])
    if last:
        arguments += ("--last-batch", str(last))
    case = _campaign_case(key, row, "transformer_encoder.py", arguments, ["num_layers", "seq_length"])
    step, places = _CARD_SHARED
    is_in_doubt = row.get("step") == step and int(row.get("launcher_index") or 0) in places
    return replace(case, is_in_doubt=is_in_doubt)


def _that_succeeded(rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """The timm data does not record failures: drop runs that fill the card or use less than a smaller batch did."""
    most: dict[str, float] = {}
    good = []
    for number, row in sorted(rows, key=lambda each: int(each[1]["batch_size"])):
        measured = float(row["measured_mib"])
        if measured < _TIMM_FULL_MIB and measured > 0.98 * most.get(row["model"], 0.0):
            good.append((number, row))
        most[row["model"]] = max(most.get(row["model"], 0.0), measured)
    return sorted(good)


def _timm(key: str, row: Row) -> Case:
    faketensor = float(row["faketensor_mib"]) if row["faketensor_mib"] else -1.0
    return Case(
        key=key,
        set="timm_a100",
        workload="timm_model.py",
        arguments=_arguments(row, "model", "batch_size"),
        gpu=_A100,
        measured_bytes=int(float(row["measured_mib"])) * MIB,
        is_oom=False,
        context_bytes=A100_CONTEXT_BYTES,
        campaign="a100-2024",
        is_script_known=False,
        factors={"model": row["model"].split("_")[0], "batch_size": float(row["batch_size"])},
        others={"FakeTensor": OtherEstimate(num_bytes=int(faketensor * MIB) if faketensor > 0 else None, is_oom=None)},
    )


def _real_model(key: str, row: Row) -> Case | None:
    """Training details of the other models are unknown, and one subset is listed twice."""
    if row["model"] not in _NAMED_CNNS or "subset" in row["source"]:
        return None
    is_2025 = "2025" in row["source"]
    columns = {"GPUMemNet": "gpumemnet_upper_bound_mib", "FakeTensor": "faketensor_mib", "Horus": "horus_mib"}
    return Case(
        key=key,
        set="real_models_a100",
        workload="imagenet_cnn.py",
        arguments=_arguments(row, "model", "batch_size"),
        gpu=_A100,
        measured_bytes=int(float(row["measured_mib"])) * MIB,
        is_oom=False,
        context_bytes=published.A100_2025_CONTEXT_BYTES if is_2025 else A100_CONTEXT_BYTES,
        campaign="a100-2025" if is_2025 else "a100-2024",
        factors={
            "model": row["model"],
            "batch_size": float(row["batch_size"]),
            "campaign": "2025" if is_2025 else "2024",
        },
        others={
            tool: OtherEstimate(num_bytes=int(float(row[column]) * MIB) if row[column] else None, is_oom=None)
            for tool, column in columns.items()
        },
    )


READERS: dict[str, Callable[[str, Row], Case | Iterable[Case] | None]] = {
    "transformer": _named_model("causal_lm.py", ["xMem", "DNNMem", "SchedTune", "LLMem"]),
    "cnn_rtx": _named_model("torchvision_cnn.py", ["xMem", "DNNMem", "SchedTune"]),
    "mlp_plain_a100": _mlp,
    "mlp_a100": _mlp,
    "cnn_a100": _cnn,
    "transformer_a100": _transformer_a100,
    "timm_a100": _timm,
    "real_models_a100": _real_model,
    "published_jobs": published.job,
    published.BOUNDS: published.decisions,
    "time_timm_train_3090": times.timm_train,
    "time_timm_infer": times.timm_infer,
    "time_transformer_fp32": times.transformer_fp32,
}


def _arguments(row: Row, *columns: str, **renamed: str) -> tuple[str, ...]:
    """`--batch-size 64` for the column batch_size; `zero_grad="zero_grad_mode"` gives --zero-grad."""
    options = {**{column: column for column in columns}, **renamed}
    return tuple(word for name, column in options.items() for word in (f"--{name.replace('_', '-')}", row[column]))


def _flags(row: Row) -> tuple[str, ...]:
    dropout = ("--dropout", row["dropout_rate"]) if row["use_dropout"] == "True" else ()
    return (*dropout, *(("--batch-norm",) if row["use_batch_norm"] == "True" else ()))
