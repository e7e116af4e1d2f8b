"""Values on the virtual GPU: right where they can be known, a stand-in and a journal line where they cannot."""

from __future__ import annotations

import textwrap

import pytest

from .conftest import Captured, Run

KNOWN = """
    import torch, torch.nn.functional as F
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]], device=D)
    say(mask.sum().item(), mask.sum(1).tolist(), bool(mask.bool().all()), mask.nonzero().tolist())
    say(mask[mask > 0].shape)
    ids = (torch.arange(64 * 2048).reshape(64, 2048) % 50000).to(D)          # 1 MiB of integers: a marked copy
    say(bool((ids >= 0).all()), ids.max().item(), ids[3, :4].tolist())
    say(torch.arange(10, device=D).cumsum(0).tolist(), torch.unique(torch.tensor([3, 1, 3, 2], device=D)).tolist())
    say(torch.repeat_interleave(torch.tensor([1, 2, 3], device=D)).tolist())
    say(sorted(torch.randperm(5, device=D).tolist()))
    a = torch.zeros(5, dtype=torch.long, device=D)
    a[2] = 7; a[torch.tensor([0, 1], device=D)] = 3; a += 1
    say(a.tolist(), [v.item() for v in torch.linspace(0, 1, 5, device=D)])
    b = torch.cat([torch.ones(3, dtype=torch.bool, device=D), torch.zeros(2, dtype=torch.bool, device=D)])
    say(b.tolist(), (~b).tolist(), b.nonzero(as_tuple=True)[0].tolist(), torch.where(b, 1, 0).tolist())
    say(b.cpu().tolist(), F.one_hot(torch.tensor([0, 2, 1], device=D)).tolist())
    say(torch.bincount(torch.tensor([1, 1, 3], device=D)).tolist())
    values, indices = torch.sort(torch.tensor([3, 1, 2], device=D))
    say(values.tolist(), indices.tolist(), torch.topk(torch.tensor([3., 1., 2.], device=D), 2).indices.tolist())
    lengths = torch.tensor([2, 3], device=D)
    say((torch.arange(4, device=D)[None] < lengths[:, None]).int().tolist(), (mask.float().mean(1) * 4).tolist())
    padded = lengths.new_empty(3); padded.narrow(0, 0, 1).zero_()
    torch.cumsum(lengths, dim=0, out=padded.narrow(0, 1, 2))
    say(padded.tolist(), torch.equal(lengths, lengths + 0), torch.equal(lengths, padded[1:]))
    thirds = torch.linspace(0, 1, 4, device=D)
    say(thirds.allclose(thirds + 1e-9), torch.allclose(thirds, thirds + 1), thirds.double().allclose(thirds.double()))
    found = torch.full((), 0.0, device=D); found += 1
    say(found.item(), torch.stack([lengths, lengths * 2]).flatten().tolist(), lengths.view(-1, 1).expand(2, 2).tolist())
"""
PROLOGUE = "import sys\nD = sys.argv[1]\ndef say(*values): print('SAY', *values)\n"


def said(run: Captured) -> list[str]:
    return [line for line in run.check().said if line.startswith("SAY")]


