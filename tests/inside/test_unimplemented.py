"""A CUDA function the virtual GPU lacks: the journal names it, the operator and the line, in every thread."""

from __future__ import annotations

from .conftest import Run

# Compression to 2:4 sparsity is the work of cuSPARSELt, which the virtual GPU does not have.
COMPRESS = """
    import torch
    dense = torch.tensor([0.0, 0.0, 1.0, 1.0]).tile((128, 32)).half().cuda()
    def compress():
        try:
            torch._cslt_compress(dense)
        except RuntimeError:
            pass
"""


def test_names_the_operator_and_the_line(capture: Run) -> None:
    run = capture(COMPRESS + "    compress()").check()
    line = run.one("unimplemented")
    assert (line["name"], line["operator"]) == ("cusparseLtInit", "_cslt_compress")
    assert line["where"].endswith("train.py:6")


def test_a_function_called_in_the_backward_pass_has_a_line_too(capture: Run) -> None:
    script = """
    class Compresses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()
        @staticmethod
        def backward(ctx, gradient):
            compress()
            return gradient
    weight = torch.ones(4, device="cuda", requires_grad=True)
    Compresses.apply(weight).sum().backward()
    """
    line = capture(COMPRESS + script).check().one("unimplemented")
    assert line["operator"] == "_cslt_compress"
    assert line["where"].endswith("train.py:6")


def test_without_an_operator_of_pytorchs_it_is_the_step_of_the_backward_pass(capture: Run) -> None:
    script = """
        import ctypes, torch
        powers = torch.ones(4, device="cuda", requires_grad=True).exp()
        powers.register_hook(lambda gradient: print(ctypes.CDLL(None).cusparseLtInit(None)))
        powers.sum().backward()
        """
    run = capture(script).check()
    assert run.said == ["10"]  # CUSPARSE_STATUS_NOT_SUPPORTED
    assert run.one("unimplemented")["operator"] == "ExpBackward0"
    assert run.one("unimplemented")["where"].endswith("train.py:4")


def test_is_told_once_for_each_function(capture: Run) -> None:
    assert len(capture(COMPRESS + "    compress(); compress()").check().lines("unimplemented")) == 1
