"""A config file: its defaults, its examples, and what is said about each way in which it can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.errors import ConfigError, Exit
from gpu_lifecycle.rules.config import SECTIONS, Config, from_plain, plain
from gpu_lifecycle.rules.engines import ENGINES
from gpu_lifecycle.rules.schema import parse_config
from gpu_lifecycle.rules.text import printable

EXAMPLES = sorted((Path(__file__).parents[2] / "config").glob("*.toml"))
SERVER = '[server]\ncommand = ["/bin/x"]\n'
FILE = "/etc/gpu-lifecycle/kimi.toml"


def short(value: object) -> str | None:
    """A test id that fits into the environment, where pytest puts it."""
    return printable(value, 30) if isinstance(value, (str, bytes)) else None


def parse(text: str) -> Config:
    return parse_config(text, FILE)


def names(section: type[Any]) -> list[str]:
    return [item.name for item in fields(section)]


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    error = caught.value
    assert error.file == FILE
    assert error.status is Exit.CONFIG
    assert str(error).isprintable()
    assert error.message.startswith("cannot ")
    return error


def error_of(text: str) -> ConfigError | None:
    try:
        parse(text)
    except ConfigError as error:
        return error
    return None


def test_every_key_but_the_command_has_a_default() -> None:
    config = parse(SERVER)
    assert config.server.engine == "sglang"
    assert config.server.command == ("/bin/x",)
    assert config.server.environment == {}
    assert (config.gpus.claim, config.gpus.count) == ("all", None)
    sweep = config.sweep
    assert (sweep.policy, sweep.protect) == ("owned", ())
    assert (sweep.term_grace, sweep.exit_deadline, sweep.memory_deadline) == (10, 30, 120)
    assert sweep.free_below == 512 << 20
    assert (config.ready.min_used, config.ready.generate) == ("auto", True)
    assert (config.ready.stall, config.ready.ceiling) == (600, 3600)
    watch = config.watch
    assert (watch.interval, watch.failures, watch.busy_grace, watch.timeout) == (5, 3, 300, 25)
    assert config.stop.drain == 120


@pytest.mark.parametrize(
    ("text", "section", "key", "value"),
    [
        ('[sweep]\npolicy = "dedicated"', "sweep", "policy", "dedicated"),
        ('[sweep]\nprotect = ["dcgm.service", "alice"]', "sweep", "protect", ("dcgm.service", "alice")),
        ('[sweep]\nterm_grace = "0s"', "sweep", "term_grace", 0),
        ('[sweep]\nfree_below = "1GiB"', "sweep", "free_below", 1 << 30),
        ('[ready]\nmin_used = "76GiB"', "ready", "min_used", 76 << 30),
        ('[stop]\ndrain = "1h 30min"', "stop", "drain", 5400),
        ('gpus.claim = [0, "1", "0000:3b:00.0"]', "server", "tp", None),
        ("[gpus]\nclaim = [0, 7]\ncount = 2", "gpus", "claim", (0, 7)),
        ('[gpus]\nclaim = ["GPU-5a0c1f7e-0000-1111-2222-333344445555"]', "gpus", "count", None),
        ("sweep = { policy = 'report' }", "sweep", "policy", "report"),
    ],
)
def test_a_key_is_read(text: str, section: str, key: str, value: object) -> None:
    whole = f"{text}\n{SERVER}" if text.startswith(("gpus", "sweep")) else SERVER + text
    assert getattr(getattr(parse(whole), section), key) == value


def test_the_command_says_the_rest_and_a_key_overrides_it() -> None:
    command = '["/bin/x", "--model-path", "/m", "--tp", "8", "--speculative-draft-model-path", "/d"]'
    server = parse(f"[server]\ncommand = {command}").server
    assert (server.target(), server.draft(), server.tensor_parallel()) == ("/m", "/d", 8)
    assert server.endpoint().url("/health") == "http://127.0.0.1:30000/health"
    assert server.served_name() == "/m"
    assert server.drains()
    override = 'url = "unix:///run/e.sock"\nmodel = "/m2"\ndraft_model = "/d2"\ntp = 4\n'
    server = parse(f"[server]\ncommand = {command}\n{override}").server
    assert (server.target(), server.draft(), server.tensor_parallel()) == ("/m2", "/d2", 4)
    assert server.endpoint().uds == "/run/e.sock"
    assert server.preset is ENGINES["sglang"]


def test_a_config_cannot_be_changed() -> None:
    config = parse(SERVER)
    with pytest.raises(FrozenInstanceError):
        config.stop.drain = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "line", "key", "message", "cure"),
    [
        # the file as such
        ("x =", 1, "", "as TOML: Invalid value", "quotes"),
        (SERVER + "a = 1\na = 2", 4, "", "Cannot overwrite", "twice; keep one"),
        (SERVER + "[stop]\n[stop]\n", 4, "", "Cannot declare", "twice; merge"),
        (SERVER + "engine = sglang", 3, "", "Invalid value", "text stands in quotes"),
        (SERVER + "model = 'x", 3, "", "as TOML", ""),
        (SERVER + 'model = "C:\\q"', 3, "", "Unescaped", r"\\ for a backslash"),
        (SERVER + "[stop", 3, "", "as TOML", ""),
        (SERVER + "just words", 3, "", "Expected '='", "key = value"),
        (SERVER + "tp = " + "9" * 5000, None, "", "a number is too long", ""),
        (SERVER + "tp = " + "[" * 100_000, None, "", "too deep", ""),
        # a key that is missing or unknown
        ("", None, "server.command", "cannot tell what to run", "[server]"),
        ("# nothing\n[server]\nengine = 'vllm'", 2, "server.command", "key is missing", "command = ["),
        (
            SERVER + '[sweep]\nterm_grce = "1s"',
            4,
            "sweep.term_grce",
            "unknown key",
            'did you mean "term_grace"?',
        ),
        (
            SERVER + '[sweep]\nterm-grace = "1s"',
            4,
            "sweep.term-grace",
            "unknown",
            'did you mean "term_grace"?',
        ),
        (SERVER + "[swep]", 3, "swep", "unknown key", 'did you mean "sweep"?'),
        (
            SERVER + '[stop]\nterm_grace = "1s"',
            4,
            "stop.term_grace",
            "unknown key",
            "it belongs into [sweep]",
        ),
        (SERVER + "watch = {}", 3, "server.watch", "unknown key", "write [watch] on a line of its own"),
        (SERVER + "xyzzy = 1", 3, "server.xyzzy", "unknown key", "known here: engine, command"),
        (SERVER + '"a\\u202eb" = 1', 3, 'server."a\\u202eb"', r'"a\u202eb"', "known here"),
        # a value of the wrong kind
        ("server = 3", 1, "server", "cannot use 3: it is not a table", "brackets"),
        (SERVER + "[[sweep]]", 3, "sweep", "it is not a table", "brackets"),
        (SERVER + "engine = 3", 3, "server.engine", "none of sglang, vllm", '"sglang"'),
        (SERVER + "engine = 'vlm'", 3, "server.engine", 'cannot use "vlm"', 'did you mean "vllm"?'),
        (SERVER + "tp = '8'", 3, "server.tp", "not a whole number", "without quotes"),
        (SERVER + "tp = true", 3, "server.tp", "not a whole number", "like 8"),
        (SERVER + "tp = 0", 3, "server.tp", "below 1", "1 or more"),
        (SERVER + "tp = 0x" + "f" * 9000, 3, "server.tp", "above 4096", "smaller"),
        (SERVER + "model = ''", 3, "server.model", "it is empty", "leave the key out"),
        (SERVER + "model = 3", 3, "server.model", "it is not text", "quotes"),
        (SERVER + "url = 'ftp://x'", 3, "server.url", "http://HOST:PORT", "write it like"),
        (SERVER + "url = 3", 3, "server.url", "text in quotes", "http://"),
        (SERVER + "[ready]\ngenerate = 'true'", 4, "ready.generate", "not true or false", "without quotes"),
        (SERVER + "[sweep]\nprotect = 'x'", 4, "sweep.protect", "not a list", "write a list"),
        (
            SERVER + "[sweep]\nprotect = ['x',\n3]",
            4,
            "sweep.protect",
            "cannot use 3: it is not text",
            "quotes",
        ),
        (SERVER + "[sweep]\npolicy = 'owend'", 4, "sweep.policy", '"owend"', 'did you mean "owned"?'),
        # durations, sizes, numbers
        (SERVER + "[sweep]\nterm_grace = 10", 4, "sweep.term_grace", "needs a unit", 'write "10s"'),
        (SERVER + "[sweep]\nterm_grace = '10'", 4, "sweep.term_grace", "needs a unit", 'write "10s"'),
        (SERVER + "[sweep]\nterm_grace = '-1s'", 4, "sweep.term_grace", "not negative", '"10s"'),
        (SERVER + "[sweep]\nexit_deadline = '0s'", 4, "sweep.exit_deadline", "longer than 0s", '"10s"'),
        (
            SERVER + "[sweep]\nfree_below = '512MB'",
            4,
            "sweep.free_below",
            '"MB" is no unit',
            "did you mean MiB?",
        ),
        (SERVER + "[sweep]\nfree_below = '0B'", 4, "sweep.free_below", "more than 0B", '"512MiB"'),
        (SERVER + "[ready]\nmin_used = 76", 4, "ready.min_used", "needs a unit", 'write "76MiB"'),
        (SERVER + "[watch]\ninterval = nan", 4, "watch.interval", "cannot use nan", '"10s"'),
        (SERVER + "[watch]\ninterval = inf", 4, "watch.interval", "cannot use inf", '"10s"'),
        (SERVER + "[watch]\ninterval = '0s'", 4, "watch.interval", "longer than 0s", '"10s"'),
        (SERVER + "[watch]\ntimeout = 'infinity'", 4, "watch.timeout", "bounded", '"24h"'),
        (SERVER + "[watch]\nfailures = 0", 4, "watch.failures", "below 1", "1 or more"),
        (SERVER + "[watch]\nfailures = 1.5", 4, "watch.failures", "not a whole number", "a point"),
        (SERVER + "[gpus]\ncount = -1", 4, "gpus.count", "below 1", "1 or more"),
        # claims
        (SERVER + "[gpus]\nclaim = 'some'", 4, "gpus.claim", '"all" or a list', "[0, 1]"),
        (SERVER + "[gpus]\nclaim = []", 4, "gpus.claim", '"all" or a list', "[0, 1]"),
        (SERVER + "[gpus]\nclaim = [-1]", 4, "gpus.claim", "-1 is no index", "[0, 1]"),
        (SERVER + "[gpus]\nclaim = [true]", 4, "gpus.claim", "true is no index", "[0, 1]"),
        (SERVER + "[gpus]\nclaim = [0.5]", 4, "gpus.claim", "0.5 is no index", "[0, 1]"),
        (SERVER + "[gpus]\nclaim = ['MIG-1']", 4, "gpus.claim", "of a whole GPU", "[0, 1]"),
        (SERVER + "[gpus]\nclaim = [1, '1']", 4, "gpus.claim", "one GPU twice", "once"),
        (SERVER + "[gpus]\ncount = 3\nclaim = [0, 1]", 4, "gpus.count", "the claim names 2 GPUs", "write 2"),
        # commands
        (
            "[server]\ncommand = '/x --p 1'",
            2,
            "server.command",
            "no shell",
            'write a list: ["/x", "--p", "1"]',
        ),
        ("[server]\ncommand = '/x \"'", 2, "server.command", "no shell", "write a list: command = ["),
        ("[server]\ncommand = []", 2, "server.command", "it is empty", "write the program"),
        ("[server]\ncommand = ['']", 2, "server.command", '"" is not an absolute path', "command -v"),
        (
            "[server]\ncommand = ['python3']",
            2,
            "server.command",
            '"python3" is not an abs',
            "command -v python3",
        ),
        ("[server]\ncommand = ['/x', 3]", 2, "server.command", "not a list of texts", "numbers too"),
        ("[server]\ncommand = ['/x', \"a\\u0000\"]", 2, "server.command", "NUL", "take it out"),
        ("[server]\ncommand = ['/x',\n'--port', 'a']", 2, "server.command", '"a" as the port', "free port"),
        ("[server]\ncommand = ['/x', '--tp', 'a']", 2, "server.command", '"a" as the tensor', '"--tp", "8"'),
        (SERVER + "engine = 'custom'", 1, "server.url", "where a custom engine answers", 'url = "http://'),
        # variables
        (SERVER + "environment = 3", 3, "server.environment", "not a table", "environment = {"),
        (SERVER + "environment.A = 3", 3, "server.environment.A", "text without NUL", 'A = "…"'),
        (SERVER + "[server.environment]\n'A B' = ''", 4, 'server.environment."A B"', "no name", "letters"),
        (
            SERVER + "[server.environment]\nNOTIFY_SOCKET = ''",
            4,
            "server.environment.NOTIFY_SOCKET",
            "anew",
            "out",
        ),
        (
            SERVER + "engine='tgi'\nenvironment.PORT='x'",
            4,
            "server.environment.PORT",
            '"x" as the port',
            "free",
        ),
        # two that do not fit together
        (
            SERVER + "[ready]\nceiling = '1min'",
            4,
            "ready.ceiling",
            "1min: it is shorter than ready.stall",
            "longer",
        ),
    ],
    ids=short,
)
def test_what_is_wrong_is_said_with_place_and_cure(text: str, line: int | None, key: str, message: str, cure: str) -> None:
    error = refused(text)
    assert (error.line, error.key) == (line, key)
    assert message in error.message
    assert cure in error.hint
    assert error.hint
    assert str(error).startswith(f"{FILE}:{line}: " if line else f"{FILE}: ")


def test_the_first_problem_of_the_file_is_named_and_the_rest_counted() -> None:
    error = refused("[watch]\nfailures = 0\n[sweep]\nterm_grace = 3\nx = 1\n" + SERVER)
    assert (error.line, error.key) == (2, "watch.failures")
    assert error.hint.endswith("; and 2 more in this file")


def test_where_the_key_is() -> None:
    """A path as it is; a name in the folder of this unit's credentials, which only systemd can say."""
    unit = {"CREDENTIALS_DIRECTORY": "/run/credentials/kimi.service"}

    def file(text: str, own: dict[str, str]) -> str | None:
        return parse(SERVER + text).server.key_file(own)

    assert file("", unit) is None
    assert file('api_key_file = "/etc/kimi.key"', {}) == "/etc/kimi.key"
    assert file('api_key_file = "engine-key"', unit) == "/run/credentials/kimi.service/engine-key"
    assert file('api_key_file = "engine-key"', {}) == ""


