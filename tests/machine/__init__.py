"""A test machine: a real systemd as PID 1 in namespaces of its own, on an overlay of this machine's root."""

from .machine import Machine
from .nvml import Nvml

__all__ = ["Machine", "Nvml"]
