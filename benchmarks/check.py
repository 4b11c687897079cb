"""``check`` of a model of 200 shards, warm: the whole process."""

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
    seconds = [run["seconds"] for run in runs]
    span = f"{min(seconds) * 1000:.0f} to {max(seconds) * 1000:.0f} ms"
    detail = f"{SHARDS} shards, {SHARDS * 500} tensors; {ROUNDS} rounds; {span}"
    yield Row("check, whole process, from a warm cache", median(seconds), "s", limit=0.5, detail=detail)