@pytest.mark.parametrize(
    ("engine", "words", "environment", "own", "key", "file"),
    [
        ("sglang", '"--api-key", "k1", "--admin-api-key", "k2"', "", {}, "k1", None),
        ("vllm", '"--api-key", "k1", "k2"', 'VLLM_API_KEY = "k3"', {}, "k1", None),
        ("vllm", '"--port", "1"', 'VLLM_API_KEY = "k3"', {"VLLM_API_KEY": "k4"}, "k3", None),
        ("vllm", '"--port", "1"', "", {"VLLM_API_KEY": "k4,k5"}, "k4,k5", None),
        ("llama.cpp", '"--api-key", "k1,k2"', "", {}, "k1", None),
        ("llama.cpp", '"--api-key-file", "keys"', "", {"CREDENTIALS_DIRECTORY": "/run/c"}, "", "keys"),
        ("tgi", '"--port", "1"', "", {"API_KEY": "k1"}, "k1", None),
        ("ollama", '"serve"', "", {"OLLAMA_API_KEY": "k1"}, "", None),
    ],
)
def test_the_key_as_command_and_environment_say_it(
    engine: str, words: str, environment: str, own: dict[str, str], key: str, file: str | None
) -> None:
    text = f'[server]\nengine = "{engine}"\ncommand = ["/bin/x", {words}]\n[server.environment]\n{environment}\n'
    server = parse(text).server
    assert (server.given_key(own), server.key_file(own)) == (key, file)


