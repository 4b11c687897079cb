"""llama.cpp's server as its own program starts it, by the bindings that a package brings: ``llama-server -m FILE ...``.

All but the reading of the command line and the end on SIGTERM is llama.cpp's: its lines, load, port, answers and counters.
"""

from __future__ import annotations

import argparse
import signal

import xllamacpp  # in the engines' environment alone


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("llama-server", allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-a", "--alias")
    parser.add_argument("-c", "--ctx-size", type=int, default=0)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("--metrics", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames, params.port = [options.host], options.port
    params.n_ctx, params.n_parallel = options.ctx_size, options.parallel
    params.endpoint_metrics = options.metrics
    if options.alias:
        params.model_alias = {options.alias}
    ends = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # in the server's threads too
    server = xllamacpp.Server(params)  # returns once it serves
    signal.sigwait(ends)
    del server


main()
