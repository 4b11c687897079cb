"""The HTTP surface of one kind of engine, and a core that works, hangs or is dead: ``--engine NAME --port N``.

Paths, names and statuses as in the engines' code and documentation. The core gives one token in each ``--step`` seconds; a
dead one is what remains of vLLM after its EngineCore died: 503 on /health, 500 on requests. ``--state FILE`` holds ``well``,
``hung`` or ``dead`` and is read at each step, so that a test can change it.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# engine: (health path, path of a request for tokens, metrics as name -> what it shows)
SURFACES: dict[str, tuple[str, str, dict[str, str]]] = {
    "vllm": ("/health", "/v1/completions", {
        "vllm:iteration_tokens_total_sum": "tokens", "vllm:iteration_tokens_total_count": "tokens",
        "vllm:generation_tokens_total": "tokens", "vllm:prompt_tokens_total": "prompts",
        "vllm:kv_cache_usage_perc": "cache", "vllm:num_requests_running": "running", "vllm:num_requests_waiting": "zero",
    }),
    "llama.cpp": ("/health", "/completion", {
        "llamacpp:n_decode_total": "tokens", "llamacpp:tokens_predicted_total": "tokens",
        "llamacpp:prompt_tokens_total": "prompts", "llamacpp:requests_processing": "running",
        "llamacpp:requests_deferred": "zero",
    }),
    "tgi": ("/health", "/generate", {
        "tgi_batch_inference_count": "tokens", "tgi_request_generated_tokens_sum": "tokens",
        "tgi_batch_current_size": "running", "tgi_queue_size": "zero",
    }),
    "triton": ("/v2/health/live", "/v2/models/m/infer", {
        "nv_inference_count": "prompts", "nv_inference_exec_count": "prompts", "nv_inference_pending_request_count": "zero",
    }),
    "tensorrt-llm": ("/health", "/health_generate", {}),
    "ollama": ("/", "/api/generate", {}),
}  # fmt: skip


ANSWERS = {
    "vllm": '{"object":"text_completion","choices":[{"index":0,"text":" hello","finish_reason":"length"}]}',
    "llama.cpp": '{"content":" hello","stop":true,"tokens_predicted":1}',
    "tgi": '{"generated_text":" hello"}',
    "triton": '{"outputs":[]}',
    "tensorrt-llm": "",
    "ollama": '{"model":"m","response":" hello","done":true}',
}


class Core:
    """One token for each request in each step."""

    def __init__(self, step: float, state: Path | None) -> None:
        self.step = step
        self.file = state
        self.tokens = 0
        self.prompts = 0
        self.running = 0
        self.gauges = {"running": 0.0, "cache": 0.0}  # written by the core: a hung one leaves them as they were
        self.turn = threading.Condition()
        threading.Thread(target=self._steps, daemon=True).start()

    @property
    def state(self) -> str:
        return self.file.read_text().strip() if self.file and self.file.exists() else "well"

    def _steps(self) -> None:
        while True:
            time.sleep(self.step)
            with self.turn:
                if self.state != "well":
                    continue
                self.gauges = {"running": self.running, "cache": self.running / 8}
                if self.running:
                    self.tokens += self.running
                    self.turn.notify_all()

    def generate(self, wanted: int) -> bool:
        """False where the core is dead."""
        with self.turn:
            self.running += 1
            start = self.tokens
            while self.state != "dead" and self.tokens - start < wanted:
                self.turn.wait(0.1)
            self.running -= 1
            self.prompts += 1
            return self.state != "dead"

    def shown(self, what: str) -> float:
        values = {"tokens": self.tokens, "prompts": self.prompts} | self.gauges
        return values.get(what, 0)


class Handler(BaseHTTPRequestHandler):
    """Answers as the engine would."""

    core: Core
    engine: str
    key: str
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _reply(self, status: int, body: str = "", kind: str = "application/json") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        health, generate, metrics = SURFACES[self.engine]
        if self.path == health or self.path.endswith("/ready"):
            self._reply(200 if self.core.state != "dead" else 503, '{"status":"ok"}')
        elif self.path == generate:
            self._tokens(1)
        elif self.path == "/metrics" and metrics and self.engine != "triton":
            self._metrics()
        else:
            self._reply(404, '{"error":{"code":404}}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or "{}")
        if self.path != SURFACES[self.engine][1]:
            self._reply(404, '{"error":{"code":404}}')
        elif self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self._reply(401, '{"error":"Unauthorized"}')
        else:
            self._tokens(_wanted(asked))

    def _tokens(self, wanted: int) -> None:
        if self.core.generate(wanted):
            self._reply(200, ANSWERS[self.engine])
        else:
            self._reply(500, '{"error":{"message":"EngineCore encountered an issue."}}')

    def _metrics(self) -> None:
        label = '{engine="0",model_name="m"}'
        lines = [f"{name}{label} {float(self.core.shown(what))}" for name, what in SURFACES[self.engine][2].items()]
        self._reply(200, "# HELP x Stand-in.\n" + "\n".join(lines) + "\n", "text/plain; version=0.0.4")


class MetricsHandler(Handler):
    """Triton's metrics, on a port of their own."""

    def do_GET(self) -> None:
        self._metrics() if self.path == "/metrics" else self._reply(404)


def _wanted(asked: dict[str, Any]) -> int:
    flat = asked | asked.get("parameters", {}) | asked.get("options", {})
    return int(flat.get("max_tokens") or flat.get("n_predict") or flat.get("max_new_tokens") or flat.get("num_predict") or 16)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--engine", choices=SURFACES, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--metrics-port", type=int)
    parser.add_argument("--step", type=float, default=0.02)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--api-key", default="")
    options, _ = parser.parse_known_args()
    Handler.core, Handler.engine, Handler.key = Core(options.step, options.state), options.engine, options.api_key
    if options.metrics_port:
        aside = ThreadingHTTPServer((options.host, options.metrics_port), MetricsHandler)
        threading.Thread(target=aside.serve_forever, daemon=True).start()
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