@pytest.mark.parametrize("value", ['""', '"hunter2/x"', '"hunter2 "', '"."', '".."', "7", '["hunter2"]', '"hunter2+=="'])
def test_what_is_no_key_file_is_not_shown_for_it_may_be_the_key(value: str) -> None:
    error = refused(f"{SERVER}api_key_file = {value}")
    assert (error.key, "hunter2" in str(error)) == ("server.api_key_file", False)
    assert "LoadCredential=" in error.hint


def test_what_may_be_secret_is_never_shown() -> None:
    for text in (
        '[server]\ncommand = "/x --api-key hunter2"',
        '[server]\ncommand = ["/x", "--api-key", "hunter2", 3]',
        SERVER + 'environment = { HF_TOKEN = ["hunter2"] }',
        SERVER + 'url = "http://u:hunter2@x"',
    ):
        assert "hunter2" not in str(refused(text))


def test_a_byte_order_mark_does_no_harm() -> None:
    assert parse("\ufeff" + SERVER) == parse(SERVER)
    assert refused("\ufeff" + SERVER + "x = 1").line == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_parse(path: Path) -> None:
    config = parse_config(path.read_text(encoding="utf-8"), str(path))
    assert config.server.endpoint().url()
    assert config.ready.min_used != "auto" or config.server.target(), "auto needs a model to look at"


