"""How many failed runs in a row are enough, and how long the next one waits.

systemd's own limit counts starts within an interval (StartLimitIntervalSec= of systemd.unit(5)); where each load takes minutes
it never trips. This counts one chain of automatic restarts, whatever time it takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpu_lifecycle.rules.text import printable

SAME = 5  # failures that read alike: the sixth would, too
ALL = 10  # of any kind
LONGEST = 600.0  # seconds that a try waits at most
_NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|[0-9a-f]{8,}|\d+(?:\.\d+)?(?:ms|s|min|h|B|[KMGT]iB)?)\b", re.IGNORECASE)


def signature(failure: str) -> str:
    """A failure without what differs from run to run: pids, times, sizes, addresses."""
    return printable(re.sub(r"N(?: N)+", "N", _NUMBER.sub("N", failure)), 200)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a chain of restarts has used up. ``same`` of the ``failed`` runs, the last ones, failed like ``like``."""

    failed: int = 0
    same: int = 0
    like: str = ""

    def after(self, failure: str, *, proven: bool) -> Budget:
        """With one more failed run. One that had been ready for long begins a new chain."""
        before = Budget() if proven else self
        like = signature(failure)
        return Budget(before.failed + 1, before.same + 1 if like == before.like else 1, like)

    @property
    def spent(self) -> str:
        """Why there is no further try; "" where there is one."""
        if self.same >= SAME:
            return f"{self.same} runs in a row failed in the same way"
        return f"{self.failed} runs in a row failed" if self.failed >= ALL else ""

    def pause(self, restart: float) -> float:
        """Seconds to wait beside systemd's ``restart`` (RestartSec=): the pause doubles with each failed run."""
        return min(LONGEST, restart * (2.0 ** min(self.failed - 1, 20) - 1)) if self.failed > 1 else 0.0


def known(failed: int, same: int, like: str) -> Budget:
    """From a state file, which the unit's user may write: what makes no sense counts as nothing."""
    failed = min(max(failed, 0), ALL)
    return replace(Budget(failed, min(max(same, 0), failed)), like=printable(like, 200))
