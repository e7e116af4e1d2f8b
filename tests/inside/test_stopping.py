"""Training ends early and orderly: what follows it runs, and nothing is left running."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Captured, Run

LOADER = """
    import atexit, sys, torch
    from torch.utils.data import DataLoader, TensorDataset
    num_workers, persistent = int(sys.argv[1]), sys.argv[2] == "persistent"
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.zeros(320, 64)), 8, num_workers=num_workers, persistent_workers=persistent)
    atexit.register(print, "exit handler")
    for epoch in range(5):
        batches = 0
        for (batch,) in loader:
            batches += 1
            try:
                model(batch.cuda()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            except Exception:
                print("caught")
        print("trained", batches)
        with torch.no_grad():
            evaluated = sum(model(batch.cuda()) is not None for (batch,) in loader)
        print("evaluated", evaluated)
        print("on the cpu", sum(1 for _ in loader))
"""


@pytest.fixture(scope="module", params=[("0", "no"), ("2", "no"), ("2", "persistent")], ids="-".join)
def loop(request: pytest.FixtureRequest, capture: Run) -> Captured:
    return capture(LOADER, *request.param).check()


def test_the_loop_ends_and_what_follows_runs_until_training_goes_on(loop: Captured) -> None:
    assert loop.said == ["trained 4", "evaluated 40", "on the cpu 40", "exit handler"]
    assert loop.stderr == ""


def test_what_was_cut_is_in_the_journal(loop: Captured) -> None:
    assert [(line["how"], line["step"]) for line in loop.lines("ended_early")] == [
        ("loader", 4),
        ("exit", 5),
    ]
    assert loop.lines("ended_early")[0]["what"] == "training loop over a DataLoader, after 4 of 40 batches"


def test_a_workers_process_leaves_no_journal(loop: Captured) -> None:
    assert len(list(loop.directory.glob("journal-*"))) == 1


RANGE = """
    import torch
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    try:
        for step in range(100_000):
            try:
                model(torch.zeros(8, 64, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            except Exception:
                print("caught")
    finally:
        print("finally", step)
    print("never")
"""


def test_without_a_loader_the_process_ends_with_code_0_through_except_exception(capture: Run) -> None:
    captured = capture(RANGE, steps=5).check()
    assert captured.said == ["finally 4"]
    assert captured.one("ended_early")["how"] == "exit"
    assert captured.one("end")["steps"] == 5


def test_a_thread_that_trains_is_ended_without_a_traceback(capture: Run) -> None:
    script = """
        import threading, torch
        def train():
            model = torch.nn.Linear(4, 4).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(100_000):
                model(torch.ones(2, 4, device="cuda")).sum().backward()
                optimizer.step()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        print("joined")
    """
    captured = capture(script, steps=5).check()
    assert captured.said == ["joined"]
    assert "Traceback" not in captured.stderr
    assert captured.one("end")["steps"] == 5


def test_a_bare_except_cannot_keep_it_going_for_ever(capture: Run) -> None:
    captured = capture(RANGE.replace("except Exception", "except"), steps=5).check()
    assert captured.one("end")["steps"] < 20


def test_all_runs_to_the_end(capture: Run) -> None:
    captured = capture(RANGE.replace("100_000", "9"), steps="all").check()
    assert captured.said == ["finally 8", "never"]
    assert captured.lines("ended_early") == []


def test_auto_goes_on_while_the_peak_grows(capture: Run) -> None:
    script = RANGE.replace("torch.zeros(8,", "torch.zeros(8 << 10 + min(step, 6),").replace("100_000", "99")
    captured = capture(script).check()
    assert captured.one("end")["steps"] == 9


def test_auto_ends_although_the_losses_are_kept(capture: Run) -> None:
    captured = capture(
        """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for step in range(99):
            loss = model(torch.zeros(8, 64, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        """
    ).check()
    assert captured.one("end")["steps"] < 8


def test_a_next_nobody_guards_is_not_ended_under_the_script(capture: Run) -> None:
    captured = capture(
        """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        batches = iter(torch.utils.data.DataLoader(torch.zeros(800, 64), 8))
        for step in range(50):
            model(next(batches).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    ).check()
    assert [line["how"] for line in captured.lines("ended_early")] == ["exit"]


EVALUATION = """
    import sys, torch
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.zeros(320, 64))
    dataset = Stream() if sys.argv[1] == "stream" else torch.zeros(1, 64).expand(int(sys.argv[1]), 64)
    model = torch.nn.Linear(64, 64).cuda()
    with torch.no_grad():
        print("evaluated", sum(len(model(batch.cuda())) for batch in DataLoader(dataset, 8)))
"""


def test_an_evaluation_that_takes_seconds_sees_its_whole_dataset(capture: Run) -> None:
    captured = capture(EVALUATION, "320").check()
    assert captured.said == ["evaluated 320"]
    assert captured.lines("ended_early") == []


@pytest.mark.parametrize(("dataset", "length"), [("800_000_000", " of 100000000"), ("stream", "")])
def test_an_evaluation_that_is_long_or_of_unknown_length_ends(capture: Run, dataset: str, length: str) -> None:
    captured = capture(EVALUATION, dataset).check()
    assert captured.said == ["evaluated 24"]
    assert captured.one("ended_early")["what"] == f"evaluation loop over a DataLoader, after 3{length} batches"


def test_a_cut_says_how_long_the_loop_would_have_gone_on(capture: Run) -> None:
    known, unknown = (capture(EVALUATION, each).check().one("ended_early") for each in ("800_000_000", "stream"))
    assert known["loop"] == unknown["loop"] == "evaluation"
    assert known["remaining_seconds"] > 1  # 100 million batches
    assert unknown["remaining_seconds"] is None


def test_whole_evaluations_are_not_cut(capture: Run) -> None:
    for whole in ("evaluation", "all"):
        captured = capture(EVALUATION, "stream", whole_loops=whole).check()
        assert captured.said == ["evaluated 320"]
        assert captured.lines("ended_early") == []


WHOLE = """
    import sys, torch
    from torch.utils.data import DataLoader, IterableDataset
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.zeros(320, 64))
    dataset = Stream() if sys.argv[1] == "stream" else torch.zeros(320, 64)
    loader = DataLoader(dataset, 8, num_workers=int(sys.argv[2]), persistent_workers=sys.argv[2] != "0")
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    def evaluate():
        with torch.no_grad():
            return sum(len(model(batch.cuda())) for batch in DataLoader(Stream(), 8))
    for epoch in range(5):
        seen = 0
        for number, batch in enumerate(loader):
            seen += len(batch)
            model(batch.cuda()).sum().backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            if number == 20:
                print("in between", evaluate())
        optimizer.step()
        print("trained", seen, "evaluated", evaluate())
"""


@pytest.mark.parametrize("arguments", [("320", "0"), ("stream", "0"), ("320", "1")], ids="-".join)
def test_a_whole_epoch_is_trained_and_what_follows_runs_until_training_goes_on(
    capture: Run, arguments: tuple[str, str]
) -> None:
    captured = capture(WHOLE, *arguments, whole_loops="all").check()
    assert captured.said == ["in between 320", "trained 320 evaluated 320"]
    assert [line["how"] for line in captured.lines("ended_early")] == ["exit"]
    assert captured.one("end")["steps"] == 13 + 1 + 1


def test_only_the_training_is_cut_where_evaluations_are_whole(capture: Run) -> None:
    captured = capture(WHOLE, "320", "0", whole_loops="evaluation").check()
    assert captured.lines("ended_early")[0]["loop"] == "training"
    (said,) = captured.said
    assert said.endswith(" evaluated 320")


def test_outputs_kept_on_the_gpu_keep_the_evaluation_going_but_losses_do_not(capture: Run) -> None:
    captured = capture(
        """
        import torch
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(torch.zeros(400, 64))
        model = torch.nn.Linear(64, 512).cuda()
        with torch.inference_mode():
            kept = [model(batch.cuda()) for batch in torch.utils.data.DataLoader(Stream(), 8)]
            losses = [model(batch.cuda()).sum() for batch in torch.utils.data.DataLoader(Stream(), 8)]
        print(len(kept), len(losses))
        """
    ).check()
    assert captured.said == ["50 3"]


def test_accelerate_ends_orderly_although_it_fetches_ahead(capture: Run) -> None:
    captured = capture(
        """
        import sys
        try:
            from accelerate import Accelerator
        except ImportError:
            sys.exit(77)
        import torch
        accelerator = Accelerator()
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.Adam(model.parameters())
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, torch.utils.data.DataLoader(torch.zeros(800, 64), 8)
        )
        for epoch in range(5):
            for batch in loader:
                accelerator.backward(model(batch).sum())
                optimizer.step()
                optimizer.zero_grad()
            print("epoch", epoch)
        """
    )
    if captured.code == 77:
        pytest.skip("accelerate is not installed")
    assert captured.check().said == ["epoch 0"]


def test_trainer_ends_with_an_evaluation_and_a_checkpoint_and_keeps_the_users(capture: Run) -> None:
    captured = capture(
        """
        import os, sys
        try:
            from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        except ImportError:
            sys.exit(77)
        import torch
        os.makedirs("out/checkpoint-1", exist_ok=True)
        data = [{"input_ids": torch.zeros(16, dtype=torch.long), "labels": torch.zeros(16, dtype=torch.long)}] * 400
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=100))
        arguments = TrainingArguments(
            "out", per_device_train_batch_size=4, eval_strategy="steps", eval_steps=50, save_steps=50, report_to=[],
            save_total_limit=1, disable_tqdm=True, dataloader_num_workers=1, prediction_loss_only=True,
            push_to_hub=True,
        )
        trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
        print(trainer.state.global_step, sorted(os.listdir("out")))
        """,
        cold=True,  # transformers is imported after the hooks
    )
    if captured.code == 77:
        pytest.skip("transformers is not installed")
    captured.check()
    assert captured.said[-1].startswith("4 ['checkpoint-4'")
    assert captured.lines("ended_early")[0]["how"] == "trainer"
    assert "evaluation" in captured.one("end")["phases"]
    assert {"kind": "not_sent", "what": "Hugging Face Hub (Trainer)"}.items() <= captured.lines("not_sent")[0].items()
    assert list(captured.folder.iterdir()) == []


MANUAL = """
    import sys, torch
    model = torch.nn.Linear(64, 64).cuda()
    kind, accumulated = sys.argv[1], int(sys.argv[2])
    loss_of = lambda parameters, x: torch.func.functional_call(model, parameters, x).sum()
    for iteration in range(100):
        for micro_batch in range(accumulated):
            x = torch.zeros(8, 64, device="cuda")
            if kind == "functional":
                torch.func.grad(loss_of)(dict(model.named_parameters()), x)
            elif kind == "grad":
                torch.autograd.grad(model(x).sum(), list(model.parameters()))
            else:
                model(x).sum().backward()
        for parameter in model.parameters():
            if kind == "zeroed":
                parameter.data.add_(parameter.grad, alpha=-0.1)
                parameter.grad.zero_()
            elif kind == "none":
                parameter.data.add_(parameter.grad, alpha=-0.1)
                parameter.grad = None
            elif kind == "data":
                parameter.data -= 0.1 * parameter.grad.data
                parameter.grad.data.zero_()
        print(iteration)
"""


@pytest.mark.parametrize(
    ("kind", "accumulated", "iterations"),
    [("zeroed", 1, 9), ("zeroed", 4, 9), ("none", 4, 9), ("grad", 1, 9), ("functional", 1, 9), ("data", 1, 41)],
)
def test_without_an_optimizer_a_step_is_the_backward_pass_of_an_iteration(
    capture: Run, kind: str, accumulated: int, iterations: int
) -> None:
    captured = capture(MANUAL, kind, str(accumulated)).check()
    assert (len(captured.said), captured.one("end")["steps"]) == (iterations, 10)
    assert "steps are backward passes" in captured.one("caveat")["text"]
    assert captured.one("ended_early")["how"] == "exit"


def test_backward_passes_before_the_first_optimizer_do_not_end_the_run(capture: Run) -> None:
    attempts = """for _ in range(5):
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        model.zero_grad()
    optimizer ="""
    captured = capture(RANGE.replace("optimizer =", attempts)).check()
    assert captured.said == ["finally 3"]
    assert captured.one("end")["steps"] == 5 + 4


LATE = """
    import torch
    model, optimizer = torch.nn.Linear(64, 64).cuda(), None
    for iteration in range(100):
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer = optimizer or torch.optim.Adam(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        print(iteration)
"""


def test_an_optimizer_made_after_the_first_backward_pass_belongs_to_its_step(capture: Run) -> None:
    """Pyro makes its optimizers so."""
    captured = capture(LATE).check()
    assert captured.one("end")["steps"] == len(captured.said) + 1, "the last step ends the run before its line"
    assert not captured.lines("caveat")


SAMPLING = """
    import sys, time, torch
    speed, before = float(sys.argv[1]), sys.argv[2] == "before"
    began, clock = time.monotonic(), time.monotonic
    time.monotonic = lambda: began + speed * (clock() - began)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).cuda()
    @torch.no_grad()
    def sample():
        num_passes = 0
        x = torch.zeros(8, 64, device="cuda")
        try:
            for _ in range(300):
                x = model(x)
                num_passes += 1
        finally:
            print("sampled", num_passes)
    if before:
        sample()
    optimizer = torch.optim.Adam(model.parameters())
    for batch in torch.utils.data.DataLoader(torch.zeros(800, 64), 8):
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if not before:
        sample()
"""
SLOW, FAST = "1000000", "0"


def test_a_long_loop_without_gradients_after_the_training_ends_the_run(capture: Run) -> None:
    captured = capture(SAMPLING, SLOW, "after").check()
    assert captured.said == ["sampled 99"]
    assert [line["what"] for line in captured.lines("ended_early")] == [
        "training loop over a DataLoader, after 4 of 100 batches",
        "a loop without gradients, after 100 passes with the same peak",
    ]


@pytest.mark.parametrize(("clock", "when"), [(SLOW, "before"), (FAST, "after")])
def test_a_loop_without_gradients_before_the_training_or_of_few_seconds_runs_to_its_end(
    capture: Run, clock: str, when: str
) -> None:
    captured = capture(SAMPLING, clock, when).check()
    assert captured.said == ["sampled 300"]
    assert len(captured.lines("ended_early")) == 1


ENGINE = """
class Engine:
    def __init__(self, process):
        self.process, self.must_end = process, False
    def terminate_epoch(self):
        self.must_end = True
    def run(self, loader, epochs, completed):
        for epoch in range(epochs):
            batches = iter(loader)
            for iteration in range(len(loader)):
                try:
                    batch = next(batches)
                except StopIteration:
                    batches = iter(loader)
                    batch = next(batches)
                self.process(batch)
                if self.must_end:
                    break
            self.must_end = False
            completed(epoch, iteration + 1)
"""


def test_ignite_ends_its_epoch_although_it_would_start_an_ended_loader_again(capture: Run, tmp_path: Path) -> None:
    """`Engine` is a stand-in for `ignite.engine.Engine`."""
    package = tmp_path / "ignite" / "engine"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "engine.py").write_text(ENGINE)
    captured = capture(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch
        from ignite.engine.engine import Engine
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        loader = torch.utils.data.DataLoader(torch.zeros(160, 64), 8)
        def train(batch):
            model(batch.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        @torch.no_grad()
        def evaluate(epoch, iterations):
            Engine(lambda batch: model(batch.cuda())).run(loader, 1, lambda epoch, n: print("evaluated", n))
            print("epoch", epoch, iterations)
        Engine(train).run(loader, 5, evaluate)
        """
    ).check()
    assert captured.said == ["evaluated 20", "epoch 0 4"]
    assert [line["how"] for line in captured.lines("ended_early")] == ["ignite", "exit"]