def test_values_that_can_be_known_equal_those_of_the_cpu(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(KNOWN)
    on_gpu, on_cpu = capture(script, "cuda"), capture(script, "cpu")
    assert said(on_gpu) == said(on_cpu)
    assert len(said(on_gpu)) == 15
    assert on_gpu.lines("unknown_read") == []


def test_unknown_tensors_are_equal_where_the_script_would_fail_otherwise(capture: Run) -> None:
    script = textwrap.dedent(
        """
        import torch
        x = torch.nn.Linear(64, 64).cuda()(torch.rand(4, 64, device="cuda"))
        if not x.allclose(x * 1):
            raise ValueError("not the same")
        assert torch.equal(x, x * 1)
        """
    )
    assert len(capture(script).check().lines("unknown_read")) == 2


def test_elements_that_are_known_stay_known_among_others(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(
        """
        import torch
        unknown = torch.nn.Linear(64, 64).to(D)(torch.rand(4, 64, device=D)).argmax(-1)
        yes = torch.ones(4, dtype=torch.bool, device=D)
        say((yes | (unknown > 3)).tolist(), bool((~yes & (unknown > 3)).any()), (unknown * 0 + 5).tolist())
        both = torch.cat([torch.arange(4, device=D), unknown])
        say(both[:4].tolist(), both.view(2, 4)[0].tolist(), both.contiguous()[2].item(), both.int()[:3].tolist())
        odd = torch.tensor([True, False, True, False], device=D)
        chosen = torch.where(odd, unknown, torch.full_like(unknown, 9))
        say(chosen[~odd].tolist(), bool((odd | (unknown > 3)).any()), ((unknown * odd).prod()).item())
        table = torch.zeros(3, 4, dtype=torch.long, device=D)
        table[:, 1] = unknown[:3]
        table[0].add_(2)
        say(table[:, 0].tolist(), table[:, 2:].tolist(), table.t()[3].tolist())
        left = torch.ones(4, dtype=torch.long, device=D)
        left = left & ~(torch.isin(unknown, torch.tensor([5], device=D)) | torch.full((4,), True, device=D))
        say((left.max() == 0).item())
        resized = torch.arange(3, device=D)
        resized.resize_(1000)
        say(resized[:3].tolist())
        """
    )
    run = capture(script, "cuda")
    assert said(run) == said(capture(script, "cpu"))
    assert len(said(run)) == 6
    assert run.lines("unknown_read") == []


def test_what_lies_between_the_elements_of_a_view_does_not_become_known(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(
        """
        import torch
        table = torch.nn.Linear(64, 16).to(D)(torch.rand(4, 64, device=D)).argmax(1).repeat(4, 1)
        table[:, 0].fill_(7)
        say(table[:, 0].tolist(), table.tolist())
        """
    )
    run = capture(script, "cuda")
    assert said(run) == [f"SAY {[7] * 4} {[[7, 0, 0, 0]] * 4}"]
    (line,) = [line for line in run.lines("unknown_read") if line["what"] == "tolist"]
    assert line["count"] == 1


def test_memory_of_a_resized_tensor_is_not_taken_for_its_former_value(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(
        """
        import torch
        known = torch.full((64,), 7, device=D)
        known.resize_(10_000)
        other = torch.full((64,), 7, device=D)
        other.untyped_storage().resize_(0)
        unknown = [torch.empty(64, dtype=torch.long, device=D) for _ in range(4)]
        say([each.sum().item() for each in unknown], known[:64].sum().item())
        """
    )
    assert said(capture(script, "cuda")) == ["SAY [0, 0, 0, 0] 448"]


def test_a_float_falls_with_each_step_so_that_early_stopping_does_not_set_in(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(
        """
        import torch
        model = torch.nn.Linear(64, 64).to(D)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        best, patience = float("inf"), 2
        for epoch in range(6):
            loss = model(torch.randn(8, 64, device=D)).square().mean()
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            if loss.item() < best: best, patience = loss.item(), 2
            else: patience -= 1
            if not patience: break
        say(epoch, loss.cpu().item() == best)
        """
    )
    assert said(capture(script, "cuda", steps="all")) == ["SAY 5 True"]


def test_warnings_point_to_the_line_of_the_script(capture: Run) -> None:
    script = """
        import warnings, torch
        import torch.nn.functional as F
        x = torch.rand(4, 4, 4, device="cuda")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x.T                                                     # by C++
            F.mse_loss(x, x[0])                                     # by Python, two frames up
            F.softmax(x)                                            # by Python, three frames up
        for each in caught:
            print(each.filename.rpartition("/")[2], each.lineno)
        """
    on_gpu, plain = capture(script).check(), capture(script.replace('"cuda"', '"cpu"'), hooks=False).check()
    assert on_gpu.said == plain.said
    assert on_gpu.said == ["train.py 7", "train.py 8", "train.py 9"]


WRAPPER = """
    import torch
    from torch.utils._pytree import tree_map

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
            )
        def __init__(self, inner):
            self.inner = inner
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            unwrapped = tree_map(lambda each: each.inner if isinstance(each, Wrapper) else each, (args, kwargs or {}))
            out = func(*unwrapped[0], **unwrapped[1])
            return tree_map(lambda each: Wrapper(each) if isinstance(each, torch.Tensor) else each, out)

    wrapped = Wrapper(torch.arange(4, device="cuda"))
    print(type((wrapped + 1).sum().item()).__name__, wrapped[wrapped > 1].shape[0], wrapped.cpu().inner.tolist())
    inner = torch.zeros(4, 4, device="cuda")
    Wrapper(inner).add_(1)
    print(inner.sum().item())
    weight = torch.nn.Parameter(Wrapper(torch.randn(4, 4, device="cuda")))
    (weight * 2).sum().backward()
    torch.optim.AdamW([weight]).step()
    print(type(weight.grad).__name__)
"""


def test_a_subclass_without_memory_of_its_own_is_unknown(capture: Run) -> None:
    assert capture(WRAPPER).check().said == ["int 2 [0, 1, 2, 3]", "1.0", "Wrapper"]


def test_a_tensor_of_one_process_is_known_in_a_dtensor(capture: Run) -> None:
    script = """
        import torch, torch.distributed as dist
        from torch.distributed.tensor import DTensor, Shard
        from torch.distributed.device_mesh import DeviceMesh
        import torch.distributed._functional_collectives as collectives
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        mesh = DeviceMesh("cuda", [0])
        tensor = DTensor.from_local(torch.arange(8, device="cuda"), mesh, [Shard(0)], run_check=False)
        print((tensor + 1).to_local().tolist(), bool((tensor > 6).any()), tensor.sum().item())
        print(type(collectives.all_reduce(torch.ones(4, device="cuda"), "sum", mesh)).__name__)
        dist.destroy_process_group()
        """
    said = capture(script, guards=False).check().said
    assert said == ["[1, 2, 3, 4, 5, 6, 7, 8] True 28", "AsyncCollectiveTensor"]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_ddp_compares_the_sizes_of_thousands_of_parameters(capture: Run, backend: str) -> None:
    script = f"""
        import torch, torch.distributed as dist
        dist.init_process_group("{backend}", store=dist.HashStore(), rank=0, world_size=1)
        layers = torch.nn.Sequential(*(torch.nn.Conv2d(2, 2, 1) for _ in range(1100))).cuda()
        print(len(list(torch.nn.parallel.DistributedDataParallel(layers, device_ids=[0]).parameters())))
        dist.destroy_process_group()
        """
    assert capture(script, guards=False).check().said == ["2200"]


def test_an_unknown_value_is_a_stand_in_and_its_line_is_journaled(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(
        """
        import torch
        x = torch.randn(1000, 100, device=D)
        say(x.sum().item())
        say((x > 0).sum().item())
        say(tuple(x[x > 0].shape))
        say(bool(torch.isfinite(x.sum())), bool(torch.isnan(x).any()))
        """
    )
    run = capture(script, "cuda")
    assert said(run) == ["SAY 1.0", "SAY 0", "SAY (50000,)", "SAY True False"]
    places = {(line["what"].split(":")[0], line["where"].rpartition(":")[2]) for line in run.lines("unknown_read")}
    assert places == {("item", "7"), ("item", "8"), ("__getitem__", "9")}


@pytest.mark.parametrize(("assume", "expected"), [("low", 0), ("typical", 50000), ("high", 100000)])
def test_how_many_a_mask_of_unknown_values_selects_is_assumed_as_told(capture: Run, assume: str, expected: int) -> None:
    script = PROLOGUE + "import torch\nx = torch.randn(1000, 100, device=D)\nsay(x[x > 0].numel())"
    assert said(capture(script, "cuda", assume=assume)) == [f"SAY {expected}"]


def test_a_recycled_block_is_not_taken_for_its_former_value(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(
        """
        import torch
        known = torch.full((64,), 7, device=D)
        address = known.data_ptr()
        del known
        weights = torch.nn.Parameter(torch.ones(128)).to(D).exp()   # the same 512 bytes, now of unknown numbers
        say(weights.data_ptr() == address or weights.numel() * 4 <= 512, weights.detach().sum().item())
        """
    )
    assert said(capture(script, "cuda")) == ["SAY True 1.0"]


def test_the_hosts_random_numbers_do_not_move(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(
        """
        import torch
        torch.manual_seed(0)
        torch.randint(0, 9, (3,), device=D); torch.randperm(4, device=D)
        if D == "cpu": torch.manual_seed(0)
        say(torch.rand(2).tolist())
        """
    )
    assert said(capture(script, "cuda")) == said(capture(script, "cpu"))


def test_gradients_are_taken_for_finite_so_that_no_step_is_skipped(capture: Run) -> None:
    script = PROLOGUE + textwrap.dedent(
        """
        import torch
        model = torch.nn.Linear(64, 64).to(D)
        optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler(D)
        for _ in range(2):
            with torch.autocast(D, dtype=torch.float16):
                loss = model(torch.randn(8, 64, device=D)).square().mean()
            scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
        say(len(optimizer.state), scaler.get_scale())
        """
    )
    run = capture(script, "cuda")
    assert said(run) == ["SAY 2 65536.0"]
    assert run.lines("unknown_read") == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_values_are_known_in_a_module_that_runs_again_for_its_backward(capture: Run, reentrant: bool) -> None:
    script = f"""
        import torch
        from torch.utils.checkpoint import checkpoint
        mask = torch.tensor([True, False, True, True]).cuda()
        def forward(x):
            kept = x[mask]
            print(mask.sum().item(), tuple(kept.shape), torch.arange(6, device="cuda").tolist())
            return kept.sin()
        x = torch.ones(4, 3, device="cuda", requires_grad=True)
        checkpoint(forward, x, use_reentrant={reentrant}).sum().backward()
        """
    run = capture(script).check()
    assert run.said == ["3 (3, 3) [0, 1, 2, 3, 4, 5]"] * 2
    assert not run.lines("unknown_read")


def test_check_of_a_distribution_is_answered_behind_a_mode_of_the_script(capture: Run) -> None:
    script = """
        import torch
        from torch.overrides import TorchFunctionMode
        class Passing(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))
        logits = torch.nn.Linear(64, 4096).cuda()(torch.rand(8, 64, device="cuda"))
        with Passing():
            print(tuple(torch.distributions.Categorical(logits=logits).entropy().shape))
        """
    assert capture(script).check().said == ["(8,)"]


def test_mask_of_floats_that_is_made_as_a_constant_is_known(capture: Run) -> None:
    script = """
        import torch
        mask = torch.ones(2, 2048, device="cuda")
        print(bool((mask > 0).all()), torch.zeros(2, 2048, device="cuda").bool().any().item())
        hidden = torch.nn.Linear(8, 8).cuda()(torch.rand(2, 64, 8, device="cuda"))
        print(bool(hidden.new_ones(2, 64).all()), bool(torch.zeros_like(hidden).any()))
        """
    run = capture(script).check()
    assert run.said == ["True False", "True False"]
    assert not run.lines("unknown_read")


@pytest.mark.parametrize(
    ("assume", "sizes"), [("low", [3, 3, 3, 3]), ("typical", [3, 3, 3, 3]), ("high", [6, 6, 0, 0])]
)
def test_tokens_a_learned_gate_routes_go_to_all_experts_alike(capture: Run, assume: str, sizes: list[int]) -> None:
    script = """
        import torch
        gate = torch.nn.Linear(64, 4).cuda()
        experts = gate(torch.randn(6, 64, device="cuda")).topk(2, dim=-1).indices
        print(torch.nn.functional.one_hot(experts, 4).sum((0, 1)).tolist())
        counts = torch.bincount(experts.flatten(), minlength=4).tolist()
        print([len(rows) for rows in experts.flatten().argsort().split(counts)])
        columns = gate(torch.randn(6, 64, device="cuda")).topk(2, dim=0)[1]
        print(tuple(columns.shape), int(columns.max()) < 6)
        """
    run = capture(script, assume=assume).check()
    assert run.said == [str(sizes), str(sizes), "(2, 4) True"]
    assert {line["where"].rpartition(":")[2] for line in run.lines("unknown_read")} == {"4", "8"}


@pytest.mark.parametrize("assume", ["low", "typical", "high"])
def test_unknown_classes_are_as_many_as_the_script_says(capture: Run, assume: str) -> None:
    script = """
        import torch
        pixels = torch.nn.Conv2d(3, 100, 1).cuda()(torch.randn(2, 3, 64, 64, device="cuda")).argmax(1).flatten()
        print(torch.bincount(100 * pixels + pixels, minlength=100 ** 2).reshape(100, 100).shape[0])
        print(pixels.bincount(None, 100).shape[0], torch.nn.functional.one_hot(pixels, 100).shape[-1])
        """
    run = capture(script, assume=assume).check()
    assert run.said == ["100", "100 100"]
    assert not [line for line in run.lines("unknown_read") if "decides" in line["what"]]


@pytest.mark.parametrize(("assume", "lengths"), [("low", [0, 0]), ("typical", [9, 9])])
def test_texts_whose_end_is_unknown_are_long(capture: Run, assume: str, lengths: list[int]) -> None:
    """As in TRL's GRPO: what comes after the first end is taken away, on the host."""
    script = """
        import torch
        texts = torch.nn.Linear(64, 5000).cuda()(torch.ones(2, 9, 64, device="cuda")).argmax(-1)
        is_end = texts == 3
        end = torch.full((2,), 9, dtype=torch.long, device="cuda")
        end[is_end.any(dim=1)] = is_end.int().argmax(dim=1)[is_end.any(dim=1)]
        mask = (torch.arange(9, device="cuda").expand(2, -1) <= end.unsqueeze(1)).int()
        print([len(text[own].tolist()) for text, own in zip(texts.cpu(), mask.bool().cpu())])
        """
    assert capture(script, assume=assume).check().said == [str(lengths)]


def test_unknown_probabilities_add_up_to_one(capture: Run) -> None:
    """scikit-learn's roc_auc_score refuses others."""
    script = """
        import torch
        scores = torch.nn.Linear(64, 5).cuda()(torch.ones(3, 64, device="cuda"))
        for shares in (torch.softmax(scores, 1), scores.softmax(dim=-1), torch.nn.functional.softmax(scores, dim=1)):
            print(shares.detach().cpu().numpy().sum(1).round(6).tolist())
        print(scores.exp().mean().item())
        """
    assert capture(script).check().said == [*["[1.0, 1.0, 1.0]"] * 3, "1.0"]


def test_the_best_of_unknown_scores_is_none_of_the_first(capture: Run) -> None:
    """The mean of a spectrum, by which TimesNet would divide, and the end of a text."""
    script = """
        import torch
        spectrum = torch.nn.Linear(64, 97).cuda()(torch.ones(64, device="cuda"))
        spectrum[0] = 0
        print((192 // spectrum.topk(3).indices.cpu().numpy()).min() > 0)
        tokens = []
        while len(tokens) < 9:
            token = spectrum.topk(1).indices[0]
            if token == 0: break
            tokens.append(token)
        print(len(tokens))
        """
    assert capture(script).check().said == ["True", "9"]


def test_scores_nobody_knows_are_sorted_into_some_order(capture: Run) -> None:
    script = """
        import torch
        scores = torch.nn.Linear(64, 10).cuda()(torch.randn(3, 64, device="cuda"))
        order = scores.sort(dim=1, descending=True)[1]
        print(order.sort(dim=1)[1].lt(4).sum(1).tolist(), sorted(scores.argsort(0)[:, 5].tolist()))
        """
    run = capture(script).check()
    assert run.said == ["[4, 4, 4] [0, 1, 2]"]
    assert {line["what"] for line in run.lines("unknown_read")} == {"sort", "argsort"}


def test_how_many_boxes_torchvision_keeps_is_known_where_the_boxes_are(capture: Run) -> None:
    pytest.importorskip("torchvision")
    run = capture(
        PROLOGUE
        + textwrap.dedent("""
        import torch, torchvision
        boxes = torch.tensor([[0., 0., 9., 9.], [0., 0., 9., 8.], [20., 20., 30., 30.]], device=D)
        say(torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7], device=D), 0.5).tolist())
        """),
        "cuda",
        cold=True,  # torchvision is imported after the hooks
    )
    assert said(run) == ["SAY [0, 2]"]
