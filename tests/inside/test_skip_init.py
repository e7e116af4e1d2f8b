"""Weights are not initialised where nobody can tell, and what is done with them is what torch would do."""

from __future__ import annotations

import pytest

from .conftest import Captured, Run

MODELS = """
    import copy, torch
    from torch import nn
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * 4096

    before = resident()
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(16)])      # 1 GiB
    copied = copy.deepcopy(model)
    model.to(torch.bfloat16)
    assert resident() - before < 64 << 20, resident() - before
    assert model[0].weight.dtype is torch.bfloat16 and copied[0].weight.dtype is torch.float32
    assert copied[0].weight is not model[0].weight and copied[0].weight.requires_grad
    del model, copied

    linear = nn.Linear(512, 512)
    assert linear.weight.count_nonzero() == 0 and linear.bias.count_nonzero() > 0       # the bias is small: real
    torch.nn.init.ones_(linear.weight)
    assert linear.half().weight.sum(dtype=torch.float32) == 512 * 512                  # constants are real

    embedding = nn.Embedding(4096, 512)
    with torch.no_grad():
        embedding.weight[7] = torch.arange(512.0)
    assert embedding.bfloat16().weight[7].tolist() == torch.arange(512.0).bfloat16().tolist()
    assert embedding.weight[:7].count_nonzero() == 0 and embedding.weight[8:].count_nonzero() == 0

    real = nn.Linear(512, 512)
    real.load_state_dict({"weight": torch.full((512, 512), 3.0), "bias": torch.zeros(512)})
    assert real.double().weight.unique().tolist() == [3.0]
    assert copy.deepcopy(real).weight.unique().tolist() == [3.0]

    tied = nn.ModuleList([nn.Embedding(1024, 256), nn.Linear(256, 1024, bias=False)])
    tied[1].weight = tied[0].weight
    parameter = tied[0].weight
    tied.to(torch.float16)
    assert tied[0].weight is parameter and tied[1].weight is parameter and parameter.dtype is torch.float16
    frozen = nn.Linear(512, 512).requires_grad_(False).to(torch.bfloat16)
    assert not frozen.weight.requires_grad

    plain = torch.empty(512, 512).normal_()
    assert plain.count_nonzero() > 0                                                   # not a parameter
    conv = nn.Conv2d(512, 512, 3).to(torch.bfloat16, memory_format=torch.channels_last)
    assert conv.weight.is_contiguous(memory_format=torch.channels_last) and conv.weight.dtype is torch.bfloat16
    for init in (nn.init.trunc_normal_, nn.init.orthogonal_, nn.init.kaiming_normal_, nn.init.xavier_uniform_):
        init(nn.Linear(512, 512).weight)
    nn.Linear(512, 512).weight.data.normal_(mean=0.0, std=0.02)
    for wrong in (lambda w: w.normal_(), lambda w: w.data.normal_(std=-1.0)):
        try:
            wrong(nn.Linear(512, 512).weight)
        except RuntimeError:
            print("raises as torch does")
    torch.set_default_dtype(torch.bfloat16)
    assert nn.Linear(512, 512).weight.dtype is torch.bfloat16
    print("done")
"""


@pytest.fixture(scope="module")
def models(capture: Run) -> Captured:
    return capture(MODELS).check()


def test_skipped_weights_cost_no_memory_and_behave_like_any_other(models: Captured) -> None:
    assert models.said == ["raises as torch does", "raises as torch does", "done"]


def test_skipping_can_be_switched_off(capture: Run) -> None:
    captured = capture(
        "import torch; print(int(torch.nn.Linear(512, 512).weight.count_nonzero()) > 0)", skip_init=False
    ).check()
    assert captured.said == ["True"]
