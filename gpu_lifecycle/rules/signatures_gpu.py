"""Signatures of GPUs, of the driver, and of what connects them.

CUDA's own words are those of cudaGetErrorString (libcudart 13.5); PyTorch prints them behind "CUDA error: ".
"""

from __future__ import annotations

from gpu_lifecycle.rules.signatures_shape import Rank, Signature, signature

MEMORY: tuple[Signature, ...] = (
    signature(
        "kv-memory",
        "kv cache|not enough memory. please|cache blocks|gpu memory|state cache|kv pool|worst-case request|hbm is free",
        r"leave no GPU memory for the KV cache|Not enough memory\. Please try to increase --mem-fraction-static"
        r"|No available memory for the cache blocks|larger than the available KV cache memory"
        r"|not enough GPU memory (?:for|available)|state cache is too small to serve|no room for the full KV pool"
        r"|cannot fit ONE worst-case request|needs ~[\d.]+ ?GB but only [\d.]+ ?GB HBM is free"
        r"|exceeds available Mamba cache blocks|Externally held weights .{0,200}exceed the desired GPU memory utilization",
        "no GPU memory is left for the KV cache",
        "give the engine a larger share (--mem-fraction-static of SGLang, --gpu-memory-utilization of vLLM), or ask for less: a"
        " shorter context, a smaller draft model, more GPUs (--tp); gpu-lifecycle holders shows who else holds memory",
        "SGLang mem_cache/kv_cache_configurator.py and model_executor/pool_configurator.py, vLLM v1/core/kv_cache_planning.py"
        " (kv_cache_utils.py in 0.32), config/compilation.py and v1/worker/utils.py",
    ),
    signature(
        "gpu-occupied",
        "unbalanced|free memory on device|memory profiling",
        r"memory capacity is unbalanced|Free memory on device .{0,200}?less than (?:desired|the engine's budget)"
        r"|Error in memory profiling\. Initial free memory",
        "something else uses memory of a GPU: less is free than the engine asks for, or it changed while that was measured",
        "see who: gpu-lifecycle holders; end it through its owner, or give the engine a smaller share",
        "SGLang distributed/bootstrap.py _check_tp_memory_balance, vLLM v1/worker/utils.py and gpu_worker.py",
    ),
    signature(
        "cuda-oom",
        "out of memory|outofmemoryerror|memoryallocation|alloc_failed|cuda malloc",
        r"CUDA out of memory|CUDA error(?:: | 2\()out of memory|torch\.(?:cuda\.)?OutOfMemoryError|cudaErrorMemoryAllocation"
        r"|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|cudaMalloc failed: out of memory|Failed to CUDA malloc"
        r"|CUDA failure 2 'out of memory'",
        "the memory of a GPU ran out",
        "see who else holds memory there: gpu-lifecycle holders; else give the engine a smaller share"
        " (--mem-fraction-static, --gpu-memory-utilization), a shorter context, smaller batches or chunks, or more GPUs",
        "PyTorch c10/cuda/CUDACachingAllocator.cpp, libcudart, llama.cpp ggml-cuda, NCCL src/include/alloc.h",
    ),
)

BROKEN: tuple[Signature, ...] = (
    signature(
        "gpu-lost",
        "fallen off|gpu is lost",
        r"GPU (?:is lost|has fallen off)|fallen off the bus",
        "a GPU no longer answers on its bus",
        "on the host: look at dmesg, then reset the GPU or power the machine off and on",
        "NVIDIA driver and NVML (nvml.h, NVML_ERROR_GPU_IS_LOST)",
    ),
    signature(
        "gpu-ecc",
        "uncorrectable",
        r"uncorrectable ECC error|cudaErrorECCUncorrectable|uncorrectable NVLink error",
        "a GPU has found an error that it could not correct, in its memory or on NVLink",
        "on the host: nvidia-smi -q -d ECC,ROW_REMAPPER and dmesg; reset the GPU; have it replaced if it comes back",
        "libcudart, cudaErrorECCUncorrectable (214) and 220",
    ),
    signature(
        "illegal-access",
        "illegal|misaligned|launch failure|launchfailure|nvlink or a|peer gpu memory",
        r"illegal memory access|misaligned address|illegal instruction was encountered|unspecified launch failure"
        r"|Invalid access of peer GPU memory|cudaError(?:IllegalAddress|MisalignedAddress|IllegalInstruction|LaunchFailure)",
        "a kernel has read or written GPU memory that is not its own",
        "mostly a defect of a kernel: try another attention backend, without CUDA graphs, or another version of the engine; a"
        " draft model that is shorter than its target does this, too. CUDA_LAUNCH_BLOCKING=1 shows the place. See dmesg for Xid"
        " 13 and 31",
        "libcudart, cudaErrorIllegalAddress (700), 715, 716, 719",
    ),
    signature(
        "device-assert",
        "device-side assert|cuda_kernel_assert|cudaerrorassert",
        r"device-side assert triggered|CUDA_KERNEL_ASSERT|cudaErrorAssert",
        "a kernel has found an input that it does not allow, such as a token or a position out of range",
        "look at the lines before it for the assertion; check vocabulary and context length: gpu-lifecycle check UNIT",
        "libcudart, cudaErrorAssert (710)",
    ),
)

