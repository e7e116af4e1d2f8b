"""Out-of-memory messages: what is read from them, the cause, and what helps."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.cli import main
from foretell.errors import UsageError
from foretell.postmortem import read_oom
from foretell.postmortem.balance import balance_of, rounding_of
from foretell.postmortem.diagnosis import TITLES
from foretell.postmortem.message import OomMessage, find_messages
from foretell.units import GIB, KIB, MIB, parse_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).parent / "data" / "oom_messages.toml"
MESSAGES: list[dict[str, Any]] = tomllib.loads(DATA.read_text("utf-8"))["message"]
SIZES = ("requested", "total", "free", "own", "allocated", "unallocated", "private", "limit")
NEWEST = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.00 GiB is "
    "free. "
    "Process 41 has 8.00 GiB memory in use. Including non-PyTorch memory, this process has 14.64 GiB memory in use. Of "
    "the "
    "allocated memory 13.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. If "
    "reserved"
)


def size_of(text: str) -> int | None:
    """Of what PyTorch prints; an empty text is no size."""
    return parse_bytes(text.replace("bytes", "B")) if text else None


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: row["about"])
def test_a_posted_message_is_read_and_its_cause_named(row: dict[str, Any]) -> None:
    explanation = read_oom(row["text"])
    message = explanation.message
    for name in SIZES:
        if name in row:
            expected, found = size_of(row[name]), getattr(message, f"{name}_bytes")
            assert found == expected if expected is None else abs(found - expected) <= 1, name
    for name in ("gpu", "rank", "backend", "source"):
        assert getattr(message, name) == row.get(name, getattr(message, name))
    assert len(message.processes) == row.get("num_processes", len(message.processes))
    assert explanation.diagnosis.cause == row["cause"], explanation.diagnosis.why
    assert row.get("helps", "") in explanation.diagnosis.helps
    assert explanation.num_messages == 1


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: row["about"])
@pytest.mark.parametrize("columns", [37, 80])
def test_a_terminal_may_break_its_lines_anywhere(row: dict[str, Any], columns: int) -> None:
    broken = "\n".join(
        line[at : at + columns] for line in row["text"].split("\n") for at in range(0, len(line), columns)
    )
    whole, found = find_messages(row["text"])[0], find_messages(broken)[0]
    same = ("source", "backend", "wording", "requested_bytes", "total_bytes", "allocated_bytes", "processes")
    assert [getattr(found, name) for name in same] == [getattr(whole, name) for name in same]


@pytest.mark.parametrize(
    "around",
    [
        "\x1b[31m{}\x1b[0m",
        "\x1b]0;title\x07{}",
        "> > {}",
        "step 4 loss 0.1\r{}\r\n",
        "{{'error': '{}\\n', 'rank': 3}}",
        "\ufeff{}\u200b",
    ],
)
def test_what_terminals_and_loggers_add_does_not_matter(around: str) -> None:
    (message,) = find_messages(around.format(NEWEST))
    assert (message.requested_bytes, message.own_bytes) == (2 * GIB, round(14.64 * GIB))


@pytest.mark.parametrize("prefix", ["(Worker pid=9) ERROR [core.py:12] ", "[rank1]: ", "SUBPROCESS: │ ", "worker | "])
def test_a_prefix_on_each_part_of_a_broken_line_does_not_matter(prefix: str) -> None:
    lines = textwrap.wrap(NEWEST, 60)
    (message,) = find_messages("".join(f"{prefix}{line}\n" for line in lines))
    assert message.unallocated_bytes == GIB
    assert message.processes == ((41, 8 * GIB),)


def test_messages_with_numbers_come_first_and_repetitions_count_once() -> None:
    other = NEWEST.replace("2.00 GiB", "3.00 GiB", 1)
    text = f"CUDA error: out of memory\n{NEWEST}\n{NEWEST}\n{other}\n"
    assert [message.requested_bytes for message in find_messages(text)] == [2 * GIB, 3 * GIB, None]
    assert read_oom(text, message=2).message.line == 4
    with pytest.raises(UsageError, match="from 1 to 3"):
        read_oom(text, message=4)


def test_a_text_without_a_message_says_what_was_looked_for() -> None:
    with pytest.raises(UsageError, match="Looked for PyTorch's `CUDA out of memory"):
        read_oom("Killed\nValueError: out of range\n")


def test_a_text_of_nothing_but_beginnings_is_read_in_no_time() -> None:
    text = "CUDA out of memory. " * 100_000 + "Process 1 has " * 30_000 + 'File "' * 50_000
    assert len(find_messages(text)) == 1


# --- messages in each wording, made up --------------------------------------------------------------------------------


def shown(size: int) -> str:
    """As `format_size` of c10/cuda/CUDACachingAllocator.cpp."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size > unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def made_up(seed: int) -> tuple[str, OomMessage]:
    pick = random.Random(seed)
    total = pick.randrange(2 * GIB, 192 * GIB)
    free, allocated, unallocated, outside, other = (int(total * pick.random() / 5) for _ in range(5))
    requested = pick.randrange(2 * MIB, total)
    limit = pick.choice([None, total // 2])
    private = pick.choice([None, allocated // 2])
    backend = pick.choice(["CUDA", "HIP", "XPU"])
    wording = pick.choice(["cached", "reserved", "capacity", "async"])
    begin = f"{backend} out of memory. Tried to allocate {shown(requested)}"
    values: dict[str, Any] = {
        "requested_bytes": requested, "total_bytes": total, "free_bytes": free, "allocated_bytes": allocated,
    }  # fmt: skip
    if wording == "async":
        text = (
            "Allocation on device 3 would exceed allowed memory. (out of memory)\nCurrently allocated     : "
            f"{shown(allocated)}"
            f"\nRequested               : {shown(requested)}\nDevice limit            : {shown(total)}\nFree "
            "(according to "
            f"CUDA): {shown(free)}\nPyTorch limit (set by user-supplied memory fraction)\n    : "
            f"{shown(limit or 1 << 64)}"
        )
        return text, OomMessage(source="allocator", wording="async", gpu=3, limit_bytes=limit, **values)
    values |= {"backend": backend, "gpu": 3, "unallocated_bytes": unallocated}
    old = f"{begin} (GPU 3; {shown(total)} total capacity; {shown(allocated)} already allocated; {shown(free)} free; "
    if wording == "cached":
        return f"{old}{shown(unallocated)} cached)", OomMessage(source="allocator", wording="cached", **values)
    if wording == "reserved":
        text = f"{old}{shown(allocated + unallocated)} reserved in total by PyTorch)"
        return text, OomMessage(source="allocator", wording="reserved", **values)
    own = allocated + unallocated + outside
    processes = tuple((pick.randrange(1, 1 << 22), other) for _ in range(pick.randrange(3)))
    text = (
        f"{begin}. GPU 3 has a total {pick.choice(['capacity', 'capacty'])} of {shown(total)} of which {shown(free)} "
        "is free. "
        + "".join(f"Process {pid} has {shown(size)} memory in use. " for pid, size in processes)
        + f"Including non-PyTorch memory, this process has {shown(own)} memory in use. "
        + (f"{shown(limit)} allowed; " if limit else "")
        + f"Of the allocated memory {shown(allocated)} is allocated by PyTorch, "
        + (f"with {shown(private)} allocated in private pools (e.g., CUDA Graphs), " if private else "")
        + f"and {shown(unallocated)} is reserved by PyTorch but unallocated. If reserved but unallocated memory is"
    )
    values |= {"own_bytes": own, "processes": processes, "limit_bytes": limit, "private_bytes": private}
    return text, OomMessage(source="allocator", wording="capacity", **values)


@pytest.mark.parametrize("seed", range(200))
def test_a_message_in_each_wording_is_read_as_it_was_written(seed: int) -> None:
    text, written = made_up(seed)
    (found,) = find_messages(f"RuntimeError: {text}")
    for name in OomMessage.__dataclass_fields__:
        expected, value = getattr(written, name), getattr(found, name)
        if name.endswith("_bytes") and expected is not None:
            expected = expected if expected < 1 << 62 else None
            tolerance = 3 * rounding_of(written.total_bytes or 0)
            assert value is not None, name
            assert abs(value - expected) <= tolerance, name
        elif name == "processes":
            assert [pid for pid, _ in value] == [pid for pid, _ in expected]
        else:
            assert value == expected, name
    explanation = read_oom(text)
    balance = explanation.balance
    assert balance is not None
    assert explanation.diagnosis.cause in TITLES
    parts = sum(part.bytes for part in balance.parts())
    left = balance.missing_bytes if balance.missing_bytes < 0 or balance.is_complete else 0
    assert abs(parts + left - balance.total_bytes) <= balance.rounding_bytes


# --- where it was -----------------------------------------------------------------------------------------------------


def test_parts_add_up_to_the_card() -> None:
    balance = balance_of(find_messages(NEWEST)[0])
    assert balance is not None
    assert balance.is_complete
    assert (balance.others_bytes, round(balance.outside_bytes / GIB, 2)) == (8 * GIB, 0.64)


def test_a_process_that_leaves_no_room_for_pytorch_is_this_one() -> None:
    text = NEWEST.replace("Including non-PyTorch memory, this process", "Process 7")
    balance = balance_of(find_messages(text)[0])
    assert balance is not None
    assert balance.own_process == 7
    assert balance.others_bytes == 8 * GIB
    assert "Process 7 is this process itself" in " ".join(read_oom(text).diagnosis.also)


def test_what_nobody_is_listed_for_counts_as_a_neighbour() -> None:
    text = NEWEST.replace("Process 41 has 8.00 GiB memory in use. ", "")
    explanation = read_oom(text)
    assert explanation.balance is not None
    assert explanation.balance.missing_bytes == pytest.approx(8 * GIB, abs=20 * MIB)
    assert explanation.diagnosis.cause == "neighbour"


def test_cards_are_found_by_their_memory() -> None:
    assert "rtx-4090" in read_oom(NEWEST).cards
    assert read_oom(NEWEST.replace("CUDA", "HIP")).cards == ()


@pytest.mark.parametrize("how", ["named in the text", "given"])
def test_a_card_smaller_than_expected_is_the_cause(how: str) -> None:
    from foretell import gpus

    text = NEWEST if how == "given" else f"GPU 0: NVIDIA A100-SXM4-80GB\n{NEWEST}"
    expected = gpus.find("a100-80gb") if how == "given" else None
    assert read_oom(text, expected=expected).diagnosis.cause == "small_card"
    mig = read_oom(f"MIG 2g.20gb\n{text}", expected=expected).diagnosis
    assert "2g.20gb" in mig.because


def test_the_traceback_tells_what_was_being_done() -> None:
    own, library = "/home/ada/secret/train.py", "/x/site-packages/torch/optim/adam.py"
    frames = f'  File "{own}", line 7, in main\n  File "{library}", line 9, in step\n'
    full = NEWEST.replace("8.00 GiB", "0.10 GiB").replace("1.00 GiB", "0.10 GiB").replace("13.00", "22.40")
    explanation = read_oom(f"Traceback (most recent call last):\n{frames}torch.OutOfMemoryError: {full}")
    assert explanation.diagnosis.cause == "too_large"
    assert "optimizer" in explanation.diagnosis.helps
    assert [frame.place for frame in explanation.message.frames] == ["train.py:7", "adam.py:9"]
    assert "secret" not in explanation.to_json()


def test_ranks_on_one_gpu_are_noticed() -> None:
    text = "".join(f"[rank{rank}]: {NEWEST.replace('Process 41', f'Process {50 + rank}')}\n" for rank in range(3))
    assert "set_device(local_rank)" in read_oom(text).diagnosis.helps


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reads_files_and_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.txt"
    path.write_text(NEWEST)
    assert main(["explain-oom", str(path), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["cause"]) == ("foretell.explain-oom/1", "neighbour")
    path.write_bytes(NEWEST.encode("utf-16"))  # as PowerShell writes it
    assert main(["explain-oom", "--json", str(tmp_path / "out.json"), str(path)]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == document
    done = subprocess.run(
        [sys.executable, "-m", "foretell", "explain-oom", "-"], input=NEWEST, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "other processes on the same GPU" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/nonexistent"], "cannot read /nonexistent: No such file"),
        ([], "the following arguments are required: FILE"),
        (["a", "b"], "Put -- before the script: -- b"),
        (["a", "--message", "0"], "--message 0: must be a number"),
        (["a", "--nonsense"], "unknown option --nonsense"),
        (["/dev/zero"], "a device, not a file"),
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-oom", *words]) == 2
    assert said in capsys.readouterr().err


def test_no_message_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.txt"
    path.write_text("all is well\n")
    assert main(["explain-oom", str(path)]) == 2
    assert "no out-of-memory message found" in capsys.readouterr().err


def test_a_script_needs_a_card(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="The message is from HIP"):
        foretell.explain_oom(NEWEST.replace("CUDA", "HIP"), job=["train.py"])
    with pytest.raises(UsageError, match=r"No known GPU has the 3\.21 GiB"):
        foretell.explain_oom(NEWEST.replace("23.64", "3.21"), job=["train.py"])
