"""Signatures of a command line, a model or an installation that is wrong: another try ends in the same way."""

from __future__ import annotations

from gpu_lifecycle.rules.signatures_shape import Rank, Signature, signature

# How the two engines and their models call the number of GPUs that something is split over.
_SPLIT = (
    r"(?:(?:tensor|expert)[- _]parallel[- _](?:world[- _])?size|(?:shard |\w{0,20}_)?(?:tp|ep)(?:_world)?_size|--tp-size"
    r"|(?:[\w-]{1,20} )?(?:TP|EP)(?: size|=)|attention TP\b|(?:attn )?tp (?:size )?\d|(?:DCP )?world[ _]size"
    r"|`?--decode-context-parallel-size)"
)
_CHECK = "gpu-lifecycle check UNIT looks for this before a start"

COMMAND: tuple[Signature, ...] = (
    signature(
        "arguments",
        "error: |max_num_batched_tokens",
        r"error: (?:unrecognized arguments|argument |the following arguments are required|ambiguous option)"
        r"|max_num_batched_tokens \(\d+\) is smaller than max_model_len",
        "the engine does not know an option of its command line, or refuses its value",
        "mend server.command in the config; the engine's --help lists what this version knows",
        "Python argparse, as SGLang and vLLM use it, vLLM config/scheduler.py",
    ),
    signature(
        "draft-context",
        "target model's context_length|speculative_max_model_len",
        r"Target model's context_length \(\d+\) is greater than the derived.{0,500}To allow overriding"
        r"|speculative_max_model_len=\d+ cannot be larger than",
        "the draft model is made for a shorter context than its target runs with",
        "set --context-length to the draft's own length, or take a draft model that is made for this one; do not set the"
        f" override variable: long requests then end in illegal memory accesses. {_CHECK}",
        "SGLang configs/model_config.py _derive_context_length, vLLM config/speculative.py",
    ),
    signature(
        "context-length",
        "is greater than the derived",
        r"(?:context_length|max_model_len) \(\d+\) is greater than the derived.{0,600}To allow overriding",
        "the context length that is asked for is longer than the model is made for",
        f"lower --context-length of SGLang or --max-model-len of vLLM to the model's own. {_CHECK}",
        "SGLang configs/model_config.py _derive_context_length, vLLM config/model.py",
    ),
    signature(
        "tp-divide",
        "divisible|number of experts|dimension size|num_experts|tensor parallel size|even distribution of experts",
        rf"divisible by {_SPLIT}|\btp_size(?:[ =]\d+)? must be divisible by|(?:^|\w: |\] )\d+ is not divisible by \d+"
        r"|tensor_model_parallel_size \(\d+\) must be divisible by|evenly divisible across EP ranks"
        r"|is not divisible by weight quantization block|greater than the number of experts|exceeds dimension size"
        r"|(?:Tensor parallel|TP) size \d+ > num_experts|Consider reducing tensor_parallel_size or"
        r"|happens when tensor_parallel_size|caused by too large tensor parallel size|only supports even distribution",
        "the model cannot be split over so many GPUs",
        f"choose a --tp (and --ep) that divides attention heads, key-value heads, experts and quantization blocks. {_CHECK}",
        "vLLM config/model.py and distributed/utils.py, SGLang arg_groups/parallel_hook.py, models, layers/quantization",
    ),
)

