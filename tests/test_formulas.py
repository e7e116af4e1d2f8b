"""Formulas on a job small enough to work out by hand, against the tools they restate, and on published values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell import gpus
from foretell.features import ConvolutionCall, JobFeatures, Layer, features_from, plain_features
from foretell.formulas import FORMULAS, own, published
from foretell.formulas import model_states as states
from foretell.formulas.workspaces import workspaces
from foretell.units import MIB

A100 = gpus.find("a100-40gb")
# Linear(1000, 500), ReLU, Linear(500, 10) in float32, Adam, a batch of 100.
PARAMETERS = 1000 * 500 + 500 + 500 * 10 + 10
JOB = JobFeatures(
    source="typed",
    layers=(
        Layer(kind="Linear", activations=50_000, parameters=500_500),
        Layer(kind="ReLU", activations=50_000, parameters=0),
        Layer(kind="Linear", activations=1_000, parameters=5_010),
    ),
    batch_size=100,
    input_shape=(100, 1000),
    input_bytes=400_000,
    parameters=PARAMETERS,
    parameter_bytes=4 * PARAMETERS,
    trainable_bytes=4 * PARAMETERS,
    buffer_bytes=0,
    saved_bytes=600_000,
    forward_peak_bytes=700_000,
    backward_peak_bytes=2_500_000,
    convolutions=(),
    largest_bytes=200_000,
    optimizer="Adam",
    foreach=True,
    element_bytes=4,
    played_bytes=22 * MIB,
    played_workspace_bytes=22 * MIB,
    compute_capability=(8, 0),
)


def test_horus_multiplies_the_parameters_by_the_batch() -> None:
    assert published.horus_bytes(JOB) == 4 * (101_000 + PARAMETERS + 100 * PARAMETERS) + 800 * MIB


def test_horus_gives_the_published_value_of_vgg16() -> None:
    """Elements of a 224-pixel image after VGG-16's convolutions, their ReLUs and its classifier; 138 M parameters."""
    activations = 2 * 13_547_520 + 4096 + 4096 + 1000
    layer = Layer(kind="Conv2d", activations=32 * activations, parameters=0)
    job = replace(JOB, layers=(layer,), batch_size=32, parameters=138_357_544)
    given = published.horus_bytes(job)
    assert given is not None
    assert given / MIB == pytest.approx(21_525.83, rel=1e-4)


