"""Where the engines lie: outside, in the folder that tools/engines.sh has made; inside, below /opt/engines."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.machine import Machine
from tests.machine.project import HIDDEN

VARIABLE = "GPU_LIFECYCLE_ENGINES"
INSIDE = "/opt/engines"
PYTHON = f"{INSIDE}/bin/python"
MODELS = f"{INSIDE}/models"
TARGET, TORN, LONG, GGUF = f"{MODELS}/target", f"{MODELS}/torn", f"{MODELS}/long", f"{MODELS}/tiny.gguf"
TORN_GGUF = f"{MODELS}/torn.gguf"
LLAMA_SERVER = f"{INSIDE}/bin/llama-server"
SHIM = f"{INSIDE}/shim"
# For an interpreter that lies elsewhere than it was built for, and has a library beside it; else it means nothing.
LIBRARIES = {"LD_LIBRARY_PATH": f"{INSIDE}/python/lib"}
ANSWER = """
import sys, sysconfig
print(sys.base_prefix, sysconfig.get_paths()["purelib"], "%d.%d" % sys.version_info[:2], sep="\\n")
"""


@dataclass(frozen=True)
class Engines:
    """The environment outside: its packages, and the interpreter that it was made of."""

    home: Path
    packages: Path
    prefix: str
    version: str

    @property
    def python(self) -> str:
        """To be run outside the machine, where nothing needs one."""
        return str(self.home / "env/bin/python")

    def shown(self) -> dict[str, Path]:
        """What a machine must show of it, by its place there."""
        found = {f"{INSIDE}/lib/python{self.version}/site-packages": self.packages}
        if self._moved:
            found[f"{INSIDE}/python"] = Path(self.prefix)
        return found

    def install(self, machine: Machine) -> None:
        """The rest: an environment of the same packages, the shim, the models."""
        prefix = f"{INSIDE}/python" if self._moved else self.prefix
        machine.write(f"{INSIDE}/pyvenv.cfg", f"home = {prefix}/bin\ninclude-system-site-packages = false\n")
        machine.run(["mkdir", "-p", f"{INSIDE}/bin"])
        machine.run(["ln", "-sfn", f"{prefix}/bin/python{self.version}", PYTHON])
        tests = Path(__file__).parent
        machine.copy(tests / "shim", SHIM)
        machine.copy(tests.parent / "standins/sglang_standin/process.py", f"{SHIM}/standin_process.py")
        machine.copy(self.home / "models", MODELS)
        machine.write(LLAMA_SERVER, f"#!{PYTHON}\n{(tests / 'llama_server.py').read_text()}")
        machine.run(["chmod", "755", LLAMA_SERVER])

    @property
    def _moved(self) -> bool:
        """An interpreter that the machine or its units hide comes as a mount of its own."""
        prefix = Path(self.prefix)
        closed = any(not folder.stat().st_mode & 0o001 for folder in (prefix, *prefix.parents))
        return closed or any(prefix.is_relative_to(name) for name in HIDDEN)


def find() -> Engines:
    """What the variable names. RuntimeError where there is nothing: it is never a reason to pass a test over."""
    home = os.environ.get(VARIABLE)
    if not home or not (python := Path(home, "env/bin/python")).exists():
        raise RuntimeError(f"there are no engines in {VARIABLE}={home}: make test-engines makes them and runs these tests")
    told = subprocess.run([str(python), "-c", ANSWER], capture_output=True, text=True, check=True).stdout
    prefix, packages, version = told.split("\n")[:3]
    return Engines(Path(home), Path(packages), prefix, version)
