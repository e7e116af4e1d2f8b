"""`--emit`: settings of schedulers and frameworks. What those tools say of them: tests/test_emit_parsers.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import foretell
from capture_folder import training_run
from conftest import ROOT
from emit_examples import COMMAND, EXAMPLE, example, settings_of
from foretell import gpus
from foretell.cli import main, settings
from foretell.errors import DoesNotFitError, UnsupportedError, UsageError
from foretell.plan.emit import BATCH_TOOLS, MEMORY_TOOLS, TOOLS, emit
from foretell.plan.emit.batches import batch_of
from foretell.plan.emit.decision import Decision
from foretell.plan.fit import CardFit, Fit
from foretell.plan.maximum import Evaluation, Maximum
from foretell.records import EndedBy, Need, OutOfMemory, Together
from foretell.trace import save
from foretell.units import GIB, MIB

PAGE = ROOT / "docs" / "emit.md"


def lines_of(text: str) -> list[str]:
    """Without comments; those of Slurm that are settings count."""
    return [line for line in text.splitlines() if line.startswith("#SBATCH") or not line.startswith("#")]


def document(text: str) -> Any:
    return yaml.safe_load(text)


def limits(text: str) -> dict[str, int]:
    found = document(text)["spec"]["containers"][0]["resources"]["limits"]
    return {name: int(quantity) for name, quantity in found.items()}


# --- numbers ----------------------------------------------------------------------------------------------------------

BYTES: dict[str, Callable[[str, int], float]] = {
    "slurm": lambda text, total: int(re.findall(r"shard:(\d+)", text)[-1]) * GIB,
    "kai": lambda text, total: int(document(text)["metadata"]["annotations"]["gpu-memory"]) * MIB,
    "hami": lambda text, total: limits(text)["nvidia.com/gpumem"] * MIB,
    "volcano": lambda text, total: limits(text)["volcano.sh/vgpu-memory"] * MIB,
    "ray": lambda text, total: float(re.findall(r'"num_gpus": ([\d.]+)', text)[0]) * total,
}
STEP = {"slurm": GIB, "kai": MIB, "hami": MIB, "volcano": MIB}
CARDS = gpus.all_gpus()


@pytest.mark.parametrize("tool", BYTES)
@given(card=st.sampled_from(CARDS), share=st.floats(0.01, 0.8))
def test_what_is_asked_for_is_the_request_rounded_up(tool: str, card: Any, share: float) -> None:
    request = int(card.total_bytes * share)
    asked = BYTES[tool](emit(tool, example(request, gpu=card.name)), card.total_bytes)
    step = STEP.get(tool, card.total_bytes / 10_000)
    assert request - 1 <= asked < request + step + 1  # 1 byte: a share of Ray is a float


@pytest.mark.parametrize(("extra", "mib"), [(-1, 100), (0, 100), (1, 101)])
def test_a_byte_more_is_a_mebibyte_more(extra: int, mib: int) -> None:
    assert limits(emit("hami", example(100 * MIB + extra)))["nvidia.com/gpumem"] == mib


def test_a_shard_has_the_size_the_site_gives_it() -> None:
    estimate = example(10 * GIB + 1)
    assert lines_of(emit("slurm", estimate)) == ["#SBATCH --gres=shard:11"]
    assert lines_of(emit("slurm", estimate, shard_bytes=100 * MIB)) == ["#SBATCH --gres=shard:103"]


@given(request=st.integers(1, 178 * GIB))
def test_a_class_of_cards_has_no_card_that_is_too_small(request: int) -> None:
    """Sold sizes by hand: what the tools' catalogues say of each card."""
    sold = {
        "p40": 24, "a10": 24, "a10g": 24, "l4": 24, "rtx-4090": 24, "t4": 16, "a2": 16, "rtx-3080": 10,
        "a40": 48, "l40s": 48, "rtx-2080-ti": 11, "a100-40gb": 40, "a100-pcie-40gb": 40, "a100-80gb": 80,
        "h100-pcie": 80,
        "h100-nvl": 94,
        "h20": 96, "h200": 141, "b200": 180, "rtx-5090": 32, "v100-32gb": 32, "rtx-5060": 8, "rtx-a4500": 20,
    }  # fmt: skip
    estimate = example(request, gpu="b200")
    size = int(document(emit("skypilot", estimate))["resources"]["accelerators"][len("nvidia:") :].removesuffix("GB+"))
    assert document(emit("dstack", estimate))["resources"]["gpu"] == f"nvidia:{size}GB..:1"
    assert all(gpus.find(name).total_bytes >= request for name, gb in sold.items() if gb >= size)
    smaller = [gpus.find(name).total_bytes for name, gb in sold.items() if gb < size]
    assert not smaller or min(smaller) < request or size == min(sold.values())


