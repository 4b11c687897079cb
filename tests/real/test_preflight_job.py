"""What a start reads before it goes on, and that nothing holds it up."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_lifecycle.rules.config import Config, Server
from tests.model_folders import KIMI, LLAMA, write_model
from tests.preflights import preflight


def config(*words: str) -> Config:
    return Config(Server(("sglang", "serve", *words)))


def codes(made: Config, seconds: float = 10.0) -> list[tuple[str, str]]:
    return [(str(item.level), item.code) for item in preflight(made, "none.service", {}, seconds)]


def test_the_engines_own_config_file_counts(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model", LLAMA))
    file = tmp_path / "sglang.yaml"
    file.write_text(f"model-path: {model}\ntp-size: 7\n")
    assert codes(config("--config", str(file))) == [("error", "heads")]
    assert codes(config("--config", str(file), "--tp", "8")) == []
    file.write_text("tp-size: &x 7\n")
    assert codes(config("--config", str(file), "--model-path", model, "--tp", "7")) == [
        ("warn", "not-certain"),
        ("warn", "heads"),
    ]


def test_a_folder_that_does_not_come_back_is_said_and_not_waited_for(tmp_path: Path) -> None:
    model = str(write_model(tmp_path, KIMI))
    begun = time.monotonic()
    assert codes(config("--model-path", model), 0.0) == [("warn", "model-slow")]
    assert time.monotonic() - begun < 2


def test_200_shards_take_no_time(tmp_path: Path) -> None:
    model = str(write_model(tmp_path, KIMI, shards=200))
    begun = time.monotonic()
    assert codes(config("--model-path", model, "--tp", "8")) == []
    assert time.monotonic() - begun < 2


def test_an_engine_without_counters_is_told_of() -> None:
    def said(engine: str, *words: str) -> list[tuple[str, str]]:
        server = Server(("/bin/x", *words), engine, url="http://127.0.0.1:1", model="m")
        return [(item.level, item.hint) for item in preflight(Config(server), "x", {}) if item.code == "unseen-work"]

    assert said("llama.cpp") == [("info", "add --metrics to server.command")]
    assert said("ollama") == said("tensorrt-llm") == [("info", "")]
    assert said("llama.cpp", "--metrics") == said("vllm") == said("sglang") == said("triton") == said("custom") == []


def test_names_and_containers_are_not_looked_into() -> None:
    assert codes(config("--model-path", "moonshotai/Kimi-K2.5")) == [("info", "model-by-name")]
    made = Config(Server(("/usr/bin/docker", "run", "image", "--model-path", "/models/none")))
    assert codes(made) == [("info", "in-container")]
