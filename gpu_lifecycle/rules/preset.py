"""What can be said of one kind of engine; the table of all kinds is rules/engines.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpu_lifecycle.rules.metrics import Metrics

MODEL = "{model}"  # stands for the served model's name in a path or a body


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; ``body`` is sent as JSON, None: no body. ``proof``: the key in the answer that shows the generated."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    proof: str = ""

    def for_model(self, model: str) -> Request:
        """The same request with the model's name filled in."""
        body = None if self.body is None else {k: model if v == MODEL else v for k, v in self.body.items()}
        return replace(self, path=self.path.replace(MODEL, model), body=body)


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of server: how its command line is read, how it is probed, how it ends.

    Options name every spelling; an environment variable counts where no option is given. ``positional`` are
    the words after which the model may stand without an option. ``default_port`` None: nothing is known,
    ``server.url`` must say it. ``default_tp`` None: the engine chooses by itself. ``worker_title`` is
    searched for in the titles of the unit's processes (empty: no workers of its own). ``clean_exit`` are the
    statuses (negative: a signal) that mean "did as told" after our own SIGTERM; ``drains``: SIGTERM lets
    running requests finish. ``key_env`` and ``key_file_options`` say where its API key comes from; ``keys_in_one``: several
    may stand there with commas between them, and each will do.
    """

    name: str
    default_port: int | None
    default_host: str
    ready_path: str
    live_path: str
    generate: Request | None = None
    port_options: tuple[str, ...] = ("--port",)
    port_env: str = ""
    host_options: tuple[str, ...] = ("--host",)
    host_env: str = ""
    uds_options: tuple[str, ...] = ()
    model_options: tuple[str, ...] = ()
    model_env: str = ""
    positional: tuple[str, ...] = ()
    draft_options: tuple[str, ...] = ()
    draft_json_options: tuple[str, ...] = ()  # a JSON object whose "model" is the draft
    tp_options: tuple[str, ...] = ()
    tp_env: str = ""
    default_tp: int | None = None
    name_options: tuple[str, ...] = ()
    worker_title: str = ""
    # -15: death by our own SIGTERM, before the engine has put its handler in place (SGLang while loading, llama.cpp)
    clean_exit: frozenset[int] = frozenset((0, -15))
    drains: bool = False
    metrics: Metrics | None = None  # None: no counters of its work are known
    health_generates: bool = False  # live_path answers 200 only after its core has made a token
    key_options: tuple[str, ...] = ("--api-key",)
    key_file_options: tuple[str, ...] = ()
    key_env: str = ""
    keys_in_one: bool = False
    drain_options: tuple[str, ...] = ()  # a number of seconds above 0 makes SIGTERM drain
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # more options: field of Command -> spellings
    flags: tuple[str, ...] = ()  # options without a value that count for the checks before a start
