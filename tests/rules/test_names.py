"""Names of managed units: what systemd takes, and nothing that could leave its folder."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_lifecycle.errors import Exit, UsageError
from gpu_lifecycle.facts import Layout, UnitName
from gpu_lifecycle.rules.names import LONGEST, parse_unit, template_instance


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sglang-kimi", "sglang-kimi"),
        ("sglang-kimi.service", "sglang-kimi"),
        ("gpu-lifecycle@llama", "gpu-lifecycle@llama"),
        ("gpu-lifecycle@llama.service", "gpu-lifecycle@llama"),
        ("llama3.1", "llama3.1"),
        ("a:b_c\\x2dd", "a:b_c\\x2dd"),
        ("service", "service"),
        ("x" * LONGEST, "x" * LONGEST),
    ],
)
def test_a_good_name_is_taken_with_or_without_its_suffix(text: str, name: str) -> None:
    assert parse_unit(text) == UnitName(name)


@pytest.mark.parametrize(
    "text",
    [
        "", ".service", ".", "..", "../etc/passwd", "a/b", "-rf", ".hidden", "a b", "a\nb", "a\0b", "naïve",
        "foo.timer", "foo.socket", "foo.slice", "foo.scope", "foo.timer.service", "gpu-lifecycle@",
        "gpu-lifecycle@.service", "@x", "x" * (LONGEST + 1), "gpu-GPU-1.lock", "installed.json",
        "sglang-kimi\n", "a%b",
    ],
)  # fmt: skip
def test_a_bad_name_is_refused_as_wrong_usage_with_the_cure(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_unit(text)
    assert caught.value.status is Exit.USAGE
    assert caught.value.message.startswith(f"cannot use {text!r}")
    assert caught.value.hint


@given(st.text(max_size=300))
def test_whatever_is_accepted_stays_in_its_folder(text: str) -> None:
    try:
        unit = parse_unit(text)
    except UsageError:
        return
    layout = Layout()
    assert os.path.dirname(os.path.normpath(layout.config(unit))) == layout.config_dir
    assert os.path.dirname(os.path.normpath(layout.unit_run_dir(unit))) == layout.run_dir
    assert parse_unit(unit.service) == unit


def test_the_instance_of_the_template_is_known() -> None:
    assert template_instance(UnitName("gpu-lifecycle@llama")) == "llama"
    assert template_instance(UnitName("llama")) == ""
    assert template_instance(UnitName("other@llama")) == ""
