"""EnvironmentFile= as we read it, beside what systemd really gives to a service; and what ``check`` makes of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpu_lifecycle.rules.env_file import read
from gpu_lifecycle.rules.units import version_number
from tests.systemd.site import CONFIG, Site

pytestmark = pytest.mark.machine
PLACE = "/run/environments"
UNIT = f"""[Service]
Type=oneshot
EnvironmentFile={PLACE}/%i.env
ExecStart=/usr/bin/env -0
StandardOutput=truncate:{PLACE}/%i.out
"""
AWKWARD = (
    "", "A=1", "A=1\nB = two words \n", "# A=1\n;B=1\n  # C=1\nD=1 # kept\n", "A='a  b '\nB=\"a \\\"b\\\" \\$c \\d \\`\"\n",
    "A=one \\\n  two\nB=\"one \\\ntwo\"\nC='one \\\ntwo'\n", "A='one'\"two\" three \nB=\"x \" y \n", "A=it's\nB=say \"hi\"\n",
    "A=\nB\nC", "export A=1\n9=1\nA-B=1\n=1\nB=1\x01\nC=\x7f\nD=a\tb\n", "A='never closed\nB=1\n", "A=\\ \nB=x\\\\\nC=x \\\n",
    "A=1\r\nB=2\r\n", "# so it was \\\nA=1\nB=2\n", "A=x  \\  \nB=\\\n\nC=1\n", "A = \\\n \n",
    "A=\ufeff\nB=é\n", "\ufeffA=1\nB=1\n", "A=\uffff\n", "A=1\nA=2\nA=\n",
    "A B=1\nC\t=1\n", "A=\"x\\\ry\"\n", "A=$B\nB=%h\n", "A='\nB='1\n", "A=\\", "A=\"\\",
    "A=\"x\"y'z'\n",
)  # fmt: skip
PIECES = ("A", "B", "_", "=", "=", " ", "\t", "\n", "\n", "\r", "\\", "'", '"', "#", ";", "$", "`", "x y", "é", "=1\n")


def texts() -> list[str]:
    """The same ones each time."""
    chance = random.Random(252)
    return [*AWKWARD, *("".join(chance.choices(PIECES, k=chance.randint(3, 24))) for _ in range(120))]


def given_by_systemd(site: Site, number: int) -> dict[str, str] | None:
    """None: the service was not started."""
    failed = site.ask("systemctl", "show", f"environment@{number}", "-P", "Result").strip() == "resources"
    lines = site.machine.read(f"{PLACE}/{number}.out").split("\0") if not failed else None
    return None if lines is None else dict(line.split("=", 1) for line in lines if line)


def test_files_are_read_as_systemd_reads_them(site: Site) -> None:
    version = version_number(site.ask("systemctl", "--version").split()[1])
    site.machine.write("/run/systemd/system/environment@.service", UNIT)
    site.ask("mkdir", "-p", PLACE)
    found = texts()
    script = "".join(f"printf '%s' {_octal(text)} > {PLACE}/{at}.env\n" for at, text in enumerate(found))
    site.machine.run(["bash"], input=script)
    site.machine.run(["systemctl", "daemon-reload"])
    for first in range(0, len(found), 25):
        names = [f"environment@{at}" for at in range(first, min(first + 25, len(found)))]
        site.machine.run(["systemctl", "start", *names], check=False)
    own = given_by_systemd(site, 0) or {}
    for at, text in enumerate(found):
        real = given_by_systemd(site, at)
        real = real if real is None else {name: value for name, value in real.items() if name not in own}
        assert (text, read(text, version)) == (text, real)
    site.ask("systemctl", "reset-failed")


def _octal(text: str) -> str:
    return "$'" + "".join(f"\\{byte:03o}" for byte in text.encode()) + "'"


def findings(site: Site) -> dict[str, dict[str, Any]]:
    return {item["code"]: item for item in site.cli("check", "sglang-kimi")["findings"]}


def test_check_knows_what_the_files_say(site: Site) -> None:
    """A model by its name that is not here: an error only where it is certain that nothing may be downloaded."""
    site.machine.write(CONFIG, site.machine.read(CONFIG).replace('"/models/kimi"', '"org/kimi"'))
    site.machine.write("/etc/kimi/1.env", "HF_HUB_OFFLINE=0\n")
    site.machine.write("/etc/kimi/2.env", "# last\nHF_HUB_OFFLINE='1'\n")
    with site.drop_in("[Service]\nEnvironmentFile=/etc/kimi/*.env\nEnvironmentFile=-/etc/kimi/none\n"):
        assert findings(site)["model-offline"]["level"] == "error"
        site.start_and_fail()
        site.wait_state("failed")
        assert "HF_HUB_OFFLINE forbids to download it" in site.messages("start-refused")
        site.machine.run(["rm", "/etc/kimi/2.env"])
        assert "model-offline" not in findings(site)


def test_a_file_that_is_not_there_is_an_error(site: Site) -> None:
    with site.drop_in("[Service]\nEnvironmentFile=/etc/kimi/none\n"):
        found = findings(site)["environment-file"]
        assert found["message"] == (
            "EnvironmentFile=/etc/kimi/none cannot be read: there is no such file; systemd will not start the unit"
        )
        site.start_and_fail()
        assert site.show("Result") == "resources"
    with site.drop_in("[Service]\nEnvironmentFile=-/etc/kimi/none\n"):
        assert "environment-file" not in findings(site)
