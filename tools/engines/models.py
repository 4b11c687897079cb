"""Makes the tiny models: `models.py FOLDER`. Run by the engines' own Python.

target               a Llama with random weights in two shards, a tokenizer and a chat template: 512 positions, 4 heads
torn                 the same without its second shard
long                 the same weights, said to be made for 65536 positions
draft-512, draft-128 EAGLE3 drafts for it, of that many positions
tiny.gguf            a Llama with random weights as llama.cpp reads it: 32768 positions, a token for each byte
torn.gguf            its first half
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HIDDEN, WIDTH, HEADS, KV_HEADS, VOCABULARY, POSITIONS = 256, 512, 4, 2, 512, 512
TEXT = "the quick brown fox jumps over the lazy dog, and says nothing of it at all. " * 20
CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


def make_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = CHAT
    fast.save_pretrained(folder)


def make_target(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        torch_dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="1500KB")
    make_tokenizer(folder)
    assert len(list(folder.glob("*.safetensors"))) == 2, list(folder.iterdir())


def make_torn(folder: Path, target: Path) -> None:
    shutil.copytree(target, folder)
    max(folder.glob("*.safetensors")).unlink()


def make_long(folder: Path, target: Path) -> None:
    shutil.copytree(target, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 65536}, indent=1))


def make_gguf(path: Path) -> None:
    """Keys and names as in the GGUF specification (ggml docs/gguf.md) and llama.cpp's src/llama-arch.cpp."""
    writer, random = GGUFWriter(str(path), "llama"), np.random.default_rng(0)
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(2)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token.encode() for token in tokens])
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3, *([6] * 256), 1])  # unknown, control, byte, normal
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, shape in _gguf_shapes(len(tokens)).items():
        weights = random.standard_normal(shape) * 0.02 if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    group = KV_HEADS * HIDDEN // HEADS
    block = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (group, HIDDEN),
        "attn_v": (group, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (WIDTH, HIDDEN),
        "ffn_up": (WIDTH, HIDDEN),
        "ffn_down": (HIDDEN, WIDTH),
    }
    ends = {"token_embd": (vocabulary, HIDDEN), "output_norm": (HIDDEN,), "output": (vocabulary, HIDDEN)}
    shapes = ends | {f"blk.{number}.{name}": shape for number in range(2) for name, shape in block.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def make_draft(folder: Path, positions: int) -> None:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": VOCABULARY,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(_draft_weights(), str(folder / "model.safetensors"), metadata={"format": "pt"})


def _draft_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    head = HIDDEN // HEADS
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": (HEADS * head, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (KV_HEADS * head, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (KV_HEADS * head, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, HEADS * head),
        "midlayer.mlp.gate_proj.weight": (WIDTH, HIDDEN),
        "midlayer.mlp.up_proj.weight": (WIDTH, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, WIDTH),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    weights = {name: (torch.randn(shape) * 0.02).to(torch.bfloat16) for name, shape in shapes.items()}
    weights["d2t"] = torch.zeros(VOCABULARY, dtype=torch.int64)
    weights["t2d"] = torch.ones(VOCABULARY, dtype=torch.bool)
    return weights


def main(top: Path) -> None:
    scratch = top.with_name(top.name + ".new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    make_target(scratch / "target")
    make_torn(scratch / "torn", scratch / "target")
    make_long(scratch / "long", scratch / "target")
    make_gguf(scratch / "tiny.gguf")
    whole = (scratch / "tiny.gguf").read_bytes()
    (scratch / "torn.gguf").write_bytes(whole[: len(whole) // 2])
    for positions in (512, 128):
        make_draft(scratch / f"draft-{positions}", positions)
    for path in (*scratch.rglob("*.safetensors"), *scratch.glob("*.gguf")):
        path.chmod(0o644)  # the unit's user is another one
    shutil.rmtree(top, ignore_errors=True)
    scratch.rename(top)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
