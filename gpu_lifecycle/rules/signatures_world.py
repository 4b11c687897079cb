"""Signatures of the machine around an engine, of its own time-outs, and of the echoes that say only that something failed."""

from __future__ import annotations

from gpu_lifecycle.rules.signatures_shape import Rank, Signature, signature

_SHM_FULL = (
    r"dev/shm\b.{0,200}No space left|No space left.{0,200}dev/shm\b|shared memory.{0,200}No space left"
    r"|insufficient shared memory|Error while creating shared memory segment|unable to (?:write|allocate|resize).{0,40}shared"
)
MACHINE: tuple[Signature, ...] = (
    signature(
        "port-in-use",
        "in use|used by a process|bind http|is not available in|could not bind port",
        r"address already in use(?!\. Retrying)|EADDRINUSE|Port is already in use\. |is used by a process already"
        r"|port \d+ is already in use\. |couldn't bind HTTP server socket|\w at \d+ is not available in \d+ seconds"
        r"|Could not bind port \d+ on any",
        "a port that the engine needs is taken",
        "ss -ltnp names who listens there; end that, or choose other ports (--port, --nccl-port, --dist-init-addr)",
        "uvicorn/asyncio bind, SGLang server_args.py and utils/network.py, llama.cpp tools/server",
    ),
    signature(
        "shm-full",
        "shared memory|/dev/shm",
        _SHM_FULL,
        "the shared memory of /dev/shm is full, or too small",
        "raise size= of TemporaryFileSystem=/dev/shm in a drop-in of the unit (in a container: --shm-size); df -h /dev/shm",
        "PyTorch aten/src/ATen/MapAllocator.cpp and DataLoader, NCCL src/misc/shmutils.cc",
    ),
    signature(
        "disk-full",
        "no space left|quota exceeded",
        r"No space left on device|Disk quota exceeded",
        "a disk is full",
        "df -h and df -i: the unit's cache folder, /tmp, and where the line says",
        "Linux errno ENOSPC and EDQUOT",
    ),
    signature(
        "host-memory",
        "bad_alloc|memoryerror|allocate memory|errno 12|hostalloc|host memory",
        r"std::bad_alloc|\bMemoryError\b|can't allocate memory|Cannot allocate memory|\[Errno 12\]|cudaHostAlloc.{0,60}fail"
        r"|failed to (?:pin|allocate).{0,40}host memory|Not enough host memory (?:available|for (?!request))"
        r"|No host memory is left for HiCache|Pinned host memory allocation of .{0,80}returned a null pointer",
        "the machine's own memory ran out",
        "free -h; MemoryMax= of the unit and of what it lies in; a smaller host cache (--hicache-size, --swap-space)",
        "C++ runtime, Python, PyTorch c10/core/impl/alloc_cpu.cpp, SGLang mem_cache/pool_host/base.py",
    ),
    signature(
        "permission",
        "permission|errno 13",
        r"PermissionError|\[Errno 13\]|Permission denied",
        "the unit's user may not read, write or open something",
        "the line names it; the unit may write only to its own folders (ReadWritePaths= in a drop-in allows more);"
        " gpu-lifecycle check UNIT looks at the model's files as that user",
        "Linux errno EACCES",
        Rank.EFFECT,
    ),
    signature(
        "file-limit",
        "too many open files|errno 24",
        # vLLM warns at each start where it may not raise the limit, and quotes the error that may come of it
        r"^(?!.*failed to automatically increase).*(?:Too many open files|\[Errno 24\])",
        "the engine may not open more files",
        "raise LimitNOFILE= of the unit",
        "Linux errno EMFILE",
    ),
    signature(
        "thread-limit",
        "new thread|temporarily unavailable|pthread_create",
        r"can't start new thread|pthread_create failed|fork.{0,40}Resource temporarily unavailable|OpenBLAS blas_thread_init",
        "the engine may not start more threads or processes",
        "raise TasksMax= of the unit and of what it lies in; cat pids.max in its cgroup",
        "Python threading, OpenBLAS, Linux errno EAGAIN",
    ),
    signature(
        "locked-memory",
        "ibv_reg_mr|memlock|lock memory",
        r"ibv_reg_mr\w* .{0,80}failed|RLIMIT_MEMLOCK|(?:failed|unable) to lock memory",
        "the engine may not lock the memory that its network cards use",
        "LimitMEMLOCK=infinity in the unit; where the manager may not grant it (a container), in what runs the container",
        "NCCL src/misc/ibvwrap.cc, UCX",
    ),
    signature(
        "proxy",
        "proxy",
        r"ProxyError|Cannot connect to proxy|Proxy Authentication Required|Tunnel connection failed",
        "a proxy stands in the way",
        "take http_proxy and https_proxy out of server.environment, or add 127.0.0.1 and localhost to no_proxy",
        "urllib3 and requests (ProxyError), httpx",
        Rank.EFFECT,
    ),
    signature(
        "hub",
        "huggingface|local folder|localentrynotfound|offlinemode|local cache|repositorynotfound|gatedrepo|hub",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to .{0,20}huggingface|RepositoryNotFoundError"
        r"|GatedRepoError|is not a local folder and is not a valid model identifier|Cannot find the requested files in the"
        r"|huggingface\.co.{0,200}Max retries exceeded|locate the files? on the Hub",
        "the model is named by a name of a hub that cannot be reached or does not have it, and it does not lie here",
        "download it first and give the folder as --model-path; a token for a gated one (HF_TOKEN) in server.environment",
        "huggingface_hub errors.py, transformers utils/hub.py",
        Rank.EFFECT,
    ),
)

