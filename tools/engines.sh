#!/bin/sh
# Makes what the tests under real engines need: a Python environment with SGLang, vLLM and llama.cpp for a CPU, and tiny models.
# Lies outside the tree, in GPU_LIFECYCLE_ENGINES or the user's cache; 3.8 GB, about 3 minutes from near mirrors. May be repeated:
# where nothing changed it ends at once. Prints the folder on stdout.
# Exit status: 69 where the packages cannot be had (no Python 3.11, no room, no place that has them), 1 for all else.
#
# torch must be its CPU build (2.13.0+cpu). Where pip does not find that: PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS names a place that
# has it, as PyTorch's own CPU index.
set -eu

cd "$(dirname "$0")/.."
here=tools/engines
home=${GPU_LIFECYCLE_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-lifecycle/engines}
needed=$((5 * 1024 * 1024)) # KiB; the environment, and room for pip to unpack

fail() { # WHAT [CURE [STATUS]]
    printf 'engines: cannot %s\n' "$1" >&2
    [ -z "${2-}" ] || printf '         %s\n' "$2" >&2
    exit "${3-1}"
}

find_python() { # SGLang's wheel is built for this one alone
    for python in .venv/bin/python python3.11 /usr/bin/python3.11 python3; do
        if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            "$python" -c 'import sys; print(sys._base_executable)'
            return
        fi
    done
    fail "make an environment: SGLang's wheel is for Python 3.11, and there is none here" "install it beside the system's own" 69
}

install_packages() {
    room=$(df -Pk "$home" | awk 'NR == 2 { print $4 }')
    [ "$room" -ge "$needed" ] || fail "install into $home: $((room / 1024)) MiB are free there, $((needed / 1024)) are needed" \
        "set GPU_LIFECYCLE_ENGINES to a folder with more room" 69
    echo "engines: installing SGLang, vLLM and llama.cpp for a CPU into $home (3.7 GB)" >&2
    rm -rf "$home/env" "$home/models"
    "$1" -m venv "$home/env"
    log=$home/install.log
    if ! PIP_DISABLE_PIP_VERSION_CHECK=1 nice "$home/env/bin/python" -m pip install --no-deps --no-cache-dir \
        -r "$here/requirements.txt" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        absent=1
        ! grep -q 'No matching distribution found' "$log" || absent=69
        fail "install the engines: see the lines above, and $log" \
            "this needs a network; torch's CPU build may need PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS" "$absent"
    fi
    cp -r "$here/stub/torchvision" "$("$home/env/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/"
}

make_models() {
    echo "engines: making the tiny models" >&2
    HF_HUB_OFFLINE=1 "$home/env/bin/python" "$here/models.py" "$home/models" >"$home/models.log" 2>&1 || {
        tail -n 20 "$home/models.log" >&2
        fail "make the tiny models: see the lines above"
    }
}

mkdir -p "$home" || fail "write to $home" "set GPU_LIFECYCLE_ENGINES to another folder"
exec 9>"$home/lock"
flock 9
python=$(find_python)
packages=$home/packages-$("$python" -VV | cat - "$here/requirements.txt" "$here/stub/torchvision/__init__.py" | sha256sum | cut -c1-16)
models=$home/models-$(basename "$packages" | cat - "$here/models.py" | sha256sum | cut -c1-16)
if ! [ -e "$packages" ] || ! "$home/env/bin/python" -c '' 2>/dev/null; then
    rm -f "$home"/packages-* "$home"/models-*
    install_packages "$python"
    : >"$packages"
fi
if ! [ -e "$models" ]; then
    rm -f "$home"/models-*
    make_models
    : >"$models"
fi
printf '%s\n' "$home"
