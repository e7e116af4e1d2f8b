"""Knobs: how a value gets into a job, and what is said of a knob that is not there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell import gpus
from foretell.errors import UsageError
from foretell.jobs import Job, changes
from foretell.plan import config_files
from foretell.plan.knobs import Argument, ConfigKey, Knob, LoaderBatch, Setting, Variable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def job_of(*command: str, cwd: Path | None = None) -> Job:
    return Job(command=command, gpu=gpus.find("rtx-3060"), cwd=cwd)


# --- options of the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "before", "value", "after"),
    [
        ("--batch-size", "train.py --batch-size 8 --lr 1", "8", "train.py --batch-size 32 --lr 1"),
        ("--batch-size", "train.py --batch-size=8", "8", "train.py --batch-size=32"),
        ("--batch-size", "train.py --lr 1", None, "train.py --lr 1 --batch-size 32"),
        ("--batch-size", "train.py --batch-size-eval 8", None, "train.py --batch-size-eval 8 --batch-size 32"),
        ("--batch", "train.py cfg.py --lr=1 --k=2", None, "train.py cfg.py --lr=1 --k=2 --batch=32"),
        ("--batch", "train.py --lr=1 --amp", None, "train.py --lr=1 --amp --batch 32"),
        ("--n", "train.py --n 4 --n 8", "8", "train.py --n 32 --n 32"),
        ("-b", "train.py -b 8", "8", "train.py -b 32"),
        ("-b", "train.py -b8", "8", "train.py -b32"),
        ("-b", "train.py -bf16", None, "train.py -bf16 -b 32"),
        ("--offset", "train.py --offset -8", "-8", "train.py --offset 32"),
        ("train.batch_size=", "train.py train.batch_size=8 x=1", "8", "train.py train.batch_size=32 x=1"),
        ("train.batch_size", "train.py ++train.batch_size=8", "8", "train.py ++train.batch_size=32"),
        ("train.batch_size=", "train.py x=1", None, "train.py x=1 train.batch_size=32"),
        ("--data.batch=", "train.py --data.batch=8", "8", "train.py --data.batch=32"),
        ("--data.batch=", "train.py", None, "train.py --data.batch=32"),
        ("{N}", "train.py {N} --name run-{N}", None, "train.py 32 --name run-32"),
    ],
)
def test_an_option_is_replaced_where_it_is_and_appended_where_not(
    name: str, before: str, value: str | None, after: str
) -> None:
    job = job_of(*before.split())
    assert Argument(name).value_in(job) == value
    assert Argument(name).set(job, "32") == job_of(*after.split())


@pytest.mark.parametrize(
    ("name", "command", "message"),
    [
        ("", "train.py", "must be an option of the script"),
        ("--", "train.py", "must be an option of the script"),
        ("--batch size", "train.py", "must be an option of the script"),
        ("--n", "train.py --n", "the command has --n without a value"),
        ("--n", "train.py --n --lr 1", "the command has --n without a value"),
        ("{N}", "train.py", "the command does not contain {N}"),
    ],
)
def test_an_option_that_cannot_be_set_is_refused(name: str, command: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Argument(name).value_in(job_of(*command.split()))


def test_the_script_itself_is_never_replaced() -> None:
    assert Argument("a=").set(job_of("a=1"), "2").command == ("a=1", "a=2")


# --- variables and settings -------------------------------------------------------------------------------------------


def test_a_variable_replaces_the_one_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH", "8")
    job = replace(job_of("train.py"), environment=changes({"SEED": "1"}))
    assert Variable("BATCH").value_in(job) == "8"
    changed = Variable("BATCH").set(Variable("BATCH").set(job, "16"), "32")
    assert changed.environment == (("BATCH", "32"), ("SEED", "1"))
    assert changed.variables()["BATCH"] == "32"
    with pytest.raises(UsageError, match="--env A=1: not the name"):
        Variable("A=1")


def test_settings_of_different_kinds_add_up_and_those_of_one_kind_replace_each_other() -> None:
    job = job_of("train.py")
    job = Setting("precision").set(Setting("optimizer").set(job, "8bit"), "float16")
    job = Setting("optimizer").set(LoaderBatch(("a", "b")).set(job, "4"), "adafactor")
    wanted = ("autocast=float16", "dataloader-batch-size=4@a,b", "optimizer=adafactor")
    assert job.options.alternatives == wanted
    assert Setting("optimizer").set(job, "script") == job
    with pytest.raises(UsageError, match="--optimizer sgd: must be one of script, fused, for-loop, adafactor, 8bit"):
        Setting("optimizer").set(job, "sgd")


# --- configuration files ----------------------------------------------------------------------------------------------

YAML = """\
# the data
data: {name: mnist, batch_size: 8}   # both
model:
  width: 512
  layers:
  - {size: 1}
  - size: 2   # the second
  dropout:
  tag: !custom x