def test_there_is_an_example_for_each_engine() -> None:
    engines = {parse_config(path.read_text(encoding="utf-8"), str(path)).server.engine for path in EXAMPLES}
    assert engines == set(ENGINES)


def test_the_kimi_example_names_every_key_and_its_defaults_are_true() -> None:
    path = next(path for path in EXAMPLES if path.stem == "sglang-kimi")
    text = path.read_text(encoding="utf-8")
    config = parse_config(text, str(path))
    for name, section in SECTIONS.items():
        for key in names(section):
            assert f"\n{key} = " in text or f"\n# {key} = " in text or f"[{name}.{key}]" in text, key
    default = parse(SERVER)
    changed = {"server", "gpus", "sweep"}
    for name in set(SECTIONS) - changed:
        assert getattr(config, name) == getattr(default, name)
    assert config.sweep == replace(default.sweep, policy="dedicated")
    assert (config.gpus.claim, config.gpus.count, config.server.tensor_parallel()) == ("all", 8, 8)
    assert config.server.draft() == "/models/kimi-k2.5-eagle3"


PIECES = st.sampled_from(
    ["[", "]", "[[", "]]", "{", "}", "=", ".", ",", '"', "'", '"""', "'''", "\\", "#", "\n", "\r\n", " ", "a", "b-c",
     "server", "command", "sweep", "1", "é", "\ufeff", "\x00", '"/x"', "\ud800"]
)  # fmt: skip


