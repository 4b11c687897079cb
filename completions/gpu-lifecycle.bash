# Completion of gpu-lifecycle for bash. Made from its command line by `make docs`: do not edit.

_gpu_lifecycle_units() {
    local file
    for file in /etc/gpu-lifecycle/*.toml; do
        [[ -e $file ]] && file=${file##*/} && printf '%s\n' "${file%.toml}"
    done
}

# What follows the commands $1: an option's value (after $2), a positional (the $2-th), or the options themselves.
_gpu_lifecycle_is_command() {
    case $1 in
        " holders" | " gpus" | " check" | " sweep" | " serve" | " hook" | " start" | " status" | " top" | " why" | " runs" | " timeline" | " install" | " uninstall" | " config" | " config init" | " config show" | " demo") return 0 ;;
        *) return 1 ;;
    esac
}

_gpu_lifecycle_options() {
    case $1 in
        "") echo "-h --help --version" ;;
        " holders") echo "-h --help --json" ;;
        " gpus") echo "-h --help --json --watch --release" ;;
        " check") echo "-h --help --json" ;;
        " sweep") echo "-h --help --json --dry-run" ;;
        " serve") echo "-h --help" ;;
        " hook") echo "-h --help" ;;
        " start") echo "-h --help" ;;
        " status") echo "-h --help --json --follow" ;;
        " top") echo "-h --help" ;;
        " why") echo "-h --help --json --run" ;;
        " runs") echo "-h --help --json" ;;
        " timeline") echo "-h --help --json --run --svg --png" ;;
        " install") echo "-h --help --root --enable" ;;
        " uninstall") echo "-h --help --root" ;;
        " config") echo "-h --help" ;;
        " config init") echo "-h --help --engine --output" ;;
        " config show") echo "-h --help --json" ;;
        " demo") echo "-h --help --keep" ;;
    esac
}

_gpu_lifecycle_value() {
    case "$1 $2" in
        " gpus --release") echo "?unit" ;;
        " why --run") echo "nothing" ;;
        " timeline --run") echo "nothing" ;;
        " timeline --svg") echo "file" ;;
        " timeline --png") echo "file" ;;
        " install --root") echo "folder" ;;
        " uninstall --root") echo "folder" ;;
        " config init --engine") echo "words sglang vllm llama.cpp tgi triton tensorrt-llm ollama custom" ;;
        " config init --output") echo "file" ;;
    esac
}

_gpu_lifecycle_positional() {
    case "$1 $2" in
        " 0") echo "words holders gpus check sweep serve hook start status top why runs timeline install uninstall config demo" ;;
        " holders 0") echo "unit" ;;
        " check 0") echo "unit" ;;
        " sweep 0") echo "unit" ;;
        " serve 0") echo "unit" ;;
        " hook 0") echo "words pre-start post-stop reload" ;;
        " hook 1") echo "unit" ;;
        " start 0") echo "unit" ;;
        " status 0") echo "unit" ;;
        " top 0") echo "unit" ;;
        " why 0") echo "unit" ;;
        " runs 0") echo "unit" ;;
        " timeline 0") echo "unit" ;;
        " install 0") echo "unit" ;;
        " uninstall 0") echo "unit" ;;
        " config 0") echo "words init show" ;;
        " config init 0") echo "unit" ;;
        " config show 0") echo "unit" ;;
    esac
}

_gpu_lifecycle() {
    local -a words
    read -r -a words <<<"${COMP_LINE:0:COMP_POINT}"
    local current=""
    if [[ ${COMP_LINE:0:COMP_POINT} != *[[:space:]] ]]; then
        current=${words[-1]}
        unset 'words[-1]'
    fi
    local command="" awaited="" word takes place=0
    for word in "${words[@]:1}"; do
        if [[ -n $awaited && ! ($awaited == \?* && $word == -*) ]]; then
            awaited=""
        elif [[ $word == -* ]]; then
            awaited=$(_gpu_lifecycle_value "$command" "$word")
        elif _gpu_lifecycle_is_command "$command $word"; then
            command="$command $word" place=0
        else
            place=$((place + 1))
        fi
    done
    if [[ $current == --*=* ]]; then
        takes=$(_gpu_lifecycle_value "$command" "${current%%=*}")
        current=${current#*=}
    elif [[ -n $awaited && ! ($awaited == \?* && $current == -*) ]]; then
        takes=$awaited
    elif [[ $current == -* ]]; then
        takes="words $(_gpu_lifecycle_options "$command")"
    else
        takes=$(_gpu_lifecycle_positional "$command" "$place")
    fi
    takes=${takes#\?}
    COMPREPLY=()
    case $takes in
        "words "*) word=${takes#words } ;;
        unit) word=$(_gpu_lifecycle_units) ;;
        folder) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
        file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
        *) return ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$word" -- "$current")
    # readline replaces only what comes after the last of its own breaks, and that break too if it is an @
    local broken=${current%"${current##*[$COMP_WORDBREAKS]}"}
    broken=${broken%@}
    COMPREPLY=("${COMPREPLY[@]#"$broken"}")
}

complete -F _gpu_lifecycle gpu-lifecycle
