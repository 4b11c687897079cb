"""Where each value of a config comes from, and what is never shown."""

from __future__ import annotations

import pytest

from gpu_lifecycle.rules.config_keys import KEYS
from gpu_lifecycle.rules.examples import EXAMPLES, example_config
from gpu_lifecycle.rules.origins import Origin, Source, origins, said
from gpu_lifecycle.rules.schema import parse_config

FILE = "/etc/gpu-lifecycle/kimi.toml"
SGLANG = """[server]
command = [
  "/x", "--model-path", "/m", "--tp", "8",
  "--port", "1234"]
"""


def found(text: str) -> dict[str, Origin]:
    return {f"{item.section}.{item.key}": item for item in origins(parse_config(text, FILE), text, FILE)}


@pytest.mark.parametrize(
    ("text", "key", "value", "source", "line", "note"),
    [
        (SGLANG, "server.tp", 8, Source.COMMAND, 2, "--tp"),
        (SGLANG, "server.model", "/m", Source.COMMAND, 2, "--model-path"),
        (SGLANG, "server.url", "http://127.0.0.1:1234", Source.COMMAND, 2, "--port"),
        (SGLANG, "server.draft_model", None, Source.DEFAULT, None, "none"),
        (SGLANG, "server.engine", "sglang", Source.DEFAULT, None, ""),
        (SGLANG + "tp = 4", "server.tp", 4, Source.FILE, 5, ""),
        (SGLANG + 'url = "http://h:9"', "server.url", "http://h:9", Source.FILE, 5, ""),
        (SGLANG, "gpus.count", None, Source.DEFAULT, None, "any number"),
        (SGLANG + '[stop]\ndrain = "90s"', "stop.drain", 90.0, Source.FILE, 6, ""),
        (SGLANG + '[stop]\ndrain = "2min"', "stop.drain", 120.0, Source.FILE, 6, ""),
        (SGLANG + "[stop]", "stop.drain", 120.0, Source.DEFAULT, None, ""),
        ("sweep = { policy = 'report' }\n" + SGLANG, "sweep.policy", "report", Source.FILE, 1, ""),
        ('[server]\ncommand = ["/x"]', "server.url", "http://127.0.0.1:30000", Source.ENGINE, None, "default of sglang"),
        ('[server]\ncommand = ["/x"]', "server.tp", 1, Source.ENGINE, None, "default of sglang"),
        ('[server]\ncommand = ["/x"]', "server.model", None, Source.DEFAULT, None, "not known"),
        (
            '[server]\nengine = "ollama"\ncommand = ["/x"]\n[server.environment]\nOLLAMA_HOST = ":99"',
            *("server.url", "http://127.0.0.1:99", Source.ENVIRONMENT, 5, "OLLAMA_HOST"),
        ),
        ('[server]\nengine = "ollama"\ncommand = ["/x"]', "server.tp", None, Source.DEFAULT, None, "the engine decides"),
        (
            '[server]\nengine = "vllm"\ncommand = ["/x", "serve", "/m", "--uds", "/run/e.sock"]',
            *("server.url", "unix:///run/e.sock", Source.COMMAND, 3, "--uds"),
        ),
        ('[server]\nengine = "vllm"\ncommand = ["/x", "serve", "/m"]', "server.model", "/m", Source.COMMAND, 3, ""),
    ],
)
def test_origin(text: str, key: str, value: object, source: Source, line: int | None, note: str) -> None:
    item = found(text)[key]
    assert (item.value, item.source, item.line, item.note, item.hidden) == (value, source, line, note, False)


@pytest.mark.parametrize("engine", EXAMPLES)
def test_every_key_is_there_in_order(engine: str) -> None:
    keys = [f"{section}.{key}" for section, keys in KEYS.items() for key in keys if key != "environment"]
    assert [key for key in found(example_config(engine)) if not key.startswith("server.environment")] == keys


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ('"--api-key", "hunter2"', ("--api-key", "***")),
        ('"--api-key=hunter2"', ("--api-key=***",)),
        ('"--api-key=hunter2 hunter2"', ("--api-key=***",)),
        ('"--hf-token", "hunter2", "--tp", "8"', ("--hf-token", "***", "--tp", "8")),
        ('"--api-key", "--tp", "8"', ("--api-key", "--tp", "8")),
        ('"-c", "exec x --password hunter2"', ("-c", "exec x --password ***")),
        ('"--max-total-tokens", "8"', ("--max-total-tokens", "8")),
    ],
)
def test_what_may_be_secret_is_never_shown(words: str, shown: tuple[str, ...]) -> None:
    item = found(f'[server]\ncommand = ["/x", {words}]')["server.command"]
    assert item.value == ("/x", *shown)
    assert "hunter2" not in item.text
    assert item.hidden is ("hunter2" in words)


def test_of_variables_only_the_names_are_shown() -> None:
    text = SGLANG + 'environment.HF_TOKEN = "hunter2"\nenvironment.B = ""\n'
    item = found(text)["server.environment.HF_TOKEN"]
    assert (item.value, item.hidden, item.source, item.line) == (None, True, Source.FILE, 5)
    assert found(text)["server.environment.B"].line == 6
    assert not any("hunter2" in str(item) for item in found(text).values())
    assert found(SGLANG)["server.environment"].value == {}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("server.command", f"{FILE}:2"),
        ("server.tp", f"{FILE}:2, the command (--tp)"),
        ("stop.drain", "default"),
        ("server.engine", "default"),
    ],
)
def test_said(key: str, words: str) -> None:
    assert said(found(SGLANG)[key], FILE) == words


def test_said_of_the_environment_and_the_engine() -> None:
    text = '[server]\nengine = "ollama"\ncommand = ["/x"]\nenvironment = { OLLAMA_HOST = "h" }'
    assert said(found(text)["server.url"], FILE) == f"{FILE}:4, the environment (OLLAMA_HOST)"
    assert said(found('[server]\ncommand = ["/x"]')["server.url"], FILE) == "default of sglang"


@pytest.mark.parametrize(("value", "shown"), [("/etc/key", "/etc/key"), ("engine-key", "***"), ("sk-0123456789", "***")])
def test_a_key_that_was_pasted_in_the_place_of_its_file_is_not_shown(value: str, shown: str) -> None:
    origin = found(f'{SGLANG}api_key_file = "{value}"')["server.api_key_file"]
    assert (origin.value, origin.hidden, "sk-" in origin.text) == (shown, shown != value, False)
