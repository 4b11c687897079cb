"""What the engines' own parsers read: `parsers.py ENGINE`, lists of words as JSON on stdin, one object for each on stdout.

Run by the engines' Python. Of an option only what differs from the parser's default is told; null where the words are refused.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from typing import Any


def sglang() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return parser


def merged(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """As in SGLang's prepare_server_args."""
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

    return ConfigArgumentMerger(parser).merge_config_with_args(words) if "--config" in words else words


def vllm() -> argparse.ArgumentParser:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: argparse.ArgumentParser = FlexibleArgumentParser(prog="vllm")
    ServeSubcommand().subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    return parser


def read(parser: argparse.ArgumentParser, words: list[str], usual: dict[str, Any], engine: str) -> dict[str, Any] | None:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            told = vars(parser.parse_args(merged(parser, words) if engine == "sglang" else words))
    except (SystemExit, ValueError):
        return None
    return {key: value for key, value in told.items() if value != usual.get(key)}


def main(engine: str) -> None:
    parser, least = (sglang(), ["--model-path", "m"]) if engine == "sglang" else (vllm(), ["serve"])
    usual = vars(parser.parse_args(least))
    usual.pop("model_path", None)
    for words in json.load(sys.stdin):
        print("TOLD", json.dumps(read(parser, words, usual, engine), default=str))


main(sys.argv[1])
