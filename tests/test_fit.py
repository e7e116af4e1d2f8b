"""Which GPUs a job fits on: how few runs tell, and that they tell what a run on each card tells."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import foretell
from foretell import api, gpus
from foretell.cli import main
from foretell.cli.fit import _names
from foretell.errors import ScriptError, UnsupportedError, UsageError
from foretell.jobs import CaptureOptions, Job
from foretell.plan import fit as module
from foretell.plan import fit_text, variants
from foretell.plan.fit import Fit, fit_job, select
from foretell.plan.variants import Outcome
from foretell.records import Estimate, Gpu, OutOfMemory, PeakMemory
from foretell.runs import Warm
from foretell.time import performance_of
from foretell.time.work import Item, Work
from foretell.units import GIB, MIB

ARCH_LIST = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
JOB = Job(command=("train.py",), gpu=gpus.find("rtx-3060"))
Behaviour = Callable[[Gpu], Outcome]


# --- made-up jobs -----------------------------------------------------------------------------------------------------


def outcome(gpu: Gpu, *, reserved: int, allocated: int | None = None, queries: Sequence[str] = ()) -> Outcome:
    """Of a job that reserves so much where it can; otherwise it runs out of memory."""
    device = reserved + gpu.context_bytes
    oom = OutOfMemory(step=1, phase="forward", requested_bytes=1, message="CUDA out of memory.", where="train.py:7")
    is_oom = device > gpu.total_bytes
    estimate = Estimate(
        engine="virtual", verdict="oom" if is_oom else "fits", gpu=gpu, torch_version="2.15.0", cuda_version="13.2",
        peak=PeakMemory(
            allocated_bytes=reserved if allocated is None else allocated, reserved_bytes=reserved, library_bytes=0,
            context_bytes=gpu.context_bytes, device_low_bytes=device - MIB, device_high_bytes=device + GIB,
            request_bytes=device + 2 * GIB,
        ),
        peak_step=0, steps=(), oom=oom if is_oom else None, phases_seen=(), caveats=(), redirected_writes=(),
        not_sent=(),
    )  # fmt: skip
    return Outcome(estimate=estimate, arch_list=ARCH_LIST, card_queries=tuple(queries))


def find(
    monkeypatch: pytest.MonkeyPatch,
    behaviour: Behaviour,
    cards: Iterable[str] | None = None,
    *,
    is_exact: bool = False,
    is_timed: bool = False,
) -> tuple[Fit, list[Gpu]]:
    """The result, and the cards of the runs in their order."""
    ran: list[Gpu] = []

    class Variants:
        def __init__(self, job: Job, **options: Any) -> None: ...
        def __enter__(self) -> Variants:
            return self

        def __exit__(self, *error: object) -> None: ...
        def run(self, jobs: Sequence[Job]) -> list[Outcome]:
            ran.extend(job.gpu for job in jobs)
            return [behaviour(job.gpu) for job in jobs]

    monkeypatch.setattr(module, "Variants", Variants)
    job = replace(JOB, options=CaptureOptions(time=is_timed))
    return fit_job(job, select(cards), is_exact=is_exact), ran


def verdicts(fit: Fit) -> dict[str, str]:
    return {card.gpu.name: card.verdict for card in fit.cards}


def test_cards_of_one_compute_capability_share_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found, ran = find(monkeypatch, lambda gpu: outcome(gpu, reserved=10 * GIB))
    kinds = {gpu.compute_capability for gpu in gpus.all_gpus() if gpu.compute_capability >= (7, 5)}
    # One kind has a second run, with the fewest SMs; and the smallest card that fits and the largest that does not.
    assert len(ran) == found.num_runs == len(kinds) + 1 + 2
    assert sum(gpu.total_bytes >= 1024 * GIB for gpu in ran) == len(ran) - 2
    assert {gpu.num_sms for gpu in ran if gpu.compute_capability == (8, 6) and gpu.total_bytes >= 1024 * GIB} == {
        10,
        84,
    }
    smallest = found.smallest
    assert smallest is not None
    assert (smallest.gpu.name, smallest.is_run, smallest.verdict) == ("a2", True, "fits")
    assert found.estimate.gpu == smallest.gpu


def test_a_card_has_its_own_context_in_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = find(monkeypatch, lambda gpu: outcome(gpu, reserved=4 * GIB))
    for card in found.cards:
        if card.verdict == "fits":
            gpu = card.gpu
            assert card.device_bytes == 4 * GIB + gpu.context_bytes
            assert card.request_bytes == 6 * GIB + gpu.context_bytes
            assert card.spare_bytes == gpu.total_bytes - card.request_bytes
            assert card.copies == gpu.total_bytes // card.request_bytes


def test_tight_means_that_only_the_request_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = find(monkeypatch, lambda gpu: outcome(gpu, reserved=10 * GIB))
    by_name = {card.gpu.name: card for card in found.cards}
    tight = by_name["rtx-3060"]
    assert (tight.verdict, tight.copies) == ("tight", 1)
    assert tight.spare_bytes is not None
    assert tight.spare_bytes < 0
    assert (by_name["rtx-3080"].verdict, by_name["rtx-3080"].copies) == ("oom", 0)


def test_cards_without_kernels_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found, ran = find(monkeypatch, lambda gpu: outcome(gpu, reserved=GIB))
    assert verdicts(found)["v100-16gb"] == verdicts(found)["gtx-1080"] == "cannot_run"
    assert all(gpu.compute_capability >= (7, 5) for gpu in ran)


def test_sms_in_the_middle_run_only_where_the_ends_of_a_range_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [gpu.name for gpu in gpus.all_gpus() if gpu.compute_capability == (8, 6)]
    all_sms = sorted({gpus.find(name).num_sms for name in names})

    def reserved(num_sms: int) -> int:
        return 20 * GIB + (num_sms > 48) * 2 * MIB

    found, ran = find(monkeypatch, lambda gpu: outcome(gpu, reserved=reserved(gpu.num_sms)), names)
    without_limit = sorted(gpu.num_sms for gpu in ran if gpu.total_bytes >= 1024 * GIB)
    assert 48 in without_limit
    assert all_sms[all_sms.index(48) + 1] in without_limit
    assert len(without_limit) <= 2 + len(all_sms).bit_length()
    for card in found.cards:
        assert card.device_bytes == reserved(card.gpu.num_sms) + card.gpu.context_bytes, card.gpu.name


def test_if_sms_matter_both_ends_of_every_kind_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = find(monkeypatch, lambda gpu: outcome(gpu, reserved=10 * GIB + gpu.num_sms * MIB))
    numbers = [
        card.device_bytes - card.gpu.num_sms * MIB - card.gpu.context_bytes for card in found.cards if card.device_bytes
    ]
    assert len(numbers) > 70
    assert set(numbers) == {10 * GIB}


def test_near_the_limit_each_card_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less memory the allocator frees its cache and gets along with 10 GiB."""

    def behaviour(gpu: Gpu) -> Outcome:
        has_room = gpu.total_bytes >= 13 * GIB + gpu.context_bytes
        return outcome(gpu, reserved=13 * GIB if has_room else 10 * GIB, allocated=9 * GIB)

    names = ["rtx-3080", "rtx-3060", "rtx-3090"]
    found, ran = find(monkeypatch, behaviour, names)
    assert verdicts(found) == {"rtx-3080": "oom", "rtx-3060": "tight", "rtx-3090": "fits"}
    assert {gpus.find("rtx-3080"), gpus.find("rtx-3060")} <= set(ran)
    by_name = {card.gpu.name: card for card in found.cards}
    assert by_name["rtx-3060"].device_bytes == 10 * GIB + gpus.find("rtx-3060").context_bytes
    assert by_name["rtx-3080"].device_bytes == 13 * GIB + gpus.find("rtx-3080").context_bytes  # what it wants
    assert by_name["rtx-3080"].reason == "out of memory in step 1 at train.py:7"


