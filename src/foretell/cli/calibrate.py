"""`foretell calibrate`: measures the memory a real GPU uses outside PyTorch, for `foretell run --profile`."""

from __future__ import annotations

import argparse
from pathlib import Path

_EPILOG = """Run this once on a machine with the GPU, with nothing else running on it; it takes a few seconds.
On any machine, the profile then replaces foretell's built-in figures for the CUDA context, the libraries and,
with cuDNN before 9.8, convolution workspaces (cuDNN 9.8 and newer is queried directly).

Without access to the machine, --from-runs fits a profile to a few jobs that ran there: a CSV file with the columns
command (a script and its arguments, which must run here as well) and peak (the most that nvidia-smi showed). Small
jobs without convolutions, MLPs or Transformers, tell the most. The torch of this environment should be theirs.

  command,peak
  train.py --batch-size 64,3712MiB
  train.py --batch-size 128,5210MiB

examples:
  foretell calibrate --output a100.json
  foretell calibrate --from-runs runs.csv --gpu a100-40gb --output cluster.toml
  foretell run --profile a100.json train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help="where to write the profile")
    parser.add_argument("--device", metavar="N", type=int, default=0, help="index of the GPU to measure (default: 0)")
    parser.add_argument(
        "--gpu", metavar="NAME",
        help="measure a virtual GPU instead, to try the command out; with --from-runs: the GPU that the jobs ran on",
    )  # fmt: skip
    parser.add_argument(
        "--from-runs", metavar="FILE", type=Path,
        help="fit the profile to measured runs (CSV: command, peak of nvidia-smi); --output is a TOML file",
    )  # fmt: skip


def execute(options: argparse.Namespace) -> int:
    from foretell import calibration, gpus
    from foretell.cli.files import check_targets, write
    from foretell.cli.terminal import console, ignore_broken_pipe, printable
    from foretell.rules import library_bytes
    from foretell.units import format_bytes

    check_targets({"--output": options.output})
    if options.from_runs is not None:
        return _from_runs(options)
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


def _from_runs(options: argparse.Namespace) -> int:
    from foretell import calibration, gpus
    from foretell.calibration import from_runs
    from foretell.cli.files import write
    from foretell.cli.terminal import ignore_broken_pipe, printable, say
    from foretell.errors import UsageError
    from foretell.units import format_bytes

    if options.gpu is None:
        raise UsageError("--from-runs needs --gpu NAME: the GPU that the jobs ran on (`foretell gpus` lists them).")
    if options.output.suffix != ".toml":
        raise UsageError(f"--output {options.output}: with --from-runs it is a TOML file; name it .toml.")
    gpu, runs = gpus.find(options.gpu), from_runs.read_runs(options.from_runs)
    repeated = from_runs.repeat_runs(runs, gpu, on_progress=lambda run: say(f"{' '.join(run.command)}"))
    profile = from_runs.fitted(repeated, gpu)
    notes = [f"Fitted by `foretell calibrate --from-runs` to {profile.num_runs} measured runs."]
    write(options.output, calibration.render_toml(profile, notes), is_private=False)
    with ignore_broken_pipe():
        print(printable(f"{profile.device_name}, torch {profile.torch_version}, CUDA {profile.cuda_version}"))
        print("  line   measured    reserved    the rest is a context of")
        for each in repeated:
            sizes = (each.measured.peak_bytes, each.reserved_bytes, each.context_bytes(profile.libraries))
            mark = "  (convolutions: not used)" if each.has_convolutions and profile.num_runs < len(repeated) else ""
            print(f"  {each.measured.line:>4}  {'  '.join(f'{format_bytes(size):>10}' for size in sizes)}{mark}")
        context = profile.context_bytes
        low, high = context - profile.context_below_bytes, context + profile.context_above_bytes
        print(f"  context {format_bytes(context)}, {format_bytes(low)} to {format_bytes(high)}")
        print(f"use it with: foretell run --profile {options.output} SCRIPT.py")
    return 0
