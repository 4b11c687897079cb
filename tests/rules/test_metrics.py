"""Reading a metrics page: whatever it holds, nothing is raised and nothing unread becomes a zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.errors import ConfigError
from gpu_lifecycle.rules.engines import ENGINES, metrics_of
from gpu_lifecycle.rules.metrics import Answer, Counters, Metrics, Scrape, counters, read

NAMES = ("a", "b:c")
WORK = Metrics(("done",), running=("running",), queued=("queued",))


@pytest.mark.parametrize(
    ("text", "sums"),
    [
        ("a 1\n", {"a": 1}),
        ("# HELP a b\n# TYPE a counter\na{x=\"1\"} 1\r\na{x=\"2\",} 2.5e1 1700000000\n", {"a": 26}),
        ('a{x="a } \\" \\\\ b",y="é"} 3', {"a": 3}),
        ("b:c{} +1E-1\na\t.5", {"b:c": 0.1, "a": 0.5}),
        ("a 0", {"a": 0}),
        ("a NaN\nb:c 1", {"b:c": 1}),
        ("a 1\na +Inf\na 2\nother 1", {}),
        ("a 1e999\nother 1", {}),
        ("a 1_0\nother 1", {}),
        ("a 1e308\na 1e308\nother 1", {}),
        ("a{x=\"1} 4\nother 1", {}),
        ("a" * 20000 + " 1\na 2", {"a": 2}),
    ],
)  # fmt: skip
def test_samples_are_summed_and_what_is_no_number_is_missing(text: str, sums: dict[str, float]) -> None:
    assert read(text, NAMES) == Scrape(Answer.READ, "", sums)


@pytest.mark.parametrize("text", ["", "<html>", '{"a": 1}', "# only a comment", "hello world", "\0" * 100, 'a{x="' * 3000])
def test_a_page_without_a_sample_is_a_failed_scrape(text: str) -> None:
    assert read(text, NAMES).answer is Answer.FAILED


@given(st.text())
def test_no_text_raises(text: str) -> None:
    assert set(read(text, NAMES).sums) <= set(NAMES)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text(), st.integers(0, 10**9))))
def test_what_was_written_is_read_back(samples: list[tuple[str, str, int]]) -> None:
    def quote(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "")

    page = "other 1\n" + "".join(f'{name}{{l="{quote(label)}"}} {value}\n' for name, label, value in samples)
    expected = {name: sum(v for n, _, v in samples if n == name) for name, _, _ in samples}
    assert read(page, NAMES).sums == expected


def test_counters_that_are_not_there_are_not_zero() -> None:
    assert counters(read("done 0\nrunning 2\nqueued 1", WORK.names), WORK) == Counters({"done": 0}, 2, 1)
    assert counters(read("done_sum 4\ndone_count 2", WORK.names), WORK) == Counters({"done_count": 2, "done_sum": 4})
    assert counters(read("running 2\nqueued 1", WORK.names), WORK) is None
    assert counters(Scrape(Answer.REFUSED), WORK) is None
    assert counters(Scrape(Answer.FAILED, "late"), WORK) is None


def test_an_engine_tells_of_its_work_only_where_its_command_says_so() -> None:
    assert metrics_of(ENGINES["sglang"], ["sglang", "serve"]) is None
    assert metrics_of(ENGINES["sglang"], ["sglang", "serve", "--enable-metrics"]) == ENGINES["sglang"].metrics
    assert metrics_of(ENGINES["llama.cpp"], ["llama-server", "--metrics"]) == ENGINES["llama.cpp"].metrics
    assert metrics_of(ENGINES["vllm"], ["vllm", "serve"]) == ENGINES["vllm"].metrics
    assert [metrics_of(ENGINES[name], []) for name in ("llama.cpp", "tensorrt-llm", "ollama", "custom")] == [None] * 4


def test_triton_tells_of_its_work_on_a_port_of_its_own() -> None:
    own = metrics_of(ENGINES["triton"], ["tritonserver"])
    moved = metrics_of(ENGINES["triton"], ["tritonserver", "--metrics-port=9000"])
    assert own
    assert moved
    assert (own.port, moved.port) == (8002, 9000)
    with pytest.raises(ConfigError, match="port"):
        metrics_of(ENGINES["triton"], ["tritonserver", "--metrics-port=x"])
