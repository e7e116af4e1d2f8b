"""foretell's frames in the tracebacks of the script: none, however they are printed."""

from __future__ import annotations

import sys

from foretell.inside.own_frames import without_own_frames

from .conftest import ROOT, Run

SCRIPT = """
    import sys, threading, traceback, torch
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)
        def forward(self, x):
            return self.layer(x)
    net = Net().cuda()
    net(torch.zeros(2, 8, device="cuda")).sum().backward()
    try:
        net(torch.zeros(2, 7, device="cuda"))
    except RuntimeError:
        print(traceback.format_exc())
    thread = threading.Thread(target=lambda: net(torch.zeros(2, 6, device="cuda")))
    thread.start()
    thread.join()
    try:
        net(torch.zeros(2, 5, device="cuda"))
    except RuntimeError as error:
        raise ValueError("wrong") from error
"""
OWN = (str(ROOT / "src" / "foretell"), "<nn.Module>")


def test_tracebacks_have_the_frames_of_the_script_and_none_of_foretell(capture: Run) -> None:
    captured = capture(SCRIPT).check(code=1)
    for shown, count in ((captured.stdout, 1), (captured.stderr, 3)):
        assert not [line for line in shown.splitlines() if any(own in line for own in OWN)]
        assert shown.count("Traceback (most recent call last):") == count
        assert shown.count("return self.layer(x)") == shown.count("in forward") // 2  # and that of the linear layer
    assert captured.lines("exception")[-1]["where"].endswith(":21")


def test_frames_are_taken_out_wherever_they_are() -> None:
    own = {"__name__": "x"}
    exec(compile("def call(f): return f()", OWN[0] + "/inside/watch/x.py", "exec"), own)
    call = own["call"]

    def fails() -> None:
        raise ValueError

    def within() -> None:
        call(fails)

    try:
        call(within)
    except ValueError:
        traceback = without_own_frames(sys.exc_info()[2])
    names = []
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert names == ["test_frames_are_taken_out_wherever_they_are", "within", "fails"]