def test_a_node_of_kubernetes_has_enough_after_what_the_driver_keeps() -> None:
    """Labels of real nodes, in MiB, and what torch sees of the same card."""
    labels = {"l4": 23034, "a10": 23028, "rtx-3060": 12288, "t4": 15360, "a100-80gb": 81920, "rtx-4060": 8188}
    for request in range(GIB, 79 * GIB, GIB // 2):
        estimate = example(request, gpu="a100-80gb")
        (term,) = document(emit("kubernetes", estimate))["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        (rule,) = term["matchExpressions"]
        for name, label in labels.items():
            if label > int(rule["values"][0]):
                assert gpus.find(name).total_bytes >= request, (name, request)


@pytest.mark.parametrize("name", ["rtx-3060", "rtx-5060", "a100-80gb"])
def test_a_card_that_is_large_enough_itself_is_never_excluded(name: str) -> None:
    card = gpus.find(name)
    text = emit("kubernetes", example(card.total_bytes, gpu=name))
    assert int(re.findall(r'values: \["(\d+)"\]', text)[0]) < card.total_bytes // MIB


def test_a_request_above_the_card_asks_for_a_whole_card() -> None:
    """The job fits, but a scheduler would look for ever for that much on this kind of card."""
    tight = example(gpus.find("rtx-3060").total_bytes + 1, gpu="rtx-3060")
    assert lines_of(emit("slurm", tight)) == ["#SBATCH --gres=gpu:1"]
    assert lines_of(emit("ray", tight)) == ['ray_options = {"num_gpus": 1}']
    assert limits(emit("kai", tight)) == {"nvidia.com/gpu": 1}
    assert "annotations" not in document(emit("kai", tight))["metadata"]
    assert limits(emit("hami", tight)) == {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}
    assert limits(emit("volcano", tight)) == {"volcano.sh/vgpu-number": 1}
    assert "more than rtx-3060 has available" in emit("slurm", tight)
    used = replace(example(10 * GIB, gpu="rtx-3060"), used_by_others_bytes=2 * GIB)
    assert lines_of(emit("slurm", used)) == ["#SBATCH --gres=gpu:1"]


def test_shards_that_no_card_has_are_a_whole_card() -> None:
    """11.76 GiB are 11 shards of 1 GiB."""
    assert lines_of(emit("slurm", example(11 * GIB, gpu="rtx-3060"))) == ["#SBATCH --gres=shard:11"]
    assert lines_of(emit("slurm", example(11 * GIB + 1, gpu="rtx-3060"))) == ["#SBATCH --gres=gpu:1"]


@given(card=st.sampled_from(["a30", "a100-40gb", "a100-80gb", "h100-pcie"]), share=st.floats(0.01, 0.95))
def test_a_slice_is_the_smallest_with_enough_memory(card: str, share: float) -> None:
    request = int(gpus.find(card).total_bytes * share)
    (name,) = limits(emit("mig", example(request, gpu=card)))
    chosen = gpus.find(f"{card}:{name.removeprefix('nvidia.com/mig-')}")
    assert chosen.total_bytes >= request
    for other in gpus.all_slices():
        if other.name.startswith(f"{card}:") and other.total_bytes >= request:
            assert (other.total_bytes, other.num_sms) >= (chosen.total_bytes, chosen.num_sms)


def test_a_job_that_ran_on_a_slice_stays_on_the_card() -> None:
    assert limits(emit("mig", example(30 * GIB, gpu="a100-80gb:3g.40gb"))) == {"nvidia.com/mig-3g.40gb": 1}


def test_a_slice_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"no MIG profiles are known for rtx-3060. They are known for a30, "):
        emit("mig", example(GIB, gpu="rtx-3060"))
    with pytest.raises(UnsupportedError, match=r"which no MIG slice of a30 has. Use --emit kubernetes"):
        emit("mig", example(gpus.find("a30").total_bytes + GIB, gpu="a30"))


def test_all_processes_of_a_job_are_asked_for() -> None:
    alone = example(2 * GIB)
    several = Together(num_processes=2, device_bytes=alone.peak.device_bytes + GIB, reserved_bytes=GIB)
    assert limits(emit("hami", replace(alone, together=several)))["nvidia.com/gpumem"] == 3 * 1024


def test_more_than_any_card_has_is_refused() -> None:
    huge = example(200 * GIB, gpu="1TiB,sm100")
    with pytest.raises(UnsupportedError, match=r"asks for 200\.00 GiB, and no GPU of `foretell gpus` has as much"):
        emit("skypilot", huge)


# --- batches ----------------------------------------------------------------------------------------------------------


@given(most=st.integers(1, 300), wanted=st.integers(1, 1000))
def test_accumulation_keeps_the_effective_batch_exactly(most: int, wanted: int) -> None:
    size, accumulated = batch_of(Decision(estimate=EXAMPLE, batch_size=most, effective_batch=wanted))
    assert size * accumulated == wanted
    assert size <= most
    assert not [larger for larger in range(size + 1, most + 1) if wanted % larger == 0]


def test_without_an_effective_batch_nothing_is_accumulated() -> None:
    assert "gradient_accumulation_steps=1" in emit("trainer", EXAMPLE, batch_size=20)


def test_a_batch_that_divides_badly_is_said_so() -> None:
    text = emit("lightning", EXAMPLE, batch_size=20, effective_batch=61)
    assert "accumulate_grad_batches=61" in text
    assert "20 x 3 = 60" in text
    assert "would be faster" not in emit("lightning", EXAMPLE, batch_size=20, effective_batch=64)


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"batch_size": 4, "effective_batch": 0}, {"shard_bytes": 0}])
def test_numbers_below_one_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="or more"):
        emit("trainer", EXAMPLE, **given)


