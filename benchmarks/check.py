"""The commands that people wait for: ``check`` of a model of 200 shards, and ``status``. Warm, the whole process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from .bench import PROGRAM, PYTHON, Bench, must
from .rows import Row

SHARDS, ROUNDS = 200, 9
MODEL = f"""import json, os
os.makedirs("/models/kimi", exist_ok=True)
names = [f"model-{{n:05}}-of-{SHARDS:05}.safetensors" for n in range(1, {SHARDS} + 1)]
for at, name in enumerate(names):
    header = {{f"layers.{{at}}.{{n}}.weight": {{"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]}} for n in range(500)}}
    text = json.dumps(header).encode()
    with open(f"/models/kimi/{{name}}", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + bytes(500))
table = {{f"layers.{{at}}.{{n}}.weight": name for at, name in enumerate(names) for n in range(500)}}
json.dump({{"weight_map": table}}, open("/models/kimi/model.safetensors.index.json", "w"))
json.dump({{"num_attention_heads": 64, "max_position_embeddings": 4096}}, open("/models/kimi/config.json", "w"))
open("/models/kimi/tokenizer.json", "w").write("{{}}")
"""


def rows(bench: Bench) -> Iterator[Row]:
    bench.machine.run([PYTHON, "-ISBc", MODEL])
    checked = json.loads(bench.site.ask("gpu-lifecycle", "check", "sglang-kimi", "--json"))
    must(checked["ok"], f"the model is refused: {checked['findings']}")
    runs = bench.time({"check": [PROGRAM, "check", "sglang-kimi", "--json"]}, rounds=ROUNDS)["check"]
    must(all(run["status"] == 0 for run in runs), "check refused a sound model")
    bench.machine.run(["rm", "-r", "/models/kimi"])
    detail = f"{SHARDS} shards, {SHARDS * 500} tensors"
    yield _row("check, whole process, from a warm cache", [run["seconds"] for run in runs], 0.5, detail)
    bench.site.start()
    words = f"{PROGRAM} status sglang-kimi"
    on_terminal = ["script", "-qec", words, "/dev/null"]
    commands = {"plain": words.split(), "terminal": on_terminal, "bare": ["script", "-qec", "true", "/dev/null"]}
    found = bench.time(commands, rounds=ROUNDS)
    must(all(run["status"] == 0 for runs in found.values() for run in runs), "status did not show a unit that is ready")
    bench.site.stop()
    bare = median(run["seconds"] for run in found.pop("bare"))
    for name, runs in found.items():
        less = bare if name == "terminal" else 0.0
        yield _row(f"status, {name}", [run["seconds"] - less for run in runs], 0.25, "one unit that is ready, on 8 GPUs")


def _row(what: str, seconds: list[float], limit: float, detail: str) -> Row:
    span = f"{min(seconds) * 1000:.0f} to {max(seconds) * 1000:.0f} ms"
    return Row(what, median(seconds), "s", limit=limit, detail=f"{detail}; {ROUNDS} rounds; {span}")
