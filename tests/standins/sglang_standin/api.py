"""The endpoints, as the tables in the engine's documentation and its code have them."""

from __future__ import annotations

import json
import time

from . import log
from .core import Core, Job
from .options import Options
from .web import Connection, Request

VERSION = "0.5.23"
STARTING, UP, UNHEALTHY, DRAINING = "Starting", "Up", "UnHealthy", "Draining"
OPEN_PREFIXES = ("/health", "/metrics", "/ready")
GENERATING = ("/generate", "/v1/completions", "/v1/chat/completions")


class Api:
    """Answers requests from the server's state and its core."""

    def __init__(self, options: Options, core: Core) -> None:
        self.options = options
        self.core = core
        self.status = STARTING
        self.forced_down = False  # SIGUSR1, until SIGUSR2
        self.zombie = False  # a worker is dead and nothing noticed
        self.port = options.port
        self.started_at = time.time()
        self.askers: set[Connection] = set()  # who will get no page of metrics

    def handle(self, request: Request, connection: Connection) -> None:
        """The server's handler: auth first, then the route."""
        path = request.path
        if not self._allowed(request):
            connection.reply(401, '{"error":"Unauthorized"}')
        elif path in ("/health", "/health_generate"):
            self._health(path, connection)
        elif path in ("/ready", "/ping"):
            connection.reply(200 if self._up() else 503)
        elif path in GENERATING:
            self._generate(request, connection)
        else:
            self._page(path, connection)

    def _allowed(self, request: Request) -> bool:
        if not self.options.api_key or request.path.startswith(OPEN_PREFIXES):
            return True
        return request.headers.get("authorization") == f"Bearer {self.options.api_key}"

    def _up(self) -> bool:
        if self.forced_down or self.options.does("unhealthy-forever"):
            return False
        return self.status == UP

    # health

    def _health(self, path: str, connection: Connection) -> None:
        does = self.options.does
        if does("garbage-health"):
            connection.raw(b"\x00\x15\x03\x01\x00\x02\x02\x46 this is not HTTP\n\xff\xfe" * 8, close=True)
        elif does("huge-health"):
            connection.refill = lambda: b"x" * 65536
            connection.raw(b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n\r\n")
        elif does("redirect-health"):
            connection.reply(302, extra=f"location: http://{self.options.host}:{self.port}/login\r\n")
        elif does("slow-health"):
            self.core.loop.later(self.options.number("slow-health"), lambda: connection.reply(200))
        elif path == "/health" and (does("health-lies") or self.zombie or self._early()):
            connection.reply(200)
        elif self.status in (STARTING, DRAINING) or self.forced_down or does("unhealthy-forever"):
            connection.reply(503)
        else:
            self._probe(connection)

    def _early(self) -> bool:
        return self.options.does("early-health") and time.time() - self.started_at >= 1.0

    def _probe(self, connection: Connection) -> None:
        timer = self.core.loop.later(self.options.health_timeout, lambda: self._probe_failed(connection))
        connection.on_gone = timer.cancel

        def passed() -> None:
            if not timer.cancelled:
                timer.cancel()
                self._probe_passed(connection)

        earliest = time.monotonic() + self.options.health_latency

        def answered() -> None:
            self.core.loop.later(max(0.0, earliest - time.monotonic()), passed)

        self.core.after_step(answered)

    def _probe_passed(self, connection: Connection) -> None:
        if self.status == UNHEALTHY:
            self.status = UP
        connection.reply(200 if self._up() else 503)

    def _probe_failed(self, connection: Connection) -> None:
        log.line("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.")
        if self.status == UP:
            self.status = UNHEALTHY
        connection.reply(503)

    # generation

    def _generate(self, request: Request, connection: Connection) -> None:
        if request.method != "POST":
            connection.reply(405, '{"detail":"Method Not Allowed"}')
            return
        try:
            asked = json.loads(request.body)
            prompt, tokens = _prompt_length(asked), _token_limit(asked)
        except (ValueError, TypeError, AttributeError, KeyError):
            connection.reply(400, '{"object":"error","message":"invalid request","code":400}')
            return
        job = Job(prompt, tokens, lambda: connection.reply(200, self._answer(request.path, prompt, tokens)))
        connection.on_gone = lambda: self.core.cancel(job)
        self.core.submit(job)

    def _answer(self, path: str, prompt: int, tokens: int) -> str:
        text = " hello" * tokens
        if path == "/generate":
            meta = {"prompt_tokens": prompt, "completion_tokens": tokens, "finish_reason": {"type": "length"}}
            return json.dumps({"text": text, "output_ids": [17] * tokens, "meta_info": meta})
        choice: dict[str, object] = {"index": 0, "finish_reason": "length"}
        chat = path == "/v1/chat/completions"
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        kind = "chat.completion" if chat else "text_completion"
        head = {
            "id": "stand-in",
            "object": kind,
            "created": int(time.time()),
            "model": self.options.model_name,
        }
        return json.dumps({**head, "choices": [choice], "usage": usage})

    # pages

    def _page(self, path: str, connection: Connection) -> None:
        if path == "/metrics" and self.options.does("awaits-askers"):
            self.askers.add(connection)
            connection.on_gone = lambda: self.askers.discard(connection)
        elif path == "/metrics" and self.options.enable_metrics:
            connection.reply(200, self._metrics(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/login" and self.options.does("redirect-health"):
            connection.reply(200, "<html>please log in</html>", "text/html")
        elif path == "/v1/models":
            connection.reply(200, json.dumps(self._models()))
        elif path in ("/model_info", "/get_model_info"):
            connection.reply(200, json.dumps(self._model_info()))
        elif path in ("/server_info", "/get_server_info"):
            connection.reply(200, json.dumps(self._server_info()))
        elif path == "/v1/loads":
            connection.reply(200, json.dumps(self._loads()))
        else:
            connection.reply(404, '{"detail":"Not Found"}')

    def _models(self) -> dict[str, object]:
        name = self.options.model_name
        card = {"id": name, "object": "model", "created": int(self.started_at), "owned_by": "sglang"}
        extra = {"root": name, "parent": None, "max_model_len": self.options.context_length}
        return {"object": "list", "data": [card | extra]}

    def _model_info(self) -> dict[str, object]:
        path = self.options.model_path
        return {
            "model_path": path,
            "tokenizer_path": path,
            "is_generation": True,
            "weight_version": "default",
        }

    def _server_info(self) -> dict[str, object]:
        options = self.options
        names = (
            "model_path",
            "host",
            "port",
            "context_length",
            "mem_fraction_static",
            "api_key",
            "admin_api_key",
        )
        arguments = {name: getattr(options, name) or None for name in names}
        phases = {"load_weight": options.load_seconds * 0.63, "scheduler_e2e": options.load_seconds}
        return {
            **arguments,
            "tp_size": options.tp,
            "served_model_name": options.model_name,
            "status": "ready" if self._up() else self.status.lower(),
            "startup_time": phases,
            "internal_states": [{"last_gen_throughput": self.core.throughput}],
            "version": VERSION,
        }

    def _loads(self) -> dict[str, object]:
        core = self.core
        load = {
            "dp_rank": 0,
            "timestamp": core.stepped_at if core.stuck else time.time(),
            "num_running_reqs": len(core.running),
            "num_waiting_reqs": len(core.queue),
            "num_used_tokens": self._used_tokens(),
            "max_total_num_tokens": 1_048_576,
            "token_usage": self._used_tokens() / 1_048_576,
            "gen_throughput": core.throughput,
            "total_prefill_uncached_tokens": core.prefill_total,
        }
        return {"timestamp": time.time(), "version": VERSION, "dp_rank_count": 1, "loads": [load]}

    def _used_tokens(self) -> int:
        return sum(job.prefilled + job.produced for job in self.core.running)

    def _metrics(self) -> str:
        core = self.core
        model = self.options.model_name
        scheduler = f'engine_type="unified",model_name="{model}",tp_rank="0",pp_rank="0",moe_ep_rank="0"'
        tokenizer = f'model_name="{model}"'
        rows: list[tuple[str, str, str, float]] = [
            ("num_running_reqs", "gauge", scheduler, len(core.running)),
            ("num_queue_reqs", "gauge", scheduler, len(core.queue)),
            ("gen_throughput", "gauge", scheduler, core.throughput),
            ("token_usage", "gauge", scheduler, self._used_tokens() / 1_048_576),
            ("realtime_tokens_total", "counter", f'{scheduler},mode="prefill_compute"', core.prefill_total),
            ("realtime_tokens_total", "counter", f'{scheduler},mode="decode"', core.decode_total),
            ("prompt_tokens_total", "counter", tokenizer, core.prompt_total),
            ("generation_tokens_total", "counter", tokenizer, core.generation_total),
            ("num_requests_total", "counter", tokenizer, core.requests_total),
            ("num_aborted_requests_total", "counter", tokenizer, core.aborted_total),
        ]
        text, seen = "", ""
        for name, kind, labels, value in rows:
            if name != seen:
                text += f"# HELP sglang:{name} Stand-in.\n# TYPE sglang:{name} {kind}\n"
            text += f"sglang:{name}{{{labels}}} {float(value)}\n"
            seen = name
        return text


def _prompt_length(asked: dict[str, object]) -> int:
    """Tokens of the prompt: ids count one each, words count one each."""
    prompt = asked.get("input_ids") or asked.get("prompt") or asked.get("text")
    if prompt is None:
        prompt = json.dumps(asked["messages"]) if "messages" in asked else asked["text"]
    return max(1, len(prompt.split()) if isinstance(prompt, str) else len(list(_iterable(prompt))))


def _iterable(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("neither text nor a list")
    return value


def _token_limit(asked: dict[str, object]) -> int:
    parameters = asked.get("sampling_params")
    if isinstance(parameters, dict):
        return max(1, int(parameters.get("max_new_tokens", 128)))
    limit = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
    return max(1, int(str(limit)))