def test_batch_settings_need_a_batch_size() -> None:
    with pytest.raises(UsageError, match="foretell max-batch"):
        emit("accelerate", EXAMPLE)


# --- comments ---------------------------------------------------------------------------------------------------------

HOSTILE = "x\n#SBATCH --gres=gpu:8\rspec: {}\u2028import os\x85a\x1b[2J\u202e\ud800"


@pytest.mark.parametrize("tool", TOOLS)
def test_no_text_of_others_becomes_a_setting(tool: str) -> None:
    hostile = replace(
        EXAMPLE, command=("train.py", HOSTILE), caveats=(HOSTILE,), torch_version=HOSTILE,
        gpu=EXAMPLE.gpu if tool == "mig" else replace(EXAMPLE.gpu, name=HOSTILE),
    )  # fmt: skip
    text = settings_of(tool, hostile)
    assert lines_of(text) == lines_of(settings_of(tool, EXAMPLE))
    assert all(line.isprintable() for line in text.splitlines())


def test_secrets_are_masked() -> None:
    secret = replace(EXAMPLE, command=("train.py", "--api-key", "geheim"), caveats=("HF_TOKEN=geheim was read",))
    assert "geheim" not in emit("slurm", secret)


def test_a_long_command_is_shortened() -> None:
    first = emit("slurm", replace(EXAMPLE, command=("train.py", *COMMAND * 100))).splitlines()[0]
    assert len(first) < 250
    assert first.endswith("...")


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_unknown_tool_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown tool: 'pbs'. Known: slurm, kubernetes, .*, accelerate"):
        emit("pbs", EXAMPLE)


OOM = OutOfMemory(step=1, phase="backward", requested_bytes=GIB, message="CUDA out of memory.", where=None)
NEED = Need(device_bytes=17 * GIB, reserved_bytes=16 * GIB, request_bytes=20 * GIB, smallest_gpus=("rtx-3090",))


def test_a_job_that_does_not_fit_is_refused_with_what_it_needs() -> None:
    oom = replace(EXAMPLE, verdict="oom", oom=OOM)
    with pytest.raises(DoesNotFitError, match="Choose a larger GPU with --gpu"):
        emit("slurm", oom)
    with pytest.raises(DoesNotFitError, match=r"It needs 17.00 GiB. Try --gpu rtx-3090"):
        emit("slurm", replace(oom, need=NEED))
    with pytest.raises(DoesNotFitError, match="No GPU of `foretell gpus`"):
        emit("slurm", replace(oom, need=replace(NEED, smallest_gpus=())))


@pytest.mark.parametrize("kind", ["script", "early_end", "time_limit", "host_memory", "interrupted", "unknown_value"])
def test_an_incomplete_estimate_is_refused(kind: Any) -> None:
    with pytest.raises(UnsupportedError, match="incomplete, so the job may need more than was seen: it ended"):
        emit("slurm", replace(EXAMPLE, ended_by=EndedBy(kind=kind, message="it ended")))


