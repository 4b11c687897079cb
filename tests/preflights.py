"""What a start finds in command line and models, waited for."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_lifecycle.facts import Finding
from gpu_lifecycle.jobs.preflight import SECONDS, Preflight
from gpu_lifecycle.rules.config import Config


def preflight(config: Config, service: str, env: Mapping[str, str], seconds: float = SECONDS) -> tuple[Finding, ...]:
    """Raises what Preflight raises."""
    begun = Preflight(config, service, env, seconds)
    try:
        return begun.findings()
    finally:
        begun.close()
