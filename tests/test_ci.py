"""The GitHub Action, the pre-commit hook and what docs/ci.md shows: parsed, validated, and run as CI would."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import PYTEST_IN_FORKS, ROOT
from foretell.cli import main

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
EXAMPLES = ROOT / "examples" / "ci"
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"] if "run" in step}
TRAIN = """
import sys, torch
width = int(sys.argv[sys.argv.index("--width") + 1])
model = torch.nn.Linear(width, width).cuda()
for _ in range(3):
    model(torch.ones(8, width, device="cuda")).sum().backward()
"""


# --- the action -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "path"),
    [("vendor.github-actions", ROOT / "action.yml"), ("vendor.github-workflows", EXAMPLES / "github-actions.yml")],
)
def test_files_for_github_follow_its_schema(schema: str, path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="make ci-tools installs check-jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_input_becomes_part_of_a_script() -> None:
    assert len(STEPS) == 6
    for step in STEPS.values():
        assert "${{" not in step["run"], step["id"]


def test_every_input_is_used_and_every_output_is_set() -> None:
    text = (ROOT / "action.yml").read_text()
    for name in ACTION["inputs"]:
        assert f"inputs.{name}" in text, name
    for output in ACTION["outputs"].values():
        (step, name) = re.findall(r"steps\.(\w+)\.outputs\.([\w-]+)", output["value"])[0]
        assert f"{name}=" in STEPS[step]["run"]


def test_the_example_gives_only_inputs_that_there_are() -> None:
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())
    given = workflow["jobs"]["memory"]["steps"][1]["with"]
    assert set(given) <= set(ACTION["inputs"])
    assert {name for name, each in ACTION["inputs"].items() if each.get("required")} <= set(given)


class Runner:
    """Runs steps of the action as GitHub does: expressions of `env` replaced, bash with its options."""

    def __init__(self, folder: Path, inputs: Mapping[str, str], *, ref: str = "feature") -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir(exist_ok=True)
        (folder / "bin").mkdir(exist_ok=True)
        defaults = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
        self._values = {f"inputs.{name}": value for name, value in {**defaults, **inputs}.items()} | {
            "runner.os": "Linux", "github.action_path": str(ROOT), "github.repository": "ada/net",
            "github.event.number": "7", "github.ref_name == github.event.repository.default_branch":
            str(ref == "main").lower(),
        }  # fmt: skip
        self._values["inputs.foretell || github.action_path"] = inputs.get("foretell") or str(ROOT)

    def program(self, name: str, source: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\n{source}\n")
        path.chmod(0o755)

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        step = STEPS[name]
        script, output = self.folder / f"{name}.sh", self.folder / "output"
        script.write_text(step["run"])
        output.write_text("")
        given = {key: self._replaced(str(value)) for key, value in step.get("env", {}).items()}
        environment = {
            **os.environ, **given, "RUNNER_TEMP": str(self.folder / "temp"), "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.folder / "page.md"), "LOG": str(self.folder / "log"),
            "PATH": os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.work, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self._values[f"steps.{name}.outputs.{key}"] = value
        return done

    def outputs(self, step: str) -> dict[str, str]:
        start = f"steps.{step}.outputs."
        return {name.removeprefix(start): value for name, value in self._values.items() if name.startswith(start)}

    def _replaced(self, text: str) -> str:
        return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: self._values.get(found[1], ""), text)

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


RECORDS = 'printf "%q " "$(basename "$0")" "$@" >> "$LOG"; echo >> "$LOG"'


def test_the_action_installs_what_was_named(tmp_path: Path) -> None:
    runner = Runner(tmp_path, {"torch": "'torch<3' --index-url https://x", "requirements": "r.txt"})
    (runner.work / "r.txt").write_text("numpy\n")
    first = runner.step("prepare")
    assert first.returncode == 0, first.stderr
    key = runner.outputs("prepare")["packages"]
    assert re.fullmatch("[0-9a-f]{16}", key)
    (runner.work / "r.txt").write_text("scipy\n")
    runner.step("prepare")
    assert runner.outputs("prepare")["packages"] != key
    runner.program("python", f'if [[ $1 == -c ]]; then exec {shlex.quote(sys.executable)} "$@"; fi; {RECORDS}')
    assert runner.step("install").returncode == 0
    assert [shlex.split(line) for line in runner.log] == [
        ["python", "-m", "pip", "install", "torch<3", "--index-url", "https://x"],
        ["python", "-m", "pip", "install", "-r", "r.txt"],
        ["python", "-m", "pip", "install", str(ROOT)],
    ]


def test_a_name_that_is_no_part_of_a_path_is_refused(tmp_path: Path) -> None:
    done = Runner(tmp_path, {"name": "../x"}).step("prepare")
    assert (done.returncode, done.stdout) == (
        2, "::error::name: '../x' must consist of letters, digits, '.', '_' and '-'\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "ref", "has_baseline", "expected"),
    [
        ({"gpu": "a10g"}, "feature", False, "--of device --gpu a10g"),
        ({"limit": "2 GiB", "of": "request", "options": "--steps 5"}, "feature", False,
         "--of request --limit '2 GiB' --steps 5"),
        ({"baseline": "main.trace", "max-growth": "2%"}, "main", False,
         "--of device --baseline main.trace --max-growth 2%"),
        ({"gpu": "a10g", "baseline": "cache", "max-growth": "2%"}, "feature", True,
         "--of device --gpu a10g --baseline FOLDER/baseline.trace --max-growth 2%"),
        ({"gpu": "a10g", "baseline": "cache", "max-growth": "2%"}, "feature", False, "--of device --gpu a10g"),
        ({"gpu": "a10g", "baseline": "cache", "max-growth": "2%"}, "main", True, "--of device --gpu a10g"),
    ],
)  # fmt: skip
def test_inputs_become_options(
    inputs: dict[str, str], ref: str, has_baseline: bool, expected: str, tmp_path: Path
) -> None:
    command = "train.py --name 'a b' '$(touch hacked)' '*'"
    runner = Runner(tmp_path, {"command": command, **inputs}, ref=ref)
    runner.step("prepare")
    folder = Path(runner.outputs("prepare")["folder"])
    if has_baseline:
        (folder / "baseline.trace").touch()
    runner.program("foretell", RECORDS)
    done = runner.step("check")
    assert done.returncode == 0, done.stderr
    words = shlex.split(runner.log[0])
    first = ["--quiet", "--github", "--markdown", f"{folder}/summary.md", "--json", f"{folder}/check.json"]
    last = ["--write-baseline", f"{folder}/run.trace", "--", *shlex.split(command)]
    assert words == ["foretell", "check", *first, *shlex.split(expected.replace("FOLDER", str(folder))), *last]
    assert not (runner.work / "hacked").exists()


def test_the_action_from_its_check_to_its_end(tmp_path: Path) -> None:
    """On the default branch, then on a branch that needs more; with the real foretell."""
    inputs = {"baseline": "cache", "max-growth": "2%", "gpu": "rtx-3060", "name": "net"}
    main = Runner(tmp_path, {**inputs, "command": "train.py --width 512"}, ref="main")
    (main.work / "train.py").write_text(TRAIN)
    for name in ("prepare", "check", "keep", "result"):
        done = main.step(name)
        assert done.returncode == 0, done.stdout + done.stderr
    assert main.outputs("keep") == {"is-new": "true"}
    assert main.outputs("check")["verdict"] == "within"
    branch = Runner(tmp_path, {**inputs, "command": "train.py --width 4096"})
    for name in ("prepare", "check"):
        assert branch.step(name).returncode == 0
    assert branch.outputs("check")["exit-code"] == "3"
    assert branch.outputs("check")["verdict"] == "over"
    assert int(branch.outputs("check")["device-bytes"]) > 128 << 20
    assert branch.step("result").returncode == 3
    page = (tmp_path / "page.md").read_text()
    assert page.count("### ") == 2
    assert "device grew by" in page


GH = """if [[ $* == *--paginate* ]]; then printf '%s' "$OLD"; exit "${FAILS:-0}"; fi
printf '%s\\n' "$*" >> "$LOG"; exit "${FAILS:-0}"
"""


def test_a_comment_is_written_once_and_then_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(tmp_path, {"name": "net"})
    runner.step("prepare")
    folder = Path(runner.outputs("prepare")["folder"])
    runner.program("gh", GH)
    assert runner.step("comment").returncode == 0
    assert runner.log == []  # there is no summary
    (folder / "summary.md").write_text("### fine\n")
    for old in ("", "11\n12\n"):
        monkeypatch.setenv("OLD", old)
        assert runner.step("comment").returncode == 0
    assert runner.log == [
        f"api repos/ada/net/issues/7/comments -F body=@{folder}/comment.md",
        f"api -X PATCH repos/ada/net/issues/comments/12 -F body=@{folder}/comment.md",
    ]
    assert (folder / "comment.md").read_text() == "<!-- foretell net -->\n### fine\n"
    monkeypatch.setenv("FAILS", "1")
    done = runner.step("comment")
    assert done.returncode == 0
    assert "::warning::cannot comment" in done.stdout


# --- pre-commit -------------------------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path, **files: str) -> Path:
    folder.mkdir()
    git(folder, "init", "-q")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")
    return folder


def test_the_hook_checks_a_script(tmp_path: Path) -> None:
    pytest.importorskip("pre_commit", reason="make ci-tools installs pre-commit")
    hooks = repository(tmp_path / "hooks", **{".pre-commit-hooks.yaml": (ROOT / ".pre-commit-hooks.yaml").read_text()})
    config = yaml.safe_load((EXAMPLES / "pre-commit-config.yaml").read_text())
    (entry,) = config["repos"]
    (hook,) = entry["hooks"]
    entry |= {"repo": str(hooks), "rev": git(hooks, "rev-parse", "HEAD")}
    words = hook["args"]
    hook["args"] = [*words[: words.index("train.py") + 1], "--width", "512"]
    user = repository(tmp_path / "user", **{".pre-commit-config.yaml": yaml.safe_dump(config), "train.py": TRAIN})

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        words = ["run", "--all-files", "--verbose", *options, "foretell-check"]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home"), "PATH": path}
        command = [sys.executable, "-m", "pre_commit", *words]
        return subprocess.run(command, cwd=user, env=environment, capture_output=True, text=True)

    done = run("--hook-stage", "pre-push")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "within limits" in done.stdout
    hook["args"][hook["args"].index("22GiB")] = "1MiB"
    (user / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    git(user, "add", "-A")
    done = run("--hook-stage", "pre-push")
    assert done.returncode == 1
    assert "exit code: 3" in done.stdout
    assert "over the limit: device" in done.stdout


# --- the documentation ------------------------------------------------------------------------------------------------


def test_the_examples_of_the_documentation_are_those_in_the_repository() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    for name in ("github-actions.yml", "pre-commit-config.yaml", "test_memory.py"):
        assert f"(../examples/ci/{name})" in page
        code = re.findall(rf"\({re.escape(f'../examples/ci/{name}')}\).*?\n```\w+\n(.*?)```", page, re.DOTALL)
        assert code, name
        assert code[0] in (EXAMPLES / name).read_text(), name


@pytest.mark.usefixtures("in_forks")
def test_the_commands_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    commands = [line.partition("#")[0] for line in re.findall(r"^    (foretell check .*)$", page, re.MULTILINE)]
    assert len(commands) == 4
    (tmp_path / "train.py").write_text(TRAIN.replace('int(sys.argv[sys.argv.index("--width") + 1])', "256"))
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, f"{command}\n{capfd.readouterr()}"
    capfd.readouterr()
    (code,) = re.findall(r"```python\n(import foretell\n.*?)```", page, re.DOTALL)
    exec(code, {})
    said = capfd.readouterr().out.splitlines()
    assert said[:2] == ["within", "within limits, " + said[1].split(", ")[1]]


def test_the_example_of_tests_passes(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "test_memory.py", tmp_path)
    (tmp_path / "conftest.py").write_text(PYTEST_IN_FORKS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_memory.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_schema_of_the_json_is_that_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    from foretell.plan.check import Gate, judge
    from test_check import estimate

    document: dict[str, Any] = json.loads(judge(estimate(), Gate(limit="22GiB")).to_json())
    for name in [*document, *document["rules"][0]]:
        assert f"`{name}`" in page or name == "schema", name
