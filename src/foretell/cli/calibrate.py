"""`foretell calibrate`: measures the memory a real GPU uses outside PyTorch, for `foretell run --profile`."""

from __future__ import annotations

import argparse
from pathlib import Path

_EPILOG = """Run this once on a machine with the GPU, with nothing else running on it; it takes a few seconds.
On any machine, the profile then replaces foretell's built-in figures for the CUDA context, the libraries and,
with cuDNN before 9.8, convolution workspaces (cuDNN 9.8 and newer is queried directly).

examples:
  foretell calibrate --output a100.json
  foretell run --profile a100.json train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help="where to write the profile")
    parser.add_argument("--device", metavar="N", type=int, default=0, help="index of the GPU to measure (default: 0)")
    parser.add_argument("--gpu", metavar="NAME", help="measure a virtual GPU instead, to try the command out")


def execute(options: argparse.Namespace) -> int:
    from foretell import calibration, gpus
    from foretell.cli.files import check_targets, write
    from foretell.cli.terminal import console, ignore_broken_pipe, printable
    from foretell.rules import library_bytes
    from foretell.units import format_bytes

    check_targets({"--output": options.output})
    virtual = None
    if options.gpu is not None:
        gpu = gpus.find(options.gpu)
        virtual = (gpu, library_bytes(gpu))
    terminal = console(stderr=True)
    with terminal.status("measuring the GPU ..."):
        profile = calibration.measure(device=options.device, virtual=virtual)
    write(options.output, calibration.render(profile), is_private=False)
    libraries = profile.libraries
    asking = [each for each in profile.convolutions if each.workspace_bytes]
    with ignore_broken_pipe():
        print(printable(f"{profile.device_name}, torch {profile.torch_version}, driver {profile.driver_version}"))
        print(f"  context                 {format_bytes(profile.context_bytes)}")
        print(f"  cuBLAS                  {format_bytes(libraries.cublas)}")
        print(f"  cuDNN                   {format_bytes(libraries.cudnn)}")
        print(f"  cuDNN, batch norm       {format_bytes(libraries.cudnn_batch_norm)}")
        print(f"  convolutions            {len(profile.convolutions)} measured, {len(asking)} with a workspace")
        print(f"use it with: foretell run --profile {options.output} SCRIPT.py")
    return 0
