"""Secrets are in nothing that is kept or sent around, and what is executed has them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_folder import training_run
from foretell.analysis.verdict import estimate_of
from foretell.cli import main
from foretell.masking import mask, mask_command
from foretell.trace import load, save

KEY = "AbC123dEf456GhI789jKl012"


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        ("train.py --api-key X --lr 3", "train.py --api-key *** --lr 3"),
        ("train.py --token=X", "train.py --token=***"),
        ("train.py --hub_token X --password Y", "train.py --hub_token *** --password ***"),
        ("train.py --wandb.api_key=X +hub.token=Y", "train.py --wandb.api_key=*** +hub.token=***"),
        ("env HF_TOKEN=X A_SECRET=Y API_KEY=Z python", "env HF_TOKEN=*** A_SECRET=*** API_KEY=*** python"),
        ("train.py --use-auth-token --epochs 3", "train.py --use-auth-token --epochs 3"),
        ("train.py --use_auth_token True --eos-token </s>", "train.py --use_auth_token True --eos-token </s>"),
        ("train.py --max-tokens 512 --tokenizer gpt2", "train.py --max-tokens 512 --tokenizer gpt2"),
        ("train.py --monkey 7 --keys a", "train.py --monkey 7 --keys a"),
        (f"train.py hf_{KEY} sk-{KEY} ghp_{KEY}", "train.py hf_*** sk-*** ghp_***"),
        ("hf_transformers_trainer.py sk-learn-contrib-models", "hf_transformers_trainer.py sk-learn-contrib-models"),
        ("train.py https://ada:X@host/data", "train.py https://ada:***@host/data"),
        ("train.py https://host:8080/a@b s3://bucket/x", "train.py https://host:8080/a@b s3://bucket/x"),
        ("train.py https://host/?token=X&page=2", "train.py https://host/?token=***&page=2"),
        ('train.py {"api_key":"X","lr":3}', 'train.py {"api_key":"***","lr":3}'),
    ],
)  # fmt: skip
def test_secrets_of_a_command_line_are_masked(words: str, masked: str) -> None:
    assert " ".join(mask_command(words.split(" "))) == masked


def test_secrets_in_text_are_masked() -> None:
    assert mask(f"401 for https://ada:{KEY}@host, Authorization: Bearer {KEY}, HF_TOKEN={KEY}.") == (
        "401 for https://ada:***@host, Authorization: Bearer ***, HF_TOKEN=***"
    )
    assert mask("unknown token: <pad>, key 'x' is missing") == "unknown token: <pad>, key 'x' is missing"


def test_no_file_and_no_text_has_the_secrets_of_the_run(tmp_path: Path, capsys: Any) -> None:
    capture = training_run(tmp_path)
    capture.journal("caveat", text=f"no answer from https://ada:{KEY}@host").journal("ended_early", what=f"sk-{KEY}")
    capture.journal("redirected_write", path=f"/data/hf_{KEY}/x", change="write")
    trace = capture.trace(command=("python", "train.py", "--api-key", KEY, f"HF_TOKEN={KEY}"))
    save(trace, tmp_path / "x.trace")
    names = {"--json": "x.json", "--report": "x.html", "--snapshot": "x.pickle"}
    words = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    assert main(["report", str(tmp_path / "x.trace"), *words]) == 0
    assert main(["diff", str(tmp_path / "x.trace"), str(tmp_path / "x.json"), "--html", str(tmp_path / "d.html")]) == 0
    shown = capsys.readouterr()
    texts = [shown.out, shown.err, repr(load(tmp_path / "x.trace")), repr(estimate_of(trace))]
    texts += [(tmp_path / name).read_bytes().decode("latin-1") for name in (*names.values(), "d.html")]
    for text in texts:
        assert KEY not in text
    assert json.loads((tmp_path / "x.json").read_text())["command"][:4] == ["python", "train.py", "--api-key", "***"]


def test_a_message_with_a_secret_is_masked(tmp_path: Path, capsys: Any) -> None:
    capture = training_run(tmp_path)
    capture.journal("exception", 12, type="HTTPError", message=f"401 for token={KEY}", where=None, is_oom=False)
    trace = capture.trace(exit_status=1)
    assert trace.exception is not None
    assert trace.exception.message == "401 for token=***"
    assert replace(trace, command=("x", f"hf_{KEY}")).command == ("x", "hf_***")


def test_the_script_gets_its_secrets(tmp_path: Path, warm_runs: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\ntorch.ones(9, device='cuda')\nprint('got', sys.argv[2])\n")
    run = warm_runs.run(script, "--api-key", KEY)
    assert f"got {KEY}" in run.stdout, run.tail()
    assert run.result["command"] == [sys.executable, str(script), "--api-key", "***"]