MODEL: tuple[Signature, ...] = (
    signature(
        "missing-weights",
        "missing from|but missing|model weights|not initialized from|.safetensors|.gguf",
        r"shard file\(s\) missing from|files referenced in index but missing|Cannot find any model weights"
        r"|Following weights were not initialized from|No such file or directory: .{0,300}\.(?:safetensors|gguf|bin)\b"
        r"|failed to open GGUF file",
        "files of the model's weights are missing",
        f"download the model again: the download was not complete, or the path is wrong. {_CHECK}",
        "SGLang model_loader/weight_utils.py, vLLM model_executor/model_loader/default_loader.py, llama.cpp gguf.cpp",
    ),
    signature(
        "torn-weights",
        "deserializing header|safetensorerror|incompletebuffer|invalidheader|corrupted or incomplete|invalid magic char",
        r"Error while deserializing header|SafetensorError|IncompleteBuffer|InvalidHeader|corrupted or incomplete"
        r"|gguf_init\w*: invalid magic characters",
        "a file of the model's weights is torn",
        f"download that file again and compare its size or checksum. {_CHECK}",
        "safetensors (safetensors_rust.SafetensorError), llama.cpp llama-model-loader.cpp and gguf.cpp",
    ),
    signature(
        "tokenizer",
        "tokenizer|vocabulary",
        r"Can't load tokenizer for|Couldn't instantiate the backend tokenizer|Unable to load vocabulary from file"
        r"|Tokenizer class .{0,80}does not exist|(?:Exception|Error): .{0,80}tokenizer(?:\.json|\.model)",
        "the tokenizer of the model cannot be loaded",
        f"see that tokenizer.json or its like lies in the model's folder and is whole, or name one: --tokenizer-path. {_CHECK}",
        "transformers tokenization_utils_base.py, as SGLang and vLLM call it",
    ),
    signature(
        "remote-code",
        "trust_remote_code|trust-remote-code|custom code",
        r"trust_remote_code=True|contains custom code which must be executed",
        "the model brings code of its own, which the engine does not run unasked",
        "if you trust that code: --trust-remote-code",
        "transformers dynamic_module_utils.py",
    ),
    signature(
        "model-unknown",
        "not supported for now|does not recognize this architecture|unrecognized model in|unknown model architecture",
        r"Model architectures .{0,200}are not supported for now|does not recognize this architecture|Unrecognized model in"
        r"|unknown model architecture",
        "this version of the engine does not know the model's architecture",
        "take a version of the engine (and of transformers) that knows it",
        "SGLang models/registry.py, vLLM model_executor/models/registry.py, transformers AutoConfig, llama.cpp llama-model.cpp",
    ),
    signature(
        "quantization",
        "quantization",
        r"(?:Unknown|Unsupported|Invalid) quantization|quantization method .{0,120}(?:not supported|does not match)"
        r"|quantization .{0,80}is not supported for",
        "the engine cannot run the model's quantization",
        "see quantization_config in the model's config.json, and what this engine supports on this GPU",
        "vLLM config/model.py and model_loader/weight_utils.py, SGLang configs/model_config.py",
    ),
    signature(
        "model-config",
        "json",
        r"(?:json\.decoder\.)?JSONDecodeError|is not a valid JSON file",
        "a file of the model is no JSON",
        f"download the model's config and tokenizer files again. {_CHECK}",
        "Python json, transformers configuration_utils.py",
        Rank.EFFECT,
    ),
)

INSTALLED: tuple[Signature, ...] = (
    signature(
        "library-missing",
        "shared librar|shared object file|undefined symbol",
        r"error while loading shared libraries|cannot open shared object file|undefined symbol: ",
        "a library that the engine needs is missing, or of another version",
        "install what the line names; two packages built against different versions of PyTorch or CUDA do this, too",
        "glibc elf/dl-load.c",
        Rank.EFFECT,
    ),
    signature(
        "module-missing",
        "modulenotfounderror|cannot import name|no module named",
        # SGLang passes over each of its models whose own package is not there, on a good day too
        r"^(?!.*Ignore import error).*(?:ModuleNotFoundError|ImportError: cannot import name|No module named )",
        "a Python package that the engine needs is missing, or of another version",
        "install what the line names into the engine's own environment; is server.command the right Python",
        "Python importlib",
        Rank.EFFECT,
    ),
    signature(
        "kernel-build",
        "ninja|building extension|nvcc|compilationerror",
        r"ninja: build stopped|Error building extension|nvcc fatal|Ninja is required|triton\.compiler\.errors\.Compilation",
        "a kernel could not be compiled",
        "read the compiler's lines before it; a compiler, CUDA's headers and room in the unit's cache folder are needed",
        "PyTorch torch/utils/cpp_extension.py, Triton",
    ),
)

SETUP: tuple[Signature, ...] = (*COMMAND, *MODEL, *INSTALLED)
