"""Keys are taken out of what is shown, however they are written and wherever a stream is cut; all else stays."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from gpu_lifecycle.rules.secrets import Secrets, Veil, given, hide_named

KEY = "s3cret-K3y"


def veiled(secrets: Secrets, parts: list[bytes]) -> bytes:
    veil = Veil(secrets)
    return b"".join(veil.through(part) for part in parts) + veil.rest()


@for_all(st.lists(st.sampled_from([KEY, KEY[:4], KEY[4:], "x", "\n", "***"]), max_size=12), st.lists(st.integers(0, 60)))
def test_a_stream_without_its_keys_wherever_it_is_cut(words: list[str], cuts: list[int]) -> None:
    text = "".join(words).encode()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(places)]
    assert veiled(Secrets([KEY]), parts) == text.replace(KEY.encode(), b"***")


def test_only_what_may_be_a_key_is_held_back() -> None:
    veil = Veil(Secrets([KEY]))
    assert [veil.through(b"a s3cret"), veil.through(b"-K3 y\n")] == [b"a ", b"s3cret-K3 y\n"]
    assert Veil(Secrets()).through(b"all of it") == b"all of it"


def test_another_reader_goes_on_where_one_was_cut() -> None:
    one = Veil(Secrets([KEY]))
    shown = one.through(b"key: s3cret")
    other = Veil(Secrets([KEY]))
    assert (shown + other.through(one.held), other.through(b"-K3y.")) == (b"key: ", b"***.")


@pytest.mark.parametrize("key", [KEY, "it's\\a\"key", "'quoted'", "a/b+c==", "k\u00e9y!"])
def test_as_python_and_json_write_it(key: str) -> None:
    for text in (key, repr({"api_key": key}), json.dumps({"api_key": key}), f"--api-key={key}"):
        assert key not in Secrets([key]).hide(text.encode()).decode()
        assert repr(key)[1:-1] not in Secrets([key]).hide(text.encode()).decode()


def test_the_longest_first_and_no_word_of_everyday() -> None:
    assert Secrets(["abcd", "abcdefgh"]).hide(b"abcdefgh abcd") == b"*** ***"
    assert Secrets(["", "k1", "abc"]).hide(b"rank1 abc") == b"rank1 abc"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            b"ServerArgs(port=1, api_key='a b', admin_api_key=\"x\", tp=8)",
            b"ServerArgs(port=1, api_key=***, admin_api_key=***, tp=8)",
        ),
        (b"{'api_key': 'k1', 'tp': 8}", b"{'api_key': ***, 'tp': 8}"),
        (b"non-default args: {'api_key': ['a', 'b'], 'port': 1}", b"non-default args: {'api_key': ***, 'port': 1}"),
        (b"API_KEY=abc next", b"API_KEY=*** next"),
        (b"ServerArgs(api_key=None, tp=8)", b"ServerArgs(api_key=None, tp=8)"),
        (b'{"api_key": null}', b'{"api_key": null}'),
        (b"the api_key is not set", b"the api_key is not set"),
        (b"token: 5, monkey=7", b"token: 5, monkey=7"),
        (b"\xff api_key=\xff\xfe\n", b"\xff api_key=***\n"),
    ],
)
def test_under_its_name(line: bytes, shown: bytes) -> None:
    assert hide_named(line) == shown
    assert hide_named(shown) == shown


@pytest.mark.parametrize(
    ("command", "environment", "found"),
    [
        (["e", "--api-key", "abcd"], {}, {"abcd"}),
        (["e", "--api-key=abcd", "--port", "1"], {}, {"abcd"}),
        (["e", "--api_key", "abcd", "efgh", "--port", "1"], {}, {"abcd", "efgh"}),
        (["e", "--api-key", "abcd,efgh"], {}, {"abcd,efgh", "abcd", "efgh"}),
        (["e", "--admin-api-key", "adm1"], {}, {"adm1"}),
        (["e", "--hf-token", "hf_12345678", "/models/kimi"], {}, {"hf_12345678"}),
        (["e", "--pad-token", "0", "--ssl-keyfile", "/etc/ssl/key.pem", "--tokenizer", "/models/kimi"], {}, set()),
        (["e", "--api-key"], {"PATH": "/usr/bin:/bin"}, set()),
        (["e"], {"VLLM_API_KEY": "abcd", "HF_TOKEN": "hf_12345678", "SOME_KEY": "1", "DB_PASSWORD": "longenough"},
         {"abcd", "hf_12345678", "longenough"}),
    ],
)  # fmt: skip
def test_what_a_command_and_variables_say(command: list[str], environment: dict[str, str], found: set[str]) -> None:
    assert set(given(command, environment)) - {""} == found
