"""Builds the virtual GPU, foretell's native part, into the package. Everything else is in pyproject.toml.

    python setup.py build_native --inplace     what `make native` calls

CC and CFLAGS are honoured; CFLAGS comes last, so it can override the optimisation or add a sanitizer.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("src/foretell/virtual")
FLAGS = ["-O2", "-g", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-shared", "-Wall", "-Wextra", "-Werror"]
NO_COMPILER = """
foretell's virtual GPU is written in C and there is no C compiler here ({compiler!r} was not found).
  Debian, Ubuntu:  apt install gcc libc6-dev
  Fedora:          dnf install gcc
  conda:           conda install gcc
Or name one with CC=/path/to/cc. The wheels of foretell are compiled already and need no compiler.
"""


def libraries() -> dict[str, list[Path]]:
    """What is built: the file's name, which is its SONAME too, and its sources."""
    sources = sorted((ROOT / PACKAGE / "native").rglob("*.c"))
    return {
        "libcuda.so.1": [source for source in sources if source.name != "nvml.c"],
        "libnvidia-ml.so.1": [source for source in sources if source.name == "nvml.c"],
    }


def compile_library(name: str, sources: list[Path], target: Path) -> None:
    native = ROOT / PACKAGE / "native"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise SystemExit(NO_COMPILER.format(compiler=compiler[0]))
    versions = native / "versions.map"
    link = [f"-Wl,-soname,{name}", "-lpthread", "-ldl", "-lm"]
    if name == "libcuda.so.1":  # the other one takes the device's state from this one, when both are loaded
        link += ["-Wl,-z,defs"] + ([f"-Wl,--version-script={versions}"] if versions.exists() else [])
    # Written beside its place and renamed: a process that has the old one loaded keeps it whole.
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [*compiler, *FLAGS, *shlex.split(os.environ.get("CFLAGS", "")), f"-I{native}"]
    command += ["-o", str(unfinished), *map(str, sources), *link]
    print(shlex.join(command), file=sys.stderr)
    try:
        if subprocess.run(command).returncode != 0:
            raise SystemExit(f"foretell: {name} does not compile; see the output of the compiler above")
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


class build_native(Command):
    """Compiles the virtual GPU; a sub-command of `build`, so that wheels and editable installs have it."""

    description = "compile the virtual GPU (libcuda.so.1 and libnvidia-ml.so.1)"
    user_options = [
        ("inplace", "i", "put the libraries into the source tree"),
        ("build-lib=", "b", "put the libraries into this build folder"),
    ]
    boolean_options = ["inplace"]
    editable_mode = False

    def initialize_options(self) -> None:
        self.inplace = False
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        if sys.platform != "linux":
            print(
                f"foretell: the virtual GPU needs Linux; installing without it on {platform.system()}",
                file=sys.stderr,
            )
            return
        for name, sources in libraries().items():
            if not sources:
                raise SystemExit(f"foretell: {PACKAGE}/native has no sources of {name}; the source tree is incomplete")
            compile_library(name, sources, self.target(name))

    def target(self, name: str) -> Path:
        if self.inplace or self.editable_mode:
            return ROOT / PACKAGE / name
        assert self.build_lib is not None
        return Path(self.build_lib) / "foretell" / "virtual" / name

    # What setuptools asks of a sub-command of `build`.
    def get_source_files(self) -> list[str]:
        files = sorted(path for path in (ROOT / PACKAGE / "native").rglob("*") if path.is_file())
        return [str(path.relative_to(ROOT)) for path in files]

    def get_outputs(self) -> list[str]:
        return [str(self.target(name)) for name in libraries()] if sys.platform == "linux" else []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class build_with_native(build):
    sub_commands = [*build.sub_commands, ("build_native", None)]


class wheel_without_abi(bdist_wheel):
    """The libraries are the platform's, but no Python's: one wheel serves every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class PlatformDistribution(Distribution):
    """Has native code, even though none of it is a Python extension module."""

    def has_ext_modules(self) -> bool:
        return sys.platform == "linux"


setup(
    distclass=PlatformDistribution,
    cmdclass={"build": build_with_native, "build_native": build_native, "bdist_wheel": wheel_without_abi},
)
