"""The unit's own /dev/shm: its size comes from the config, and what a killed run leaves there ends with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd.site import CONFIG, Site

pytestmark = pytest.mark.machine
SIZE = 1 << 30


@pytest.fixture
def sized(site: Site) -> Iterator[Site]:
    text = site.machine.read(CONFIG)
    site.machine.write(CONFIG, text.replace("[server]\n", '[server]\nshm_size = "1GiB"\n', 1))
    try:
        yield site
    finally:
        site.machine.write(CONFIG, text)
        site.ask("gpu-lifecycle", "install", "sglang-kimi")


def codes(site: Site) -> set[str]:
    return {item["code"] for item in site.cli("check", "sglang-kimi")["findings"]}


def test_the_size_is_the_configs_once_it_is_installed(sized: Site) -> None:
    assert "shm-stale" in codes(sized)
    said = sized.ask("gpu-lifecycle", "install", "sglang-kimi")
    assert "gpu-lifecycle-shm.conf" in said
    assert "reloaded systemd's units" in said
    assert not {"shm-stale", "shm-shared"} & codes(sized)
    sized.start()
    mount = f"/proc/{sized.engine_main()}/root/dev/shm"
    assert int(sized.ask("stat", "-f", "-c", "%b", mount)) * int(sized.ask("stat", "-f", "-c", "%S", mount)) == SIZE
    sized.ask("sh", "-c", f"head -c 1M /dev/zero > {mount}/left")
    sized.kill(sized.engine_main())
    sized.machine.wait(lambda: bool(sized.events("engine-failed")), 20, "the end")
    sized.stop()
    sized.start()
    assert sized.ask("ls", f"/proc/{sized.engine_main()}/root/dev/shm").split().count("left") == 0


def test_a_drop_in_that_takes_it_away_is_named(site: Site) -> None:
    with site.drop_in("[Service]\nTemporaryFileSystem=\n"):
        assert "shm-shared" in codes(site)
    assert "shm-shared" not in codes(site)