def test_a_script_that_asks_for_the_cards_memory_runs_on_every_card(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["rtx-3060", "rtx-3080", "rtx-3090"]

    def behaviour(gpu: Gpu) -> Outcome:
        return outcome(gpu, reserved=gpu.total_bytes // 2, queries=["the card's memory, at train.py:3"])

    found, ran = find(monkeypatch, behaviour, names)
    assert {gpus.find(name) for name in names} <= set(ran)
    assert [card.device_bytes for card in found.cards] == [
        gpu.total_bytes // 2 + gpu.context_bytes for gpu in (gpus.find(n) for n in ("rtx-3080", "rtx-3060", "rtx-3090"))
    ]
    assert "train.py:3" in found.notes[0]


def test_a_script_that_survives_running_out_of_memory_runs_on_every_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """It halves its batch until it fits."""

    def behaviour(gpu: Gpu) -> Outcome:
        reserved = 20 * GIB
        while reserved + gpu.context_bytes > gpu.total_bytes:
            reserved //= 2
        return outcome(gpu, reserved=reserved)

    found, _ = find(monkeypatch, behaviour, ["rtx-2060", "rtx-3060", "rtx-3080", "rtx-3090"])
    assert verdicts(found) == {"rtx-2060": "tight", "rtx-3080": "fits", "rtx-3060": "tight", "rtx-3090": "fits"}
    assert all(card.is_run for card in found.cards)
    assert "differently" in found.notes[0]


def test_guessed_slices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = find(monkeypatch, lambda gpu: outcome(gpu, reserved=GIB), ["b200:2g.45gb", "b200:3g.90gb"])
    assert found.notes == ("memory and SMs of b200:3g.90gb are guesses",)


def test_exact_runs_on_every_card(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["rtx-2060", "rtx-3060", "rtx-3080", "rtx-3090"]
    found, ran = find(monkeypatch, lambda gpu: outcome(gpu, reserved=10 * GIB), names, is_exact=True)
    assert {gpus.find(name) for name in names} <= set(ran)
    assert all(card.is_run and card.device_bytes == 10 * GIB + card.gpu.context_bytes for card in found.cards)


def test_what_fails_on_one_kind_of_card_is_said_of_its_cards_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def behaviour(gpu: Gpu) -> Outcome:
        if gpu.compute_capability < (8, 0):
            return Outcome(problem="the script itself failed: no bfloat16", is_failure=True, arch_list=ARCH_LIST)
        if gpu.compute_capability == (9, 0):
            return Outcome(problem="needs cufftExecC2C", arch_list=ARCH_LIST)
        return outcome(gpu, reserved=GIB)

    found, _ = find(monkeypatch, behaviour, ["t4", "rtx-3060", "h100"])
    assert verdicts(found) == {"rtx-3060": "fits", "t4": "cannot_run", "h100-sxm": "unknown"}
    assert {card.reason for card in found.cards} == {
        None,
        "the script itself failed: no bfloat16",
        "needs cufftExecC2C",
    }


@pytest.mark.parametrize(("is_failure", "error"), [(True, ScriptError), (False, UnsupportedError)])
def test_what_fails_everywhere_is_an_error(
    is_failure: bool, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error, match="no such file"):
        find(monkeypatch, lambda gpu: Outcome(problem="no such file", is_failure=is_failure, arch_list=ARCH_LIST))


def test_a_job_that_fits_nowhere_has_its_need(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = find(monkeypatch, lambda gpu: outcome(gpu, reserved=300 * GIB))
    assert found.smallest is None
    assert found.estimate.need is not None
    assert found.estimate.need.device_bytes == 300 * GIB + gpus.find("b200").context_bytes
    assert "Does not fit on any of the" in fit_text.headline(found)


def test_the_table_fits_into_80_columns_and_a_reason_stands_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def behaviour(gpu: Gpu) -> Outcome:
        if gpu.compute_capability == (9, 0):
            return Outcome(problem="the script itself failed: KeyError\n  last line", is_failure=True)
        return outcome(gpu, reserved=100 * GIB if gpu.compute_capability == (10, 0) else 9 * GIB)

    cards = select(["t4", "gtx-1080", "rtx-3060", "rtx-3080", "rtx-3090", "a100-pcie-80gb", "h100", "b200"], mig=True)
    found, _ = find(monkeypatch, behaviour, [gpu.name for gpu in cards])
    text = rendered(found)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith(" a100-pcie-80gb:3g.40gb")] == [
        " a100-pcie-80gb:3g.40gb    39.25     9.29    27.96        3   fits"
    ]
    assert text.count("KeyError") == 1
    assert "last line" not in text
    assert "…" not in text


# --- times ------------------------------------------------------------------------------------------------------------

STEP = Work(
    items=(Item(kernel_class="elementwise", name="aten::add", issued_us=0, bytes=1e10),), kind="training",
    loader_us=0.0, has_workers=False, wall_us=1e4, num_samples=32, num_graphs=0,
)  # fmt: skip


def test_one_run_gives_the_time_on_every_card_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def behaviour(gpu: Gpu) -> Outcome:
        return replace(outcome(gpu, reserved=9 * GIB), work=STEP)

    cards = ["rtx-3060", "rtx-3090", "rtx-3070"]
    found, ran = find(monkeypatch, behaviour, cards, is_timed=True)
    assert "rtx-3090" not in [gpu.name for gpu in ran[2:]]  # it has no run of its own but that of its kind
    by_name = {card.gpu.name: card for card in found.cards}
    for name in ("rtx-3060", "rtx-3090"):
        own = performance_of(STEP, gpus.find(name))
        assert by_name[name].performance == own
    assert by_name["rtx-3070"].performance is None  # it does not fit
    assert found.fastest is by_name["rtx-3090"]
    document = found.document()
    assert document["fastest"] == "rtx-3090"
    timed = {card["gpu"]: card.get("time", {}).get("step_ms") for card in document["cards"]}
    assert timed["rtx-3060"] > 2 * timed["rtx-3090"]
    assert timed["rtx-3070"] is None
    text = rendered(found)
    assert "A step takes least on rtx-3090: about " in text
    assert "copies" not in text


def test_why_there_are_no_times_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = find(monkeypatch, lambda gpu: outcome(gpu, reserved=GIB), ["rtx-3060"], is_timed=True)
    assert found.fastest is None
    assert [note for note in found.notes if note.startswith("no step times: no second training step")]
    assert "copies" in rendered(found)


def test_an_outcome_is_stored_with_its_time_and_work() -> None:
    estimate = outcome(JOB.gpu, reserved=GIB).estimate
    assert estimate is not None
    timed = Outcome(estimate=replace(estimate, performance=performance_of(STEP, JOB.gpu)), work=STEP)
    again = variants._read(json.loads(json.dumps(variants._written(timed))))
    assert again is not None
    assert again.work == STEP
    assert again.estimate is not None
    assert again.estimate.performance == performance_of(STEP, JOB.gpu)


def rendered(found: Fit) -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    fit_text.render(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- which cards ------------------------------------------------------------------------------------------------------


def test_cards_are_selected_by_class_and_by_the_memory_they_are_sold_with() -> None:
    found = {gpu.name for gpu in select(gpu_class="datacenter", min_memory="24GB", max_memory="24GB")}
    assert found == {"p40", "a10", "a10g", "a30", "l4"}
    assert {gpu.name for gpu in select(["a30"], mig=True)} == {"a30", "a30:1g.6gb", "a30:2g.12gb", "a30:4g.24gb"}
    assert [gpu.name for gpu in select(["4090", "rtx-4090"])] == ["rtx-4090"]


@pytest.mark.parametrize("options", [{"min_memory": "1TB"}, {"max_memory": "2GiB"}, {"names": []}])
def test_selecting_no_card_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="foretell gpus"):
        select(options.pop("names", None), **options)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rtx-3060,4090", ["rtx-3060", "4090"]),
        ("a100, 24GiB,sm89,128sms, h100", ["a100", "24GiB,sm89,128sms", "h100"]),
        ("24GiB,sm_89,32GiB,cc90", ["24GiB,sm_89", "32GiB,cc90"]),
    ],
)
def test_a_list_of_gpus_may_contain_descriptions(text: str, names: list[str]) -> None:
    assert _names(text) == names


# --- real runs --------------------------------------------------------------------------------------------------------

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.Conv2d(64, 64, 3)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for size in (128, 96, 128):
    x = torch.randn(size, 3, 160, 160, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CARDS = ["t4", "rtx-2060", "a100-40gb:1g.5gb", "rtx-3060", "rtx-a2000", "a2", "rtx-5060"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("in_forks")
def test_each_card_has_the_numbers_of_a_run_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm: Warm
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["fit", "--quiet", "--gpus", ",".join(CARDS), "--json", "-", str(tmp_path / "train.py")]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "foretell.fit/1"
    assert len({card["verdict"] for card in document["cards"]}) == 3  # or the job says nothing
    options = CaptureOptions(stdout="file")
    for card in document["cards"]:
        job = Job(command=(str(tmp_path / "train.py"),), gpu=gpus.find(card["gpu"]), options=options)
        estimate = api.find_need(api.run(job, warm=warm)).estimate
        need = estimate.need
        assert (card["verdict"] == "oom") == (estimate.verdict == "oom"), card
        assert card["device_bytes"] == (need.device_bytes if need else estimate.device_bytes), card
        assert card["request_bytes"] == (need.request_bytes if need else estimate.peak.request_bytes), card
    assert document["estimate"]["gpu"]["name"] == document["smallest"]


@pytest.mark.usefixtures("in_forks")
def test_the_cpu_engine_needs_no_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(ASKS.format(""))
    words = ["fit", "--quiet", "--engine", "cpu", "--gpus", "v100,rtx-3060", "--json", "-", str(tmp_path / "train.py")]
    assert main(words) == 0
    verdicts = {card["gpu"]: card["verdict"] for card in json.loads(capsys.readouterr().out)["cards"]}
    assert verdicts == {"v100-16gb": "fits", "rtx-3060": "fits"}


@pytest.mark.usefixtures("in_forks")
def test_the_python_function_takes_a_function(tmp_path: Path) -> None:
    def train(size: int) -> None:
        import torch

        layer = torch.nn.Linear(1024, 1024).cuda()
        layer(torch.randn(size, 1024, device="cuda")).sum().backward()

    found = foretell.fit(train, args=(1024,), gpus=["rtx-3060", "rtx-3060-8gb"], workers=1)
    assert [card.verdict for card in found.cards] == ["fits", "fits"]
    assert found.smallest is not None
    assert found.smallest.gpu.name == "rtx-3060-8gb"


@pytest.mark.usefixtures("in_forks")
def test_a_script_that_fails_shows_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.zeros(1, device='cuda')\nraise SystemExit('no data')")
    assert main(["fit", "--quiet", "--gpus", "rtx-3060", str(tmp_path / "train.py")]) == 1
    assert "no data" in capsys.readouterr().err


# --- questions about the card -----------------------------------------------------------------------------------------

ASKS = """
import torch
{}
layer = torch.nn.Linear(8, 8).cuda()
layer(torch.randn(8, 8, device="cuda")).sum().backward()
"""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("torch.cuda.mem_get_info()", "the card's memory"),
        ("torch.cuda.get_device_properties(0).total_memory", "the card's memory"),
        ("torch.cuda.set_per_process_memory_fraction(0.5)", "the card's memory"),
        ("torch.cuda.get_device_name(0)", "the card's name"),
        ("torch.cuda.get_device_properties('cuda').name", "the card's name"),
        ("torch.cuda.get_device_properties(0).multi_processor_count", None),
        ("torch.cuda.get_device_capability()", None),
        ("torch.cuda.max_memory_allocated()", None),
    ],
)
@pytest.mark.parametrize("engine", ["virtual", "cpu"])
def test_the_trace_says_what_the_script_asked_about_the_card(
    engine: str, line: str, what: str | None, tmp_path: Path, warm: Warm
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ASKS.format(line))
    options = replace(JOB.options, engine=engine, stdout="file")
    run = api.run(replace(JOB, command=(str(script),), options=options), warm=warm)
    assert run.trace.card_queries == ((f"{what}, at {script}:3",) if what else ())
