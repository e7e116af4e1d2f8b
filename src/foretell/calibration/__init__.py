"""The memory a real card uses outside PyTorch: measured once (`foretell calibrate`), used anywhere (`--profile`)."""

from foretell.calibration.measuring import measure
from foretell.calibration.profile import load, render, render_toml

__all__ = ["load", "measure", "render", "render_toml"]
