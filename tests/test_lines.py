"""Which line of a stack is shown for an allocation."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foretell.protocol.lines import Lines
from foretell.report.places import short_place

SITE = "/opt/env/lib/python3.11/site-packages"
LINES = Lines(("/opt/env/lib/python3.11/", f"{SITE}/"), ("/opt/foretell/inside/",))
CALL = (f"{SITE}/torch/nn/modules/module.py", 1787, "_call_impl")
LINEAR = (f"{SITE}/torch/nn/modules/linear.py", 134, "forward")
GPT2 = (f"{SITE}/transformers/models/gpt2/modeling_gpt2.py", 300, "forward")
IN_GPT2 = "modeling_gpt2.py:300 (transformers)"
TRAINER = (f"{SITE}/transformers/trainer.py", 2100, "training_step")
ACCELERATE = (f"{SITE}/accelerate/accelerator.py", 2850, "backward")
SCRIPT = ("/home/ada/train.py", 7, "main")
OWN_LAYER = ("/home/ada/model.py", 31, "forward")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        pytest.param([LINEAR, CALL, OWN_LAYER, CALL, SCRIPT], "model.py:31", id="a layer of your own"),
        pytest.param([LINEAR, CALL, GPT2, CALL, TRAINER, SCRIPT], IN_GPT2, id="a library's layer"),
        pytest.param([GPT2, CALL, OWN_LAYER, CALL, SCRIPT], IN_GPT2, id="a library's layer in your own"),
        pytest.param(
            [(f"{SITE}/xformers/ops/fmha.py", 5, "attention"), OWN_LAYER, CALL, SCRIPT], "model.py:31",
            id="your layer calls a library",
        ),
        pytest.param([ACCELERATE, TRAINER, SCRIPT], "train.py:7", id="a trainer by itself"),
        pytest.param(
            [(f"{SITE}/trl/trainer/utils.py", 9, "log_softmax"), TRAINER, SCRIPT], "utils.py:9 (trl)",
            id="a loss inside a trainer",
        ),
        pytest.param(
            [(f"{SITE}/ultralytics/engine/trainer.py", 433, "_do_train"), ("/opt/env/bin/yolo", 8, "<module>")],
            "trainer.py:433 (ultralytics)", id="a console script",
        ),
        pytest.param(
            [(f"{SITE}/transformers/core_model_loading.py", 1323, "materialize"), SCRIPT], "train.py:7", id="a loader"
        ),
        pytest.param([LINEAR, CALL], "linear.py:134 (torch)", id="torch alone"),
        pytest.param([("/opt/foretell/inside/values/mode.py", 3, "x"), ("<nn.Module>", 1, "Net"), SCRIPT], "train.py:7",
                     id="foretell"),
    ],
)  # fmt: skip
def test_the_line_is_the_deepest_of_a_model(frames: list[tuple[str, int, str]], place: str) -> None:
    found = LINES.choose(frames)
    assert found is not None
    assert short_place(found[0]) == place


def test_generated_code_and_nothing_are_no_place() -> None:
    generated = ("/root/.cache/foretell/compiled/inductor/ab/cabc.py", 40, "call")
    assert LINES.choose([generated, SCRIPT]) == ("/home/ada/train.py:7", "user")
    assert LINES.choose([]) is None


@pytest.mark.parametrize("name", ["where_now", "where_allocated"])
def test_looking_for_a_line_keeps_no_variable_of_the_script_alive(name: str) -> None:
    """Also in `python -c`, where none is found, and then not in the main thread either, which is this one."""
    code = f"""
import gc, sys, weakref
from foretell.inside import where
gc.disable()
class Tensor: pass
def read():
    tensor = Tensor()
    assert not (where.{name}() or "").startswith("/")
    return weakref.ref(tensor)
sys.exit(read()() is not None)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
