"""`foretell calibrate`: what a real card takes beside PyTorch's memory, for `foretell run --profile`."""

from __future__ import annotations

import argparse
from pathlib import Path

from foretell.errors import UsageError

_EPILOG = """Run it once on a machine that has the card, with nothing else on it; it takes some seconds. The
profile then replaces foretell's guesses on any machine: context, library bytes, and, for cuDNN before 9.8, the
workspaces of convolutions (from 9.8 on cuDNN itself is asked).

examples:
  foretell calibrate --output a100.json
  foretell run --profile a100.json train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help="where the profile goes")
    parser.add_argument("--device", metavar="N", type=int, default=0, help="which of the machine's cards (default: 0)")
    parser.add_argument("--gpu", metavar="NAME", help="a virtual card instead, to see how it works")


def execute(options: argparse.Namespace) -> int:
    from foretell import calibration, gpus
    from foretell.cli.terminal import console, readers_may_leave
    from foretell.overhead import library_bytes
    from foretell.units import format_bytes

    if not options.output.resolve().parent.is_dir():
        raise UsageError(f"--output {options.output}: there is no folder {options.output.resolve().parent}.")
    virtual = None
    if options.gpu:
        gpu = gpus.find(options.gpu)
        virtual = (gpu, library_bytes(gpu))
    terminal = console(stderr=True)
    with terminal.status("measuring the card ..."):
        profile = calibration.measure(device=options.device, virtual=virtual)
    calibration.save(profile, options.output)
    libraries = profile.libraries
    asking = [each for each in profile.convolutions if each.workspace_bytes]
    with readers_may_leave():
        print(f"{profile.device_name}, torch {profile.torch_version}, driver {profile.driver_version}")
        print(f"  context                 {format_bytes(profile.context_bytes)}")
        print(f"  cuBLAS                  {format_bytes(libraries.cublas)}")
        print(f"  cuDNN                   {format_bytes(libraries.cudnn)}")
        print(f"  cuDNN, batch norm       {format_bytes(libraries.cudnn_batch_norm)}")
        print(f"  convolutions            {len(profile.convolutions)} measured, {len(asking)} ask for a workspace")
        print(f"written to {options.output}; use it with foretell run --profile {options.output}")
    return 0
