"""All that is replaced in the user's process is in one register, and can be undone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foretell import gpus
from foretell.inside.patches import Patches
from foretell.records import LibraryBytes
from foretell.runs.patches import list_patches
from foretell.virtual import environment

from .conftest import ROOT, Run

SOURCE = ROOT / "src" / "foretell"


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    def method(self) -> str:
        return "original"

    @staticmethod
    def static() -> str:
        return "original"


def saying(word: str) -> Any:
    def wrapper(original: Any) -> Any:
        return lambda *args: f"{word}({original(*args)})"

    return wrapper


def test_two_patches_of_one_name_stack_and_are_undone_in_reverse() -> None:
    before, patches = dict(vars(Owner)), Patches()
    patches.wrap(Owner, "method", saying("a"))
    patches.wrap(Owner, "method", saying("b"))
    assert Owner().method() == "b(a(original))"
    patches.undo()
    assert dict(vars(Owner)) == before
    assert list(patches) == []


def test_a_static_method_and_an_inherited_one_are_as_before() -> None:
    before, patches = dict(vars(Owner)), Patches()
    patches.wrap(Owner, "static", lambda original: staticmethod(lambda: f"a({original()})"))
    patches.wrap(Owner, "inherited", saying("a"))
    assert (Owner.static(), Owner().inherited()) == ("a(original)", "a(base)")
    patches.undo()
    assert dict(vars(Owner)) == before
    assert all(vars(Owner)[name] is value for name, value in before.items())


def test_the_register_says_what_was_replaced_and_by_whom() -> None:
    patches, undone = Patches(), []
    patches.replace(Owner, "method", None)
    patches.added("something else", lambda: undone.append(True))
    module = __name__.partition(".")[2]
    assert [(str(each), each.by) for each in patches] == [
        (f"{__name__}.Owner.method", module), ("something else", module),
    ]  # fmt: skip
    patches.undo()
    assert undone == [True]


UNDOING = """
    import builtins, importlib, io, json, os, sqlite3, shutil, sys, threading, types
    import torch
    package = sys.modules["foretell_child"] = types.ModuleType("foretell_child")
    package.__path__ = [{source!r}]
    inside = importlib.import_module("foretell_child.inside")
    import torch._dynamo, torch.utils.checkpoint, torch.distributed.fsdp
    os.environ["CUDA_MODULE_LOADING"] = "LAZY"  # torch 2.6 sets it when CUDA starts

    def names():
        '''What each attribute of each module, and of each class in one, stands for.'''
        found, seen = {{}}, set()
        for title, module in list(sys.modules.items()):
            is_other = title.startswith(("foretell_child", "__main__", "__mp_main__"))
            if is_other or not isinstance(module, types.ModuleType):
                continue
            for owner in [module, *(value for value in list(vars(module).values()) if isinstance(value, type))]:
                if id(owner) in seen:
                    continue
                seen.add(id(owner))
                owners[id(owner)] = owner
                found |= {{(id(owner), name): value for name, value in list(vars(owner).items())}}
        return found

    def is_ours(value):
        if type(value) in (staticmethod, classmethod):
            value = value.__func__
        if type(value) is types.FunctionType:
            return value.__code__.co_filename.startswith({source!r})
        return str(type(value).__module__).startswith("foretell_child")

    owners = {{}}
    before = names()
    for options in {all_options!r}:
        sys.stdout.flush()
        if os.fork() == 0:
            break  # the card is not in use yet, so a fork may use it
        assert os.wait()[1] == 0
    else:
        os._exit(0)
    environment, hooks = dict(os.environ), sys.meta_path[:]
    capture = inside.install({{"directory": {directory!r}, **options}})
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    hooked = names()
    known = {{owner for owner, _ in before}}  # the CPU engine also puts classes of its own into torch
    replaced = [key for key, value in hooked.items() if is_ours(value) and key[0] in known]
    registered = {{(id(each.owner), each.name) for each in capture.patches if hasattr(each, "owner")}}
    capture.patches.undo()
    after = names()

    def listed(keys):
        return sorted(f"{{owners[owner].__name__}}.{{name}}" for owner, name in keys)

    print(json.dumps({{
        "replaced": len(replaced),
        "not registered": listed(key for key in replaced if key not in registered),
        "not as before": listed(key for key in replaced if after.get(key) is not before.get(key)),
        "still ours": listed(key for key, value in after.items() if is_ours(value)),
        "environment": sorted({{*os.environ.items()}} ^ {{*environment.items()}}),
        "meta_path": sys.meta_path == hooks,
        "modes": torch._C._len_torch_function_stack(),
    }}))
"""
EVERYTHING = {
    "survey": True,
    "alternatives": ["zero-grad-to-none", "drop-last", "optimizer-implementation=fused", "optimizer=adafactor"],
}


OPTIONS = {"default": {}, "with-changes": EVERYTHING, "cpu-engine": {"engine": "cpu"}}


@pytest.fixture(scope="module")
def undone(capture: Run, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the script says for each of `OPTIONS`, in a fork of its own."""
    directory = str(tmp_path_factory.mktemp("undone"))
    script = UNDOING.format(source=str(SOURCE), directory=directory, all_options=[*OPTIONS.values()])
    card = environment(
        gpus.find("rtx-3060"), context_bytes=0, libraries=LibraryBytes(cublas=0, cudnn=0, nccl=0), log_prefix=""
    )
    device = {"FORETELL_DEVICE": card["FORETELL_DEVICE"]}
    # Cold: no part of foretell is loaded before the names are looked at.
    said = capture(script, hooks=False, cold=True, environment=device).check().said
    return [json.loads(line) for line in said if line.startswith('{"replaced":')]


@pytest.mark.parametrize("number", range(len(OPTIONS)), ids=OPTIONS)
def test_undoing_leaves_every_name_as_it_was(undone: list[dict[str, Any]], number: int) -> None:
    """The identity of each attribute of each module and class, before and after; and every one that is ours while the
    hooks are there is in the register."""
    said = dict(undone[number])
    assert said.pop("replaced") > 60
    assert said == {
        "not registered": [], "not as before": [], "still ours": [],
        "environment": [], "meta_path": True, "modes": 0,
    }  # fmt: skip


def test_the_doctor_lists_what_is_replaced(python: str) -> None:
    listed = {each["what"]: each["by"] for each in list_patches(python, gpus.find("rtx-3060"))}
    assert listed["builtins.open"] == listed["os.stat"] == "inside.files.overlay"
    assert listed["torch.autograd.backward"] == "inside.watch.phases"
    assert listed["torch.nn.modules.module.Module.__call__"] == "inside.watch.modules"
    assert listed["torch._C._cuda_resetPeakMemoryStats"] == "inside.watch.peaks"
    assert listed["os.environ['HF_HUB_OFFLINE']"] == "inside.guard.offline"