# --- the command line -------------------------------------------------------------------------------------------------


def test_it_is_a_function_of_the_package() -> None:
    assert foretell.emit("slurm", EXAMPLE) == emit("slurm", EXAMPLE)


def test_the_option_has_the_tools_there_are() -> None:
    assert tuple(MEMORY_TOOLS) == settings.MEMORY_TOOLS
    assert tuple(BATCH_TOOLS) == settings.BATCH_TOOLS


def test_standard_output_has_the_settings_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    save(training_run(tmp_path / "run").trace(), tmp_path / "job.trace")
    for command in (["report"], ["what-if", "--gpu", "rtx-4060"]):
        code = main([*command, str(tmp_path / "job.trace"), "--emit", "hami", "--json", str(tmp_path / "x.json")])
        shown = capsys.readouterr()
        assert code == 0
        assert limits(shown.out)["nvidia.com/gpumem"] > 0
        assert shown.out.startswith("# foretell: ")
        assert "FITS" in shown.err


def test_a_trace_that_ran_out_of_memory_has_no_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = training_run(tmp_path)
    folder.journal("oom", 11, step=1, phase="forward", requested_bytes=1, message="CUDA out of memory.", where=None)
    save(folder.trace(exit_status=1), tmp_path / "job.trace")
    assert main(["report", str(tmp_path / "job.trace"), "--emit", "slurm"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "foretell: --emit slurm: the job does not fit on rtx-3060" in shown.err


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"is_timed_out": True}, 2), ({"is_interrupted": True}, 130), ({"exit_status": -9, "is_ended": False}, 1)],
)
def test_a_run_that_ended_before_its_time_never_exits_with_0(
    changes: dict[str, Any], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(replace(training_run(tmp_path).trace(), **changes), tmp_path / "job.trace")
    assert main(["report", str(tmp_path / "job.trace"), "--emit", "slurm"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "the run is incomplete" in shown.err


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return "train.py"


def test_the_batch_size_that_was_found_is_set(script: str, monkeypatch: Any, capsys: Any) -> None:
    def found(job: Any, knob: Any, **options: Any) -> Maximum:
        tried = Evaluation(value=20, verdict="fits", estimate=EXAMPLE)
        return Maximum(
            job=job, knob=knob, values=range(1, 21), value=20, above="range", is_certain=False, evaluations=(tried,)
        )

    monkeypatch.setattr("foretell.plan.maximum.maximum", found)
    options = ["--emit", "trainer", "--effective-batch", "64", "--quiet"]
    assert main(["max-batch", "--arg=--batch-size", *options, script]) == 0
    shown = capsys.readouterr()
    assert "per_device_train_batch_size=16" in lines_of(shown.out)[3]
    assert any(line.startswith("# Caveat: ") for line in shown.out.splitlines()), "what to know about the search"
    assert main(["max", "--arg=--width", "--emit", "slurm", "--quiet", script]) == 0
    assert lines_of(capsys.readouterr().out) == ["#SBATCH --gres=shard:21"]


def test_the_smallest_card_that_fits_is_asked_for(script: str, monkeypatch: Any, capsys: Any) -> None:
    def found(job: Any, cards: Any, **options: Any) -> Fit:
        card = CardFit(gpu=EXAMPLE.gpu, verdict="fits", device_bytes=GIB, request_bytes=GIB, spare_bytes=GIB, copies=1)
        return Fit(cards=(card,), estimate=EXAMPLE, num_runs=1)

    monkeypatch.setattr("foretell.plan.fit.fit_job", found)
    assert main(["fit", "--emit", "mig", "--quiet", script]) == 0
    assert limits(capsys.readouterr().out) == {"nvidia.com/mig-3g.40gb": 1}


# --- documentation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
def test_the_example_in_the_documentation_is_true(tool: str, request: pytest.FixtureRequest) -> None:
    """docs/emit.md has a heading with the name of each tool; the first block of code below it is what is emitted."""
    page = PAGE.read_text("utf-8")
    match = re.search(rf"^## {tool}$.*?^```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert match is not None
    if request.config.getoption("--overwrite-golden"):
        page = page[: match.start(1)] + settings_of(tool, EXAMPLE) + page[match.end(1) :]
        PAGE.write_text(page, "utf-8")
        return
    assert match[1] == settings_of(tool, EXAMPLE)
