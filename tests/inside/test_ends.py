"""However the process ends, the journal says how."""

from __future__ import annotations

from .conftest import Run


def test_an_uncaught_error_is_noted_and_its_traceback_is_the_users_own(capture: Run) -> None:
    captured = capture("def fail():\n    raise ValueError('no')\nfail()", cold=True).check(1)
    assert captured.stderr.endswith("ValueError: no\n")
    assert captured.stderr.startswith("Traceback (most recent call last):\n")
    line = captured.one("exception")
    assert (line["type"], line["message"], line["is_oom"]) == ("ValueError", "no", False)
    assert line["where"].endswith("train.py:2")
    assert captured.lines("end")


def test_a_script_with_its_own_excepthook_is_noted_too(capture: Run) -> None:
    captured = capture("import sys; sys.excepthook = lambda *_: print('mine'); 1 / 0", cold=True).check(1)
    assert captured.said == ["mine"]
    assert captured.one("exception")["type"] == "ZeroDivisionError"


def test_sys_exit_keeps_its_code(capture: Run) -> None:
    captured = capture("import sys; sys.exit(7)", cold=True).check(7)
    assert captured.lines("exception") == []
    assert captured.lines("end")


def test_out_of_memory_in_backward_has_step_phase_line_and_bytes(capture: Run) -> None:
    captured = capture(
        """
        import torch
        class Square(torch.autograd.Function):  # needs its memory in backward only
            @staticmethod
            def forward(ctx, x, size):
                ctx.size = size
                return x * 2
            @staticmethod
            def backward(ctx, gradient):
                torch.ops.aten.empty([ctx.size], device="cuda")
                return gradient, None
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            loss = Square.apply(model(torch.zeros(8, 8, device="cuda")), 1 << (10 if step < 2 else 40)).sum()
            loss.backward()
            optimizer.step()
        """,
        steps="all",
    ).check(1)
    oom = captured.one("oom")
    assert (oom["step"], oom["phase"], oom["requested_bytes"]) == (2, "backward", 4 << 40)
    assert oom["where"].endswith("train.py:10")
    exception = captured.one("exception")
    assert exception["is_oom"]
    assert exception["message"].startswith(oom["message"])
