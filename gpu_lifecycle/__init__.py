"""gpu-lifecycle: makes ``systemctl start`` of a GPU inference server a thing one can trust."""

__version__ = "0.1.0"
