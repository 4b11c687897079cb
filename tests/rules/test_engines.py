"""What a command line says about the server that it starts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.engines import (
    ENGINES,
    MODEL,
    Endpoint,
    draft_of,
    drains,
    endpoint,
    endpoint_of_url,
    model_of,
    option,
    tp_of,
)
from gpu_lifecycle.rules.text import printable

SGLANG, VLLM, LLAMA = ENGINES["sglang"], ENGINES["vllm"], ENGINES["llama.cpp"]
TGI, TRTLLM, OLLAMA = ENGINES["tgi"], ENGINES["tensorrt-llm"], ENGINES["ollama"]


def short(value: object) -> str | None:
    """A test id that fits into the environment, where pytest puts it."""
    return printable(value, 30) if isinstance(value, str) else None


@pytest.mark.parametrize(
    ("argv", "names", "value"),
    [
        (["x", "--port", "1"], ("--port",), "1"),
        (["x", "--port=1"], ("--port",), "1"),
        (["x", "--port=1", "--port", "2"], ("--port",), "2"),
        (["x", "-p", "1", "--port=2"], ("-p", "--port"), "2"),
        (["x", "--port", "2", "-p", "1"], ("-p", "--port"), "1"),
        (["x", "--port"], ("--port",), ""),
        (["x", "--port="], ("--port",), ""),
        (["x", "--", "--port", "1"], ("--port",), None),
        (["x", "--report", "1", "port", "2"], ("--port",), None),
        (["x", "--portable", "1"], ("--port",), None),
        (["x", "--tp-size", "4"], ("--tp_size",), "4"),
        (["x", "--tp_size=4"], ("--tp-size",), "4"),
        (["x", "-tp", "4"], ("--tp",), None),
        (["x", "--a=b=c"], ("--a",), "b=c"),
        ([], ("--port",), None),
        (["x", "--port", "1"], (), None),
    ],
)
def test_the_last_option_wins(argv: list[str], names: tuple[str, ...], value: str | None) -> None:
    assert option(argv, names) == value


@pytest.mark.parametrize(
    ("name", "argv", "env", "url", "bind"),
    [
        ("sglang", [], {}, "http://127.0.0.1:30000/h", "127.0.0.1"),
        ("sglang", ["--host", "0.0.0.0", "--port=1"], {}, "http://127.0.0.1:1/h", "0.0.0.0"),
        ("sglang", ["--host", "::"], {}, "http://[::1]:30000/h", "::"),
        ("sglang", ["--host", "[fd00::7]"], {}, "http://[fd00::7]:30000/h", "fd00::7"),
        ("sglang", ["--host", "10.0.0.5"], {"PORT": "9"}, "http://10.0.0.5:30000/h", "10.0.0.5"),
        ("vllm", ["serve", "m"], {}, "http://127.0.0.1:8000/h", "0.0.0.0"),
        ("vllm", ["--uds", "/run/v.socket"], {}, "http://localhost/h", "/run/v.socket"),
        ("llama.cpp", [], {"LLAMA_ARG_PORT": "81"}, "http://127.0.0.1:81/h", "127.0.0.1"),
        ("llama.cpp", ["--port", "82"], {"LLAMA_ARG_PORT": "81"}, "http://127.0.0.1:82/h", "127.0.0.1"),
        ("llama.cpp", ["--host", "/run/l.sock"], {}, "http://localhost/h", "/run/l.sock"),
        ("tgi", ["-p", "81"], {"PORT": "82"}, "http://127.0.0.1:81/h", "0.0.0.0"),
        ("tgi", [], {"PORT": "82", "HOSTNAME": "::"}, "http://[::1]:82/h", "::"),
        ("triton", ["--http-port", "81", "--port", "9"], {}, "http://127.0.0.1:81/h", "0.0.0.0"),
        ("tensorrt-llm", ["serve", "m"], {}, "http://localhost:8000/h", "localhost"),
        ("ollama", ["serve", "--port", "1"], {}, "http://127.0.0.1:11434/h", "127.0.0.1"),
        ("ollama", [], {"OLLAMA_HOST": "0.0.0.0"}, "http://127.0.0.1:11434/h", "0.0.0.0"),
        ("ollama", [], {"OLLAMA_HOST": ":81"}, "http://127.0.0.1:81/h", "127.0.0.1"),
        ("ollama", [], {"OLLAMA_HOST": "gpu1:81"}, "http://gpu1:81/h", "gpu1"),
        ("ollama", [], {"OLLAMA_HOST": "[::]:81"}, "http://[::1]:81/h", "::"),
        ("ollama", [], {"OLLAMA_HOST": "http://gpu1"}, "http://gpu1:80/h", "gpu1"),
        ("ollama", [], {"OLLAMA_HOST": "https://gpu1:81/x"}, "https://gpu1:81/h", "gpu1"),
        ("custom", ["--port", "81"], {}, "http://127.0.0.1:81/h", "127.0.0.1"),
    ],
)
def test_where_it_answers(name: str, argv: list[str], env: dict[str, str], url: str, bind: str) -> None:
    found = endpoint(ENGINES[name], ["/bin/x", *argv], env)
    assert (found.url("/h"), found.bind) == (url, bind)
    assert bool(found.uds) == (found.port == 0)


@pytest.mark.parametrize(
    ("name", "argv", "env", "key", "words"),
    [
        ("sglang", ["--port", "abc"], {}, "server.command", 'cannot use "abc" as the port'),
        ("sglang", ["--port", "0"], {}, "server.command", "1 to 65535"),
        ("sglang", ["--port", "65536"], {}, "server.command", "1 to 65535"),
        ("sglang", ["--port", "-1"], {}, "server.command", "1 to 65535"),
        ("sglang", ["--port"], {}, "server.command", 'cannot use "" as the port'),
        ("sglang", ["--port", "\x1b"], {}, "server.command", r'"\x1b"'),
        ("sglang", ["--port", "²"], {}, "server.command", "1 to 65535"),
        ("tgi", [], {"PORT": "x"}, "server.environment.PORT", 'cannot use "x"'),
        ("ollama", [], {"OLLAMA_HOST": "gpu:x"}, "server.environment.OLLAMA_HOST", 'cannot use "x"'),
        ("custom", [], {}, "server.url", 'url = "http://'),
    ],
)
def test_a_port_that_is_none(name: str, argv: list[str], env: dict[str, str], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        endpoint(ENGINES[name], ["/bin/x", *argv], env)
    assert caught.value.key == key
    assert words in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:81", Endpoint("127.0.0.1", 81, bind="127.0.0.1")),
        ("http://gpu1/", Endpoint("gpu1", 80, bind="gpu1")),
        ("https://gpu1", Endpoint("gpu1", 443, bind="gpu1", scheme="https")),
        ("http://[::]:81", Endpoint("::1", 81, bind="::")),
        ("unix:///run/x.sock", Endpoint("localhost", 0, uds="/run/x.sock", bind="/run/x.sock")),
    ],
)
def test_an_address_is_read(url: str, expected: Endpoint) -> None:
    assert endpoint_of_url(url) == expected


@pytest.mark.parametrize(
    "url",
    ["", "gpu1:81", "ftp://x", "http://", "http://a:b@x", "http://x/path", "http://x?q", "http://x:99999",
     "http://::1:81", "unix://", "unix:///", "unix:x", "http://x y", "http://x\n"],
)  # fmt: skip
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        endpoint_of_url(url)
    assert caught.value.key == "server.url"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "argv", "env", "model"),
    [
        ("sglang", ["--model-path", "/m"], {}, "/m"),
        ("sglang", ["--model=/m"], {}, "/m"),
        ("sglang", [], {}, None),
        ("vllm", ["serve", "/m", "--port", "1"], {}, "/m"),
        ("vllm", ["serve", "--port", "1"], {}, None),
        ("vllm", ["serve"], {}, None),
        ("vllm", ["-m", "vllm.entrypoints.openai.api_server", "--model", "/m"], {}, "/m"),
        ("tensorrt-llm", ["/bin/trtllm-serve", "/m"], {}, "/m"),
        ("tensorrt-llm", ["/bin/trtllm-serve", "serve", "/m"], {}, "/m"),
        ("llama.cpp", ["-m", "/m.gguf"], {}, "/m.gguf"),
        ("llama.cpp", [], {"LLAMA_ARG_MODEL": "/m.gguf"}, "/m.gguf"),
        ("tgi", [], {"MODEL_ID": "org/m"}, "org/m"),
        ("ollama", ["serve"], {}, None),
    ],
)
def test_which_model(name: str, argv: list[str], env: dict[str, str], model: str | None) -> None:
    assert model_of(ENGINES[name], ["/bin/x", *argv], env) == model


@pytest.mark.parametrize(
    ("name", "argv", "draft"),
    [
        ("sglang", ["--speculative-draft-model-path", "/d"], "/d"),
        ("sglang", ["--speculative-draft-model=/d"], "/d"),
        ("llama.cpp", ["-md", "/d"], "/d"),
        ("vllm", ["--speculative-config", '{"model": "/d", "method": "eagle3"}'], "/d"),
        ("vllm", ["--speculative_config.model", "/d"], "/d"),
        ("vllm", ["--speculative-config", '{"method": "ngram"}'], None),
        ("vllm", ["--speculative-config", "{"], None),
        ("vllm", ["--speculative-config", "[" * 100_000], None),
        ("vllm", ["--speculative-config", '{"model": 3}'], None),
        ("tgi", [], None),
    ],
    ids=short,
)
def test_which_draft(name: str, argv: list[str], draft: str | None) -> None:
    assert draft_of(ENGINES[name], ["/bin/x", *argv]) == draft


@pytest.mark.parametrize(
    ("name", "argv", "env", "tp"),
    [
        ("sglang", [], {}, 1),
        ("sglang", ["--tp", "8"], {}, 8),
        ("sglang", ["--tp-size=4"], {}, 4),
        ("vllm", ["-tp", "2"], {}, 2),
        ("vllm", ["--tensor_parallel_size", "2"], {}, 2),
        ("tensorrt-llm", ["--tp_size", "8"], {}, 8),
        ("tgi", [], {"NUM_SHARD": "2"}, 2),
        ("tgi", [], {}, None),
        ("ollama", [], {}, None),
    ],
)
def test_how_many_gpus_per_layer(name: str, argv: list[str], env: dict[str, str], tp: int | None) -> None:
    assert tp_of(ENGINES[name], ["/bin/x", *argv], env) == tp


@pytest.mark.parametrize("text", ["0", "x", "", "-1", "1.5", "9" * 5000], ids=short)
def test_a_tp_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="as the tensor parallel size") as caught:
        tp_of(SGLANG, ["/bin/x", "--tp", text], {})
    assert caught.value.key == "server.command"
    assert '"--tp", "8"' in caught.value.hint


def test_which_engines_drain() -> None:
    assert drains(SGLANG, ["x"])
    assert not drains(VLLM, ["x"])
    assert drains(VLLM, ["x", "--shutdown-timeout", "120"])
    assert not drains(VLLM, ["x", "--shutdown-timeout", "0"])
    assert not drains(LLAMA, ["x"])
    assert not drains(OLLAMA, ["x"])


def test_the_models_name_is_filled_in() -> None:
    assert VLLM.generate is not None
    filled = VLLM.generate.for_model("kimi")
    assert filled.body is not None
    assert filled.body["model"] == "kimi"
    assert VLLM.generate.body is not None
    assert VLLM.generate.body["model"] == MODEL


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("sglang", "sglang::scheduler_TP0"),
        ("sglang", "sglang::detokenizer"),
        ("vllm", "VLLM::EngineCore"),
        ("vllm", "VLLM::Worker_TP1"),
        ("tgi", "/usr/bin/python3 /usr/local/bin/text-generation-server serve /m"),
        ("ollama", "/usr/local/bin/ollama runner --model x"),
    ],
)
def test_a_worker_is_known_by_its_title(name: str, title: str) -> None:
    assert re.search(ENGINES[name].worker_title, title)


@pytest.mark.parametrize("name", ENGINES)
def test_every_entry_is_whole(name: str) -> None:
    engine = ENGINES[name]
    assert engine.name == name
    assert engine.ready_path.startswith("/")
    assert engine.live_path.startswith("/")
    assert {0, -15} <= engine.clean_exit
    assert (-9 in engine.clean_exit) == (name == "sglang")
    re.compile(engine.worker_title)
    assert engine.generate is None or engine.generate.path.startswith("/")


@given(st.lists(st.text(max_size=12)), st.dictionaries(st.sampled_from(["PORT", "OLLAMA_HOST"]), st.text()))
def test_no_command_line_is_too_odd(argv: list[str], env: dict[str, str]) -> None:
    for engine in ENGINES.values():
        model_of(engine, argv, env)
        draft_of(engine, argv)
        for read in (endpoint, tp_of):
            error = _error(read, engine, argv, env)
            assert error is None or error.key.startswith("server.")


def _error(read: Callable[..., object], *arguments: object) -> ConfigError | None:
    try:
        read(*arguments)
    except ConfigError as error:
        return error
    return None