def test_dnnmem_keeps_all_outputs_and_two_gradients() -> None:
    exact = 2 * 4 * PARAMETERS + 400_000 + 4 * 101_000 + 4 * 100_000
    assert published.dnnmem_bytes(JOB, A100) == -(-exact // (2 * MIB)) * 2 * MIB


def test_faketensor_counts_no_optimizer_and_memtracker_does() -> None:
    assert published.faketensor_bytes(JOB) == 4 * PARAMETERS + 400_000 + 2_500_000
    sgd = replace(JOB, optimizer="SGD", momentum=True)
    assert published.memtracker_bytes(sgd) == 4 * PARAMETERS + 400_000 + 2_500_000 + 4 * PARAMETERS


@pytest.mark.parametrize(("foreach", "temporaries"), [(True, 4 * PARAMETERS), (False, 2 * 4 * 500_000)])
def test_memtracker_counts_the_step_of_the_optimizer(foreach: bool, temporaries: int) -> None:
    """Parameters, gradients and two states, the input, and what the step allocates."""
    job = replace(JOB, foreach=foreach, largest_parameter_bytes=4 * 500_000)
    assert published.memtracker_bytes(job) == 16 * PARAMETERS + 400_000 + temporaries


@pytest.mark.parametrize("foreach", [True, False])
def test_memtracker_gives_what_the_tool_itself_counts(foreach: bool) -> None:
    """On the CPU, over two steps of the job; the tool also has the optimizer's count of steps, 4 bytes a parameter."""
    torch = pytest.importorskip("torch")
    tool = pytest.importorskip("torch.distributed._tools.mem_tracker")
    model = torch.nn.Sequential(torch.nn.Linear(1000, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
    inputs = torch.zeros(100, 1000)
    tracker = tool.MemTracker()
    tracker.track_external(model, optimizer, inputs)
    with tracker:
        for step in range(2):
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if not step:
                tracker.reset_mod_stats()
    (counted,) = tracker.get_tracker_snapshot("peak").values()
    job = replace(JOB, foreach=foreach, largest_parameter_bytes=4 * 500_000)
    assert published.memtracker_bytes(job) == counted["Total"] - 4 * 4


def test_llmem_counts_the_logits_twice_and_divides_by_tensor_parallelism() -> None:
    norm = Layer(kind="LayerNorm", activations=1, parameters=1)
    layers = (norm, Layer(kind="Linear", activations=1_000, parameters=5_010))
    job = replace(JOB, layers=layers)
    single = 4 * 4 * PARAMETERS + 600_000 + 1_000 * 8
    assert published.llmem_bytes(job) == single
    assert published.llmem_bytes(job, tensor_parallel=2) == single // 2
    assert published.llmem_bytes(job, data_parallel=3) == single - 2 * 4 * PARAMETERS
    assert published.llmem_bytes(JOB) is None  # no Transformer


def test_by_hand_is_four_times_the_weights_and_what_is_saved() -> None:
    assert states.weights_and_activations_bytes(JOB) == 16 * PARAMETERS + 600_000


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(1, 4 * 10**9 + 12 * 10**9 // 8), (2, 2 * 10**9 + 18 * 10**9 // 8), (3, 4 * 10**8 + 18 * 10**9 // 8)],
)
def test_zero_divides_what_its_stage_shards(stage: int, expected: int) -> None:
    assert states.zero_bytes(10**9, stage=stage, num_gpus=8, largest_layer_parameters=10**8) == expected


def test_accelerate_takes_the_largest_part() -> None:
    assert states.accelerate_bytes(100) == 1600
    assert states.accelerate_bytes(100, is_mixed=True) == 800


@pytest.mark.parametrize(
    ("optimizer", "momentum", "times"), [("SGD", False, 0), ("SGD", True, 1), ("Adam", False, 2), ("Unheard", False, 2)]
)
def test_states_follow_the_optimizer(optimizer: str, momentum: bool, times: int) -> None:
    job = replace(JOB, optimizer=optimizer, momentum=momentum)
    assert states.state_bytes(job) == times * 4 * PARAMETERS


def test_our_formula_is_never_below_parameters_gradients_and_states() -> None:
    tiny = replace(JOB, saved_bytes=0, forward_peak_bytes=0, backward_peak_bytes=0, largest_bytes=0)
    assert own.formula_bytes(tiny, A100) >= 16 * PARAMETERS


def test_our_formula_grows_with_the_batch() -> None:
    sizes = [own.formula_bytes(JOB.with_batch(size), A100) for size in (1, 10, 100, 1000, 100_000)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 500 * MIB


def test_our_formula_answers_from_a_summary_alone() -> None:
    summary = JobFeatures(source="summary", layers=JOB.layers, parameters=PARAMETERS, parameter_bytes=4 * PARAMETERS)
    assert not summary.is_complete
    assert "saved_bytes" in summary.unknown
    assert own.formula_bytes(summary, A100) > 16 * PARAMETERS


def test_no_formula_answers_without_a_description() -> None:
    nothing = JobFeatures(source="typed")
    assert {name for name, each in FORMULAS.items() if each.guess(nothing, A100) is not None} == set()


def test_a_convolution_has_the_workspace_of_the_rule() -> None:
    """NHWC copies of x, y and w; twice in the data gradient up to 128 output channels."""
    call = ConvolutionCall(
        x=(8, 64, 32, 32), y=(8, 64, 32, 32), w=(64, 64, 3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1),
        groups=1, is_transposed=False, is_channels_last=False, element_bytes=4, saved_bytes=0, gradient_bytes=0,
    )  # fmt: skip
    job = replace(JOB, convolutions=(call,), torch_version="2.6.0")
    copies = 4 * (2 * 8 * 64 * 32 * 32 + 64 * 64 * 9)
    assert workspaces(job, A100) == [2 * copies]


@pytest.mark.parametrize("card", ["a100-40gb", "rtx-3060", "rtx-4090", "h100-80gb", "t4"])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_workspaces_never_fall_when_the_batch_grows(card: str, element_bytes: int) -> None:
    """The rule alone does: cuDNN reads large images where they are."""
    for channels_in, channels_out, size, taps in (
        (256, 40, 14, 1), (64, 256, 56, 1), (32, 64, 112, 3), (512, 512, 7, 3), (40, 40, 28, 3), (3, 64, 224, 7),
    ):  # fmt: skip
        before = 0
        for batch_size in (*range(1, 140), 500, 1000, 5000):
            call = ConvolutionCall(
                x=(batch_size, channels_in, size, size), y=(batch_size, channels_out, size, size),
                w=(channels_out, channels_in, taps, taps), stride=(1, 1), padding=(taps // 2, taps // 2),
                dilation=(1, 1), groups=1, is_transposed=False, is_channels_last=False, element_bytes=element_bytes,
                saved_bytes=0, gradient_bytes=0,
            )  # fmt: skip
            [now] = workspaces(replace(JOB, convolutions=(call,), torch_version="2.15.0"), gpus.find(card))
            assert now >= before
            before = now


def test_a_description_goes_through_plain_values_and_back() -> None:
    assert features_from(plain_features(JOB)) == JOB


def test_a_batch_scales_activations_and_not_parameters() -> None:
    double = JOB.with_batch(200)
    assert (double.saved_bytes, double.parameter_bytes, double.input_shape) == (1_200_000, 4 * PARAMETERS, (200, 1000))
    assert [layer.activations for layer in double.layers or ()] == [100_000, 100_000, 2_000]


def test_the_linear_layers_of_gpt2_are_no_convolutions() -> None:
    kinds = ("Embedding", "LayerNorm", "Conv1D")
    layers = tuple(Layer(kind=kind, activations=100, parameters=100) for kind in kinds)
    assert replace(JOB, layers=layers).family == "transformer"
    assert replace(JOB, layers=layers, convolutions=None).family == "transformer"
    assert replace(JOB, layers=(replace(layers[0], kind="Conv1d"),), convolutions=None).family == "cnn"
