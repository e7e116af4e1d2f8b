"""Keeps experiment trackers and uploads from sending, and journals what a script tried to send (`not_sent`).

The environment variables are set before anything is imported, so the libraries themselves stay offline; hubs are kept
from downloading as well, unless the run is online. Uploads that would fail offline become no-ops that are noted. A line
is written only if the script used one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..capture import Capture
from ..patches import Patches

Note = Callable[[str], None]

TRACKING = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
DOWNLOADS = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

TRACKERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "wandb": ("Weights & Biases", ("init",)),
    "comet_ml": ("Comet", ("Experiment", "start")),
    "clearml": ("ClearML", ("Task",)),
    "neptune": ("Neptune", ("init_run",)),
    "mlflow": ("MLflow", ("start_run", "set_tracking_uri", "set_experiment")),
}
"""Module -> product name, and the functions whose call shows that it is used."""

UPLOADS = (
    "create_branch",
    "create_commit",
    "create_repo",
    "create_tag",
    "delete_file",
    "delete_repo",
    "upload_file",
    "upload_folder",
    "upload_large_folder",
)
"""Methods of huggingface_hub.HfApi and functions of huggingface_hub that change the Hub."""


def install(capture: Capture) -> None:
    mlflow = {"MLFLOW_TRACKING_URI": f"file://{os.path.abspath(capture.options.directory)}/mlruns"}
    for name, value in {**TRACKING, **mlflow, **(DOWNLOADS if capture.options.offline else {})}.items():
        capture.patches.added(f"os.environ[{name!r}]", _restoring(name))
        os.environ[name] = value
    patches = capture.patches
    noted: set[str] = set()

    def note(what: str) -> None:
        if what not in noted:
            noted.add(what)
            capture.journal.write("not_sent", what=what)

    for module, (title, functions) in TRACKERS.items():
        capture.imports.when_imported(module, _watching(functions, title, patches, note))
    capture.imports.when_imported("mlflow", lambda mlflow: _keep_tracking_local(mlflow, patches, note))
    capture.imports.when_imported("huggingface_hub.hf_api", lambda hub: _disarm_hub(hub, patches, note))
    capture.imports.when_imported("transformers.utils.hub", lambda hub: _disarm_push(hub.PushToHubMixin, patches, note))
    capture.imports.when_imported("transformers.trainer", lambda module: _disarm_trainer(module.Trainer, patches, note))


def _restoring(name: str) -> Callable[[], None]:
    before = os.environ.get(name)

    def restore() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    return restore


def _watching(functions: tuple[str, ...], title: str, patches: Patches, note: Note) -> Callable[[Any], None]:
    def noting(original: Any) -> Any:
        @wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            note(title)
            os.environ.update(TRACKING)  # the script may have set others
            if title == "Weights & Biases" and "mode" in kwargs:
                kwargs["mode"] = TRACKING["WANDB_MODE"]
            return original(*args, **kwargs)

        return noted

    def watch(module: Any) -> None:
        for name in functions:
            original = getattr(module, name, None)
            if isinstance(original, type):
                patches.wrap(original, "__init__", noting)
            elif callable(original):
                patches.wrap(module, name, noting)

    return watch


def _keep_tracking_local(mlflow: Any, patches: Patches, note: Note) -> None:
    def set_tracking_uri(uri: Any) -> None:
        note("MLflow")

    patches.replace(mlflow, "set_tracking_uri", set_tracking_uri)


def _disarm_hub(hub: Any, patches: Patches, note: Note) -> None:
    for name in UPLOADS:
        disarmed = _Disarmed(name, note)
        for owner in (hub.HfApi, hub):  # the module's functions are bound methods of a shared HfApi
            if hasattr(owner, name):
                patches.replace(owner, name, disarmed.as_function())


class _Disarmed:
    def __init__(self, name: str, note: Note) -> None:
        self._name = name
        self._note = note

    def as_function(self) -> Any:
        name, note = self._name, self._note

        def nothing_is_sent(*args: Any, **kwargs: Any) -> _Nothing:
            note(f"Hugging Face Hub ({name})")
            return _Nothing(str(kwargs.get("repo_id") or "not-sent"))

        nothing_is_sent.__name__ = name
        return nothing_is_sent


class _Nothing(str):
    """Stands in for a response of the Hub: a string with the attributes of one."""

    @property
    def repo_id(self) -> str:
        return str(self)

    @property
    def commit_url(self) -> str:
        return ""

    @property
    def oid(self) -> str:
        return ""

    def result(self, timeout: float | None = None) -> _Nothing:
        return self

    def done(self) -> bool:
        return True

    is_done = done


def _disarm_push(mixin: Any, patches: Patches, note: Note) -> None:
    def push_to_hub(self: Any, repo_id: str = "", *args: Any, **kwargs: Any) -> str:
        note("Hugging Face Hub (push_to_hub)")
        return ""

    patches.replace(mixin, "push_to_hub", push_to_hub)


def _disarm_trainer(trainer: Any, patches: Patches, note: Note) -> None:
    def init_hf_repo(self: Any, token: str | None = None) -> None:
        note("Hugging Face Hub (Trainer)")
        self.hub_model_id = getattr(self.args, "hub_model_id", None) or "not-sent"

    def push(self: Any, *args: Any, **kwargs: Any) -> None:
        note("Hugging Face Hub (Trainer)")

    patches.replace(trainer, "init_hf_repo", init_hf_repo)
    patches.replace(trainer, "push_to_hub", push)
    patches.replace(trainer, "_push_from_checkpoint", push)
