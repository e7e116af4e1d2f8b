"""Runs the user's command on the virtual GPU. `launch` is the parent's side, `inside` the child's."""

from foretell.capture.command import Command, TorchInstall, find_torch, resolve
from foretell.capture.launch import CaptureOptions, Progress, launch
from foretell.capture.warm import WarmProcess

__all__ = ["CaptureOptions", "Command", "Progress", "TorchInstall", "WarmProcess", "find_torch", "launch", "resolve"]
