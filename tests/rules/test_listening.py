"""Where metrics may be served: this machine alone."""

from __future__ import annotations

import pytest

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.listening import Listening, parse_folder, parse_listening
from gpu_lifecycle.rules.quantity import WrongValueError
from gpu_lifecycle.rules.schema import parse_config


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("127.0.0.1:9400", Listening("127.0.0.1", 9400)),
        ("127.9.8.7:1", Listening("127.9.8.7", 1)),
        ("[::1]:65535", Listening("::1", 65535)),
        ("unix:/run/gpu-lifecycle/kimi/metrics.sock", Listening(path="/run/gpu-lifecycle/kimi/metrics.sock")),
    ],
)
def test_read_and_shown_again(value: str, found: Listening) -> None:
    assert parse_listening(value) == found
    assert str(found) == value


@pytest.mark.parametrize(
    "value",
    [
        "0.0.0.0:9400", ":9400", "9400", 9400, "*:9400", "10.0.0.1:9400", "localhost:9400", "127.0.0.1", "127.0.0.1:0",
        "127.0.0.1:65536", "127.0.0.256:1", "127.1:9400", "[::]:9400", "::1:9400", "unix:run/x", "unix:", "unix:/",
        "unix:/run/", "unix:/a\nb", "unix:/" + "x" * 107, "127.0.0.1:9400\n", "https://127.0.0.1:9400", True, None, [],
    ],
)  # fmt: skip
def test_refused(value: object) -> None:
    with pytest.raises(WrongValueError) as caught:
        parse_listening(value)
    assert "127.0.0.1:9400" in caught.value.cure


@pytest.mark.parametrize("value", ["x", "", 3, "/a\0b", "/a\nb", "/" + "x" * 5000])
def test_a_folder_refused(value: object) -> None:
    with pytest.raises(WrongValueError):
        parse_folder(value)


CONFIG = '[server]\nengine = "custom"\ncommand = ["/bin/x", "--port", "9400"]\n'


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ('[metrics]\nlisten = "127.0.0.1:9400"', "metrics.listen", "the engine itself answers there"),
        ('[metrics]\nlisten = "0.0.0.0:9401"', "metrics.listen", "no address of this machine alone"),
        ('[notify]\nevents = ["engine-faild"]', "notify.events", '"engine-faild" is no event (did you mean "engine-failed"?'),
        ("[notify]\nevents = []", "notify.events", "not a list of events"),
        ('[notify]\ncommand = "page TOKEN=abc"', "notify.command", "cannot use this value"),
    ],
)
def test_in_the_config(text: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(CONFIG + text, "x.toml")
    assert caught.value.key == key
    assert message in f"{caught.value.message} ({caught.value.hint})"
    assert "TOKEN" not in str(caught.value)