DRIVER: tuple[Signature, ...] = (
    signature(
        "fabric-not-ready",
        "not yet initialized|fabric is not ready|fabric manager|system_not_ready|systemnotready",
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|GPU fabric is not ready"
        r"|fabric manager.{0,60}(?:not running|failed)",
        "the NVSwitch fabric is not ready",
        "systemctl status nvidia-fabricmanager: it must run, in the driver's own version; on a VM it runs on the host",
        "libcudart, cudaErrorSystemNotReady (802)",
    ),
    signature(
        "driver-mismatch",
        "version|forward compat|toolchain|display driver|is too old|drivermismatch|insufficientdriver",
        r"Driver/library version mismatch|driver version is insufficient|driver on your system is too old"
        r"|forward compatibility was attempted|unsupported display driver|PTX was compiled with an unsupported toolchain"
        r"|loaded driver version .{0,80}does not match|nvml.{0,40}version mismatch"
        r"|cudaError(?:SystemDriverMismatch|InsufficientDriver)",
        "the NVIDIA driver does not fit CUDA's libraries",
        "after an upgrade of the driver: load the new kernel module, or reboot; else install a driver that this CUDA needs"
        " (nvidia-smi shows the newest that it supports)",
        "libcudart (35, 222, 803, 804), PyTorch torch/cuda, NVML (NVML_ERROR_LIB_RM_VERSION_MISMATCH)",
    ),
    signature(
        "no-kernel",
        "no kernel image|sm_|nokernelimage|only supports sm|not compiled with cuda",
        r"no kernel image is available|is not compatible with the current PyTorch installation|cudaErrorNoKernelImage"
        r"|SGLang only supports sm\d+ and above|Torch not compiled with CUDA enabled",
        "the engine was not built for this kind of GPU",
        "install a build of the engine and of PyTorch for this GPU's compute capability",
        "libcudart, cudaErrorNoKernelImageForDevice (209), PyTorch torch/cuda, SGLang model_executor load_model_utils.py",
    ),
    signature(
        "gpu-busy",
        "busy or unavailable|mps ",
        r"devices?(?:\(s\))? (?:are|is|is/are) busy or unavailable|MPS (?:client failed|server is not ready|client has been)",
        "the driver gives no context on a GPU: it is in exclusive mode and taken, or its MPS server is not there",
        "nvidia-smi -q -d COMPUTE shows the mode, gpu-lifecycle holders who holds it; see whether MPS is meant to run",
        "libcudart, cudaErrorDevicesUnavailable (46), 805 to 807",
    ),
    signature(
        "no-gpu",
        "no cuda|invalid device ordinal|cuda gpus|_no_device|no accelerator|infer device type|found no nvidia",
        r"no CUDA-capable device|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE|invalid device ordinal"
        r"|no CUDA devices (?:found|available)|No accelerator \(CUDA\b.{0,80}is available|Failed to infer device type"
        r"|Found no NVIDIA driver on your system",
        "CUDA sees no GPU, or fewer than the engine asks for",
        "gpu-lifecycle gpus, ls -l /dev/nvidia*: are the nodes there and open to the unit's user; look at CUDA_VISIBLE_DEVICES",
        "libcudart, cudaErrorNoDevice (100) and 101, PyTorch torch/cuda, SGLang utils/common.py, vLLM config/device.py",
    ),
)

WIRES: tuple[Signature, ...] = (
    signature(
        "nccl-timeout",
        "collective operation timeout|nccl operations have|flight recorder|heartbeat|waiting for clients|client socket has"
        "|monitoredbarrier|one or more ranks timed out",
        r"Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out"
        r"|ProcessGroupNCCL.{0,80}heartbeat.{0,60}(?:timeout|timed out|stuck)|Timed out after \d+ seconds waiting for clients"
        r"|client socket has (?:timed out after|failed to connect to any)|timed out in monitoredBarrier"
        r"|one or more ranks timed out during dispatch",
        "one GPU has waited for the others until its time was up",
        "the rank that did not come is the one to look at: stacks in the incident's folder, dmesg for Xid, nvidia-smi"
        " topo -m and nvlink -s; NCCL_DEBUG=INFO tells more",
        "PyTorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, TCPStore.cpp and socket.cpp",
        Rank.EFFECT,
    ),
    signature(
        "nccl",
        "nccl",
        r"NCCL error|nccl(?:UnhandledCudaError|SystemError|InternalError|RemoteError|InvalidUsage)"
        r"|unhandled (?:cuda|system) error.{0,40}NCCL",
        "the GPUs could not talk to each other",
        "NCCL_DEBUG=INFO names the step that fails; room in /dev/shm, locked memory and the network interface"
        " (NCCL_SOCKET_IFNAME) are the usual ones; see dmesg for Xid 74",
        "SGLang and vLLM distributed/device_communicators/pynccl_wrapper.py, PyTorch c10d/NCCLUtils.hpp",
        Rank.EFFECT,
    ),
)

GPU: tuple[Signature, ...] = (*MEMORY, *BROKEN, *DRIVER, *WIRES)
