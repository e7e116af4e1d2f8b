"""What a real card takes beside PyTorch's memory, measured once (`foretell calibrate`), used anywhere (`--profile`)."""

from foretell.calibration.measuring import measure
from foretell.calibration.profile import Convolution, Profile, load, save

__all__ = ["Convolution", "Profile", "load", "measure", "save"]
