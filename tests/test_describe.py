"""A job described by its first forward pass, on the CPU: what is seen does not depend on the device."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import foretell
from foretell import api
from foretell.errors import ScriptError, UnsupportedError
from foretell.features import JobFeatures, features_from
from foretell.guessing.functions import describe_script
from foretell.inside.describe import Catcher, FirstForward
from foretell.learn.meta import describe_model
from foretell.runs import Warm

BATCH = 64


def caught(model: nn.Module, *inputs: torch.Tensor, summary: torch.Tensor | None = None) -> JobFeatures:
    found: list[Any] = []
    with Catcher(found.append, compute_capability=(8, 0)):
        optimizer = torch.optim.Adam(model.parameters())
        if summary is not None:
            model(summary)
        model(*inputs).sum().backward()
        optimizer.step()
    assert len(found) == 1
    return features_from({"source": "model", **found[0]})


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 16))


def test_saved_bytes_are_the_inputs_of_both_layers_without_parameters() -> None:
    job = caught(net(), torch.randn(BATCH, 256))
    # The input of the first layer, and one tensor that ReLU saves as its result and the second layer as its input.
    assert job.saved_bytes == 4 * BATCH * (256 + 128)
    assert job.parameter_bytes == 4 * (256 * 128 + 128 + 128 * 16) + 512  # 16 biases: a block of 512 bytes
    assert [layer.kind for layer in job.layers or ()] == ["Linear", "ReLU", "Linear"]
    assert (job.batch_size, job.input_shape, job.input_bytes) == (BATCH, (BATCH, 256), 4 * BATCH * 256)
    assert (job.optimizer, job.family, job.is_complete) == ("Adam", "mlp", True)


def test_of_a_forward_pass_whose_results_are_dropped_only_its_size_is_kept() -> None:
    alone = caught(net(), torch.randn(BATCH, 256))
    after_summary = caught(net(), torch.randn(BATCH, 256), summary=torch.randn(2, 256))
    assert alone.earlier_bytes == 0
    assert after_summary == replace(alone, earlier_bytes=4 * 2 * (256 + 128))


def test_a_functional_convolution_is_seen() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 3, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.conv2d(x, self.weight, stride=2, padding=1)

    job = caught(Functional(), torch.randn(4, 3, 16, 16))
    (call,) = job.convolutions or ()
    assert (call.x, call.y, call.w) == ((4, 3, 16, 16), (4, 8, 8, 8), (8, 3, 3, 3))
    assert (call.stride, call.groups, call.is_transposed, job.family) == ((2, 2), 1, False, "cnn")


def test_frozen_parameters_have_no_gradients() -> None:
    model = net()
    model[0].requires_grad_(False)
    job = caught(model, torch.randn(BATCH, 256))
    assert job.trainable_bytes == 4 * 128 * 16 + 512
    assert job.saved_bytes == 4 * BATCH * 128


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_are_seen_and_a_guess_says_that_it_is_too_low(use_reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=use_reentrant)

    job = caught(Checkpointed(), torch.randn(BATCH, 256, requires_grad=True))
    assert job.is_checkpointed
    assert "checkpointed" in foretell.guess(job, gpu="a100-40gb").notes[0]
    assert caught(net(), torch.randn(BATCH, 256)).is_checkpointed is False


def test_a_net_that_is_called_inside_of_a_checkpoint_is_described() -> None:
    """Whose hooks for saved tensors must leave the stack in the order in which they came."""
    found: list[Any] = []
    model = net()
    with Catcher(found.append):
        torch.optim.SGD(model.parameters())
        x = torch.randn(BATCH, 256, requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    assert found[0]["is_checkpointed"]
    assert found[0]["parameters"] == sum(each.numel() for each in model.parameters())


def test_sparse_tensors_do_not_stop_a_description() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.Embedding(100, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = torch.eye(5).to_sparse()
            return self.bag(x).sum() + made.to_dense().sum()

    assert caught(Bag(), torch.zeros(5, dtype=torch.int64)).parameters == 800


def test_a_batch_given_by_name_is_seen() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(100, 32)

        def forward(self, *, input_ids: torch.Tensor) -> torch.Tensor:
            return self.embedding(input_ids)

    found: list[Any] = []
    model = Named()
    with Catcher(found.append):
        model(input_ids=torch.zeros(5, 7, dtype=torch.int64)).sum().backward()
    assert (found[0]["batch_size"], found[0]["input_shape"]) == (5, [5, 7])


def test_nothing_stays_behind() -> None:
    before = torch.autograd.backward, torch.autograd.grad, torch.optim.Optimizer.__init__
    caught(net(), torch.randn(BATCH, 256))
    assert (torch.autograd.backward, torch.autograd.grad, torch.optim.Optimizer.__init__) == before
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_function_that_was_wrapped_meanwhile_does_not_keep_the_model() -> None:
    """As packages do that are imported while a job is described: `from torch.utils.checkpoint import checkpoint`."""
    with Catcher(lambda description: None):
        kept = torch.utils.checkpoint.checkpoint
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(BATCH, 256)).sum().backward()
    weights = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert kept is not torch.utils.checkpoint.checkpoint
    assert weights() is None


def test_a_script_that_ends_before_its_backward_pass_leaves_nothing() -> None:
    """An operator that saves its result must not hold itself."""
    import gc

    recorder = FirstForward()
    recorder.install()
    result = net()(torch.randn(BATCH, 256)).log_softmax(1)
    recorder.remove()
    del result, recorder
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.shape == (BATCH, 128)]


# --- a model object, on the meta device -------------------------------------------------------------------------------


def test_on_meta_a_model_is_described_as_elsewhere() -> None:
    described = describe_model(net(), torch.randn(BATCH, 256))
    there = features_from({"source": "model", **described})
    assert there == caught(net(), torch.randn(BATCH, 256))


def test_on_meta_dropout_keeps_a_byte_for_each_element() -> None:
    model = nn.Sequential(nn.Linear(256, 128), nn.Dropout(0.5))
    saved = describe_model(model, torch.randn(BATCH, 256))["saved_bytes"]
    assert saved == 4 * BATCH * 256 + BATCH * 128


def test_on_meta_attention_keeps_no_scores() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(32, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.project(x).view(2, 128, 3, 4, 8).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(query, key, value)

    saved = describe_model(Attention(), torch.randn(2, 128, 32))["saved_bytes"]
    rows = 2 * 128
    # Input, query with key and value, the result, a number for each row and head, and two of the random generator.
    assert saved == 4 * rows * (32 + 96 + 32 + 4) + 2 * 512


def test_the_model_itself_stays_as_it_is() -> None:
    model = net().eval()
    describe_model(model, torch.randn(BATCH, 256))
    assert {each.device.type for each in model.parameters()} == {"cpu"}
    assert not model.training
    assert all(each.grad is None for each in model.parameters())


def test_python_guesses_from_a_model_and_a_batch() -> None:
    guessed = foretell.guess(net(), torch.randn(BATCH, 256), gpu="a100-40gb", batch_size=2 * BATCH)
    assert (guessed.source, guessed.batch_size, guessed.decision) == ("model", 2 * BATCH, "fits")


def test_a_model_that_reads_values_is_refused_with_a_way_out() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * x.sum().item()

    with pytest.raises(UnsupportedError, match="Guess from the training script instead"):
        describe_model(Reads(), torch.randn(2, 4))


# --- a script, on the virtual GPU -------------------------------------------------------------------------------------

TRAINS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    assert step == 0, "no step is taken"
    optimizer.zero_grad()
    model(torch.randn(64, 256).cuda()).sum().backward()
    optimizer.step()
"""


def described(script: Path, text: str, warm: Warm) -> JobFeatures:
    script.write_text(text)
    return describe_script(api.make_job([str(script)], gpu="rtx-3060"), warm=warm)


def test_a_script_is_caught_before_its_first_backward_pass(tmp_path: Path, warm: Warm) -> None:
    job = described(tmp_path / "train.py", TRAINS, warm)
    assert (job.saved_bytes, job.batch_size) == (4 * 64 * (256 + 128), 64)
    assert (job.optimizer, job.momentum, job.source) == ("SGD", True, "script")


def test_a_script_that_fails_is_the_scripts_own_failure(tmp_path: Path, warm: Warm) -> None:
    with pytest.raises(ScriptError, match=r"failed before its first backward pass(.|\n)*no data"):
        described(tmp_path / "train.py", "import torch\nraise ValueError('no data')", warm)


def test_a_script_that_trains_nothing_has_no_guess(tmp_path: Path, warm: Warm) -> None:
    with pytest.raises(UnsupportedError, match="ended without a backward pass"):
        described(tmp_path / "train.py", "import torch\ntorch.zeros(1).cuda()", warm)
