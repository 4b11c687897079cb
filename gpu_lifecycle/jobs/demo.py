"""``gpu-lifecycle demo``: hands over to the demo of a source checkout, which brings the test machine."""

from __future__ import annotations

import os
import sys

from gpu_lifecycle.errors import UnavailableError
from gpu_lifecycle.system.packaged import package_dir


def demo(*, keep: bool) -> int:
    """Replaces this process by the demo. Raises UnavailableError where there is no source checkout."""
    checkout = os.path.dirname(package_dir())
    if not os.path.isfile(os.path.join(checkout, "tests", "demo.py")):
        raise UnavailableError(
            "cannot run the demo: it boots a test machine that only a source checkout has",
            hint="in a checkout: make demo",
        )
    os.chdir(checkout)
    words = [sys.executable, "-m", "tests.demo", *(["--keep"] if keep else [])]
    os.execv(sys.executable, words)  # noqa: S606 - our own interpreter, no words from outside