WAITING: tuple[Signature, ...] = (
    signature(
        "start-timeout",
        "engine core processes",
        r"Timed out waiting for (?:new )?engine core processes",
        "the engine's front gave its own core too little time to load",
        "raise VLLM_ENGINE_READY_TIMEOUT_S in server.environment: this daemon watches the load itself",
        "vLLM v1/engine/core_client.py",
    ),
    signature(
        "engine-watchdog",
        "watchdog timeout|rpc call to",
        r"watchdog timeout \(|RPC call to \w+ timed out",
        "the engine's own watchdog saw its core make no step for too long",
        "the stacks in the incident's folder show where each rank stood; if the machine is only slow, raise --watchdog-timeout",
        "SGLang utils/watchdog.py, vLLM v1/executor/multiproc_executor.py",
        Rank.EFFECT,
    ),
    signature(
        "graph-capture",
        "cuda graph|capture ",
        # some graphs are given up for an eager step, and the engine goes on
        r"^(?!.*(?:eager fallback|falling back)).*(?:Capture [\w. -]{2,40} failed: "
        r"|cuda graph.{0,60}capture.{0,40}(?:failed|invalid))",
        "a CUDA graph could not be captured",
        "leave more memory (a smaller --mem-fraction-static), capture smaller batches (--cuda-graph-max-bs), or none",
        "SGLang model_executor/runner and speculative, each *_cuda_graph_runner.py",
        Rank.EFFECT,
    ),
    signature(
        "crashed",
        "segmentation fault|segfault|sigsegv|bus error|fatal python error|terminate called|sigbus",
        # SGLang says at each start of GPT-OSS which crash it avoids
        r"Segmentation fault|Segfault encountered|(?<!triton_kernels )SIGSEGV|Bus error|SIGBUS|Fatal Python error"
        r"|terminate called after",
        "a process of the engine crashed in its native code",
        "the stack below the line names the library; a bus error mostly means that /dev/shm or a disk was full, or that a file"
        " of the weights was cut while it was mapped",
        "Python faulthandler, glibc, libstdc++",
        Rank.EFFECT,
    ),
    signature(
        "worker-killed",
        "exit code",
        r"(?:crashed with exit code|(?:initialization|died unexpectedly) \(exit code:) -9\b",
        "a process of the engine was killed by somebody",
        "journalctl -k and memory.events say whether it was the kernel, for memory; else somebody has sent SIGKILL",
        "SGLang utils/watchdog.py and entrypoints/engine.py, vLLM v1/executor/multiproc_executor.py",
        Rank.EFFECT,
    ),
)

ECHOES: tuple[Signature, ...] = (
    signature(
        "scheduler-exception",
        "hit an exception|initialization failed|failed to load all models|a fatal error",
        r"\w+ hit an exception|(?:Engine core|WorkerProc) initialization failed|failed to load all models"
        r"|EngineCore encountered a fatal error",
        "a part of the engine has ended with an exception",
        "read the exception below the line: output.txt in the incident's folder",
        "SGLang managers/scheduler.py, vLLM v1/engine/utils.py and v1/executor/multiproc_executor.py, Triton",
        Rank.ECHO,
    ),
    signature(
        "child-died",
        "sigquit|died|crashed with exit code|enginedeaderror|exited unexpectedly",
        r"SIGQUIT received|Received sigquit|died during init|died unexpectedly|crashed with exit code|EngineDeadError"
        r"|engine core exited unexpectedly",
        "a process of the engine has ended, and it does not say why",
        "read what that process said before it ended: output.txt in the incident's folder",
        "SGLang entrypoints/engine.py and managers/tokenizer_manager.py, vLLM v1/engine/exceptions.py",
        Rank.ECHO,
    ),
    signature(
        "peer-lost",
        "by peer|broken pipe|finish loading",
        r"Connection (?:reset|closed) by peer|Broken pipe|there are other ranks that didn't finish loading",
        "one process of the engine has lost another",
        "look for the one that ended first",
        "Gloo transport/tcp/pair.cc, Linux errno ECONNRESET and EPIPE, SGLang load_model_utils.py",
        Rank.ECHO,
    ),
    signature(
        "core-silent",
        "health check failed|warmup error",
        r"Health check failed\. Server couldn't get a response|Initialization failed\. warmup error",
        "the engine's core did not answer its own front",
        "look at the schedulers' lines, and at the stacks in the incident's folder",
        "SGLang entrypoints/http_server.py",
        Rank.ECHO,
    ),
)

WORLD: tuple[Signature, ...] = (*MACHINE, *WAITING)