"a.b": 3
"""
JSON = '{"data": {"batch_size": 8, "name": "mnist"}, "layers": [{"size": 1}, {"size": 2}], "a.b": 3}'
TOML = """\
title = "a # b = 8"
batch_size = 9
[data]
batch_size = 8  # samples
eval.batch_size = 8
[[layers]]
size = 1
[[layers]]
size = 2
"""


@pytest.mark.parametrize(
    ("name", "text", "key", "now", "value", "contains"),
    [
        ("a.yaml", YAML, "data.batch_size", 8, "32", "data: {name: mnist, batch_size: 32}   # both"),
        ("a.yml", YAML, "model.layers.1.size", 2, "32", "  - size: 32   # the second"),
        ("a.yaml", YAML, "model.dropout", None, "32", "  dropout: 32"),
        ("a.yaml", YAML, "model.width", 512, "wide: #1", '  width: "wide: #1"'),
        ("a.yaml", YAML, "a.b", 3, "32", '"a.b": 32'),
        ("a.json", JSON, "data.batch_size", 8, "32", '"batch_size": 32'),
        ("a.json", JSON, "layers.1.size", 2, "large", '"size": "large"'),
        ("a.json", JSON, "a.b", 3, "32", '"a.b": 32'),
        ("a.toml", TOML, "data.batch_size", 8, "32", "\nbatch_size = 32  # samples"),
        ("a.toml", TOML, "batch_size", 9, "32", "\nbatch_size = 32\n"),
        ("a.toml", TOML, "data.eval.batch_size", 8, "32", "eval.batch_size = 32"),
        ("a.toml", TOML, "layers.1.size", 2, "32", "size = 1\n[[layers]]\nsize = 32\n"),
        ("a.toml", TOML, "title", "a # b = 8", "x", 'title = "x"'),
        ("a.toml", TOML, "data.batch_size", 8, "8", "batch_size = 8  # samples"),
    ],
)
def test_only_the_value_of_the_key_changes(
    name: str, text: str, key: str, now: object, value: str, contains: str
) -> None:
    assert config_files.value_of(text, Path(name), key) == now
    changed = config_files.changed(text, Path(name), key, value)
    assert contains in changed
    typed = int(value) if value.isdecimal() else value
    assert config_files.value_of(changed, Path(name), key) == typed
    if not name.endswith("json"):
        assert len(changed.splitlines()) == len(text.splitlines())
        lines = zip(changed.splitlines(), text.splitlines(), strict=True)
        assert sum(one != other for one, other in lines) == (now != typed)


@pytest.mark.parametrize(
    ("name", "text", "key", "message"),
    [
        ("a.yaml", YAML, "data.batchsize", r"no key data.batchsize. Did you mean data.batch_size\? Its keys: data"),
        ("a.yaml", YAML, "batch_size", r"Did you mean .*data.batch_size"),
        ("a.yaml", YAML, "model", "model is not a single value; it has model.width, model.layers.0.size"),
        ("a.yaml", "a: [", "a", "a.yaml is not YAML: "),
        ("a.yaml", "", "a", "has no key a. Its keys: none"),
        ("a.json", "{", "a", "a.json is not JSON: "),
        ("a.toml", "a = ", "a", "a.toml is not TOML: "),
        ("a.toml", 'a = """x\ny"""', "a", "cannot change a; write it as a plain value"),
        ("a.yaml", "a: &x 8\nb: *x", "a", "cannot change a; write it as a plain value without an anchor"),
        ("a.yaml", "a: &x 8\nb: *x", "b", "cannot change b; write it as a plain value without an anchor"),
        ("a.yaml", "a: |\n  8\n", "a", "cannot change a"),
        ("a.yaml", "a: !x 8\n", "a", "cannot change a"),
    ],
)
def test_a_key_that_cannot_be_changed_is_told(name: str, text: str, key: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config_files.changed(text, Path(name), key, "32")


NAMES = st.text("abc_", min_size=1, max_size=3)
DOCUMENTS = st.recursive(
    st.integers(0, 9) | st.sampled_from(["x", "a = 1", "b: 2 # c"]),
    lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3) | st.lists(inner, min_size=1, max_size=3),
    max_leaves=12,
)


@given(document=st.dictionaries(NAMES, DOCUMENTS, min_size=1, max_size=4), data=st.data())
@settings(max_examples=200)
@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_every_value_of_any_document_can_be_changed_and_no_other_does(
    kind: str, document: dict[str, object], data: st.DataObject
) -> None:
    text = json.dumps(document) if kind == "json" else yaml.safe_dump(document)
    file = Path(f"a.{kind}")
    leaves = dict(config_files._leaves(document))
    path = data.draw(st.sampled_from(sorted(leaves)))
    changed = config_files.changed(text, file, ".".join(path), "77")
    loaded = json.loads(changed) if kind == "json" else yaml.safe_load(changed)
    assert dict(config_files._leaves(loaded)) == {**leaves, path: 77}


def test_a_configuration_file_is_changed_in_the_job_alone(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("a = 1\nb = 2\n")
    (tmp_path / "link.toml").symlink_to("real.toml")
    job = job_of("train.py", cwd=tmp_path)
    first, second = ConfigKey("link.toml:a"), ConfigKey("real.toml:b")
    assert (first.value_in(job), second.value_in(job)) == ("1", "2")
    changed = second.set(first.set(job, "10"), "20")
    ((path, text),) = changed.files
    assert path == (tmp_path / "real.toml").resolve()
    assert tomllib.loads(text) == {"a": 10, "b": 20}
    assert (tmp_path / "real.toml").read_text() == "a = 1\nb = 2\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.yaml", "must be FILE:KEY"),
        ("train.yaml:", "must be FILE:KEY"),
        ("train.ini:a", "train.ini is none of .yaml, .yml, .json, .toml"),
        ("missing.yaml:a", "cannot read missing.yaml: No such file"),
        ("binary.json:a", "binary.json is not text"),
    ],
)
def test_a_configuration_file_that_cannot_be_read_is_told(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=message):
        ConfigKey(name).value_in(job_of("train.py", cwd=tmp_path))


def test_all_are_knobs() -> None:
    knobs: list[Knob] = [Argument("--a"), Variable("A"), ConfigKey("a.json:a"), LoaderBatch(), Setting("optimizer")]
    assert len({knob.kind for knob in knobs}) == len(knobs)