@given(st.lists(PIECES).map("".join))
@settings(max_examples=300)
def test_any_text_is_a_config_or_one_error(text: str) -> None:
    for whole in (text, SERVER + text):
        error = error_of(whole)
        assert error is None or error.file == FILE
        assert error is None or error.line is None or 1 <= error.line <= whole.count("\n") + 1
        assert error is None or str(error).isprintable()


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats().map(str), st.text("ab01sG-/:", max_size=6).map(repr)),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(map(str, items))}]"),
    max_leaves=4,
)
KEYS = st.sampled_from([f"{section}.{key}" for section, kind in SECTIONS.items() for key in names(kind)])


@given(KEYS, VALUES)
@settings(max_examples=400)
def test_any_value_is_read_or_refused_at_its_line(key: str, value: object) -> None:
    text = "# first\n" + f"{key} = {str(value).lower() if isinstance(value, bool) else value}\n"
    if key != "server.command":
        text += 'server.command = ["/bin/x"]\n'
    error = error_of(text)
    assert error is None or error.line == 2 or error.key == "server.url"
    assert error is None or error.hint


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_config_is_the_same_after_it_was_kept_as_json(path: Path) -> None:
    config = parse_config(path.read_text(encoding="utf-8"), str(path))
    assert from_plain(json.loads(json.dumps(plain(config)))) == config


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("stop"),
        lambda document: document["stop"].pop("drain"),
        lambda document: document["stop"].update(more=1),
        lambda document: document.update(stop=7),
        lambda document: document.update(stop=None),
    ],
)
def test_a_kept_config_of_another_version_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    document = plain(parse(SERVER))
    change(document)
    with pytest.raises(ValueError, match=r"another version|no config"):
        from_plain(document)
    others: list[object] = [None, [], "x", {"server": []}]
    for other in others:
        with pytest.raises(ValueError, match="no config"):
            from_plain(other)
