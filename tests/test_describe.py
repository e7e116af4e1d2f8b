"""A job described by its first forward pass, on the CPU: what is seen does not depend on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from foretell.features import JobFeatures, features_from
from foretell.inside.describe import Catcher, FirstForward

BATCH = 64


def caught(model: nn.Module, *inputs: torch.Tensor, summary: torch.Tensor | None = None) -> JobFeatures:
    found: list[Any] = []
    with Catcher(found.append):
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


def test_a_forward_pass_whose_results_are_dropped_does_not_count() -> None:
    alone = caught(net(), torch.randn(BATCH, 256))
    after_summary = caught(net(), torch.randn(BATCH, 256), summary=torch.randn(2, 256))
    assert after_summary == alone


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
