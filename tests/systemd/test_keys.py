"""The engine's API key as a systemd credential: used for what we ask, and to be seen nowhere.

systemd's own mount of the credentials does not come about in the test machine (LoadCredential= gives a folder that is empty and
root's, for any unit). So the folder is made here, as systemd.exec(5) has it: the user's, read-only, named by the variable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.systemd.site import CONFIG, ENGINE, UNIT, Site

pytestmark = pytest.mark.machine

KEY = "s3cret-of-the-engine"
FOLDER = "/run/credentials-kimi"
LOADED = f"[Service]\nEnvironment=CREDENTIALS_DIRECTORY={FOLDER}\n"
# SGLang takes its key from its command line only. The shell is replaced by the engine: only that one's line holds it.
COMMAND = f"""exec /usr/bin/python3 -I {ENGINE} "$@" --api-key "$(cat "$CREDENTIALS_DIRECTORY/engine-key")" """
OPTIONS = "--model-path /models/kimi --tp 8 --load-seconds 1 --warmup-seconds 0.3 --enable-metrics"


@pytest.fixture
def keyed(site: Site) -> Iterator[Site]:
    """A unit whose key is a credential."""
    site.machine.write(f"{FOLDER}/engine-key", f"{KEY}\n")
    site.machine.run(["chown", "-R", "gpu-lifecycle:", FOLDER])
    site.machine.run(["chmod", "-R", "u=rX,go=", FOLDER])
    configure(site, "engine-key")
    with site.drop_in(LOADED):
        yield site


def configure(site: Site, key_file: str) -> None:
    command = ["/bin/sh", "-c", COMMAND, "engine", *OPTIONS.split()]
    site.machine.write(CONFIG, f"""
[server]
engine = "sglang"
command = {json.dumps(command)}
api_key_file = "{key_file}"
[gpus]
claim = "all"
count = 8
[sweep]
policy = "dedicated"
term_grace = "2s"
exit_deadline = "5s"
memory_deadline = "6s"
[watch]
interval = "300ms"
timeout = "1500ms"
busy_grace = "4s"
[stop]
drain = "1s"
""")  # fmt: skip


def journal(site: Site) -> str:
    """All that the unit has said in this test, the engine's own lines too."""
    return "\n".join(str(line.get("MESSAGE")) for line in site.machine.journal(UNIT, "-b", *site.since))


def seen(site: Site) -> list[str]:
    """Where the key can be read by others than the engine."""
    main = site.show("MainPID")
    shown = {
        "journal": journal(site),
        "state": site.ask("sh", "-c", "cat /run/gpu-lifecycle/sglang-kimi/*"),
        "incidents": site.ask("sh", "-c", "cat /var/lib/gpu-lifecycle/sglang-kimi/incidents/*/*"),
        "command line": site.ask("cat", f"/proc/{main}/cmdline"),
        "environment": site.ask("cat", f"/proc/{main}/environ"),
        "status text": site.show("StatusText"),
        "commands": "".join(
            site.ask("gpu-lifecycle", *words, "--json") for words in (["holders"], ["status", UNIT], ["check", UNIT])
        ),
    }
    assert all(shown[name] for name in ("journal", "state", "command line", "environment", "status text", "commands"))
    return [name for name, text in shown.items() if KEY in text]


def test_it_is_used_and_shown_nowhere(keyed: Site) -> None:
    """Through a start, a reload, idle times in which a token is asked for, and a hang with its evidence."""
    keyed.start()
    assert "server_args=ServerArgs(" in journal(keyed), "or nothing was to be hidden"
    assert "'api_key': ***" in journal(keyed)
    keyed.systemctl("reload")
    keyed.machine.run(["sleep", "3"])
    rows = json.loads(keyed.machine.read("/run/gpu-lifecycle/sglang-kimi/state.json"))["probes"]
    assert all(row["ok"] for row in rows if row["ok"] is not None), rows
    assert keyed.events("pulse-unseen") == keyed.events("suspect") == []
    assert seen(keyed) == []
    keyed.kill(*keyed.workers().values(), number="STOP")
    keyed.machine.wait(lambda: bool(keyed.events("evidence-kept")), 30, "the evidence")
    assert "a request for one token has had no answer" in keyed.messages("engine-failed")
    keyed.machine.wait(lambda: keyed.show("NRestarts") == "1" and keyed.state() == "active", 60, "one restart")
    assert seen(keyed) == []


def test_a_key_that_is_not_there_is_refused_before_the_load(keyed: Site) -> None:
    for name in ("another-key", "/etc/none"):
        configure(keyed, name)
        keyed.start_and_fail()
        assert (keyed.state(), keyed.show("ExecMainStatus")) == ("failed", "78")
        assert "server.api_key_file: cannot read the engine's API key: No such file" in keyed.messages("start-refused")
        keyed.systemctl("reset-failed")
    assert not keyed.events("engine-started")


def test_without_the_right_key_liveness_is_judged_by_the_health_endpoint(keyed: Site) -> None:
    """The key is renewed in the file and not in the engine: told, and a hang is found all the same."""
    file = "/run/engine.key"
    configure(keyed, file)
    keyed.machine.write(file, KEY)
    keyed.start()
    keyed.machine.write(file, "another-one")
    keyed.machine.wait(lambda: bool(keyed.events("pulse-unseen")), 20, "the refusal to be told")
    keyed.machine.run(["sleep", "6"])
    assert (keyed.state(), keyed.messages("engine-failed")) == ("active", "")
    keyed.kill(*keyed.workers().values(), number="STOP")
    keyed.machine.wait(lambda: bool(keyed.events("engine-failed")), 30, "the verdict")
    assert "no sign of the engine's core" in keyed.messages("engine-failed")
    assert seen(keyed) == []
