# Completion of gpu-lifecycle for fish. Made from its command line by `make docs`: do not edit.

function __gpu_lifecycle_units
    for file in /etc/gpu-lifecycle/*.toml
        string replace -r '.*/(.*)\.toml$' '$1' -- $file
    end
end

# The commands so far, and how many other words follow them.
function __gpu_lifecycle_place
    set -l command
    set -l place 0
    set -l awaited 0
    set -l words (commandline -opc)
    for word in $words[2..-1]
        if test $awaited = 1
            set awaited 0
        else if string match -q -- '-*' $word
            __gpu_lifecycle_awaits "$command" $word; and set awaited 1
        else if __gpu_lifecycle_is_command (string join -- ' ' $command $word)
            set command $command $word
            set place 0
        else
            set place (math $place + 1)
        end
    end
    echo "$command"
    echo $place
end

# True within the commands $argv[1], if given at the $argv[2]-th word after them.
function __gpu_lifecycle_at
    set -l found (__gpu_lifecycle_place)
    test "$found[1]" = "$argv[1]"; or return 1
    not set -q argv[2]; or test $found[2] = $argv[2]
end

function __gpu_lifecycle_after
    set -l words (commandline -opc)
    test "$words[-1]" = $argv[1]
end

function __gpu_lifecycle_is_command
    contains -- $argv[1] 'holders' 'gpus' 'check' 'sweep' 'serve' 'hook' 'start' 'status' 'top' 'why' 'runs' 'timeline' 'install' 'uninstall' 'config' 'config init' 'config show' 'demo'
end

function __gpu_lifecycle_awaits
    contains -- "$argv[1] $argv[2]" 'why --run' 'timeline --run' 'timeline --svg' 'timeline --png' 'install --root' 'uninstall --root' 'config init --engine' 'config init --output'
end

complete -c gpu-lifecycle -f
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a holders -d 'who holds which GPU, with owner, verdict and rule'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a gpus -d 'each GPU: memory, health, claimed by'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a check -d 'all that a start would check; changes nothing'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a sweep -d 'the sweep by hand: find, judge, reap, prove'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a serve -d 'the resident daemon (the unit\'s main process; also in the foreground)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a hook -d 'the unit\'s own hooks; systemd calls them'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a start -d 'systemctl start that shows how far it is, until the unit is ready or why not'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a status -d 'state, phase, progress, last probes'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a top -d 'GPUs, holders and units on the whole screen, as they change'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a why -d 'why the last run ended, what was seen, what to do'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a runs -d 'the runs, how long their phases were, how they ended'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a timeline -d 'the start of a run as a picture'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a install -d 'install the unit, its config example, catalog, user and folders'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a uninstall -d 'take away what install wrote, and nothing else'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a config -d 'write a commented config, or show the one that holds'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "" 0' -a demo -d 'the whole story on a machine without a GPU (needs a source checkout)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at ""' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at ""' -l version -d 'show program\'s version number and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "holders"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "holders"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "holders" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "gpus"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "gpus"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "gpus"' -l watch -d 'go on every 2 s, until it is interrupted'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "gpus"' -l release -a '(__gpu_lifecycle_units)' -d 'have the daemon of a unit, or all, let go of NVML for a minute (before a GPU reset)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "gpus"; and __gpu_lifecycle_after --release' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "check"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "check"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "check" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "sweep"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "sweep"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "sweep"' -l dry-run -d 'show exactly what would be done; signal nobody'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "sweep" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "serve"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "serve" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "hook"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "hook" 0' -a 'pre-start post-stop reload'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "hook" 1' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "start"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "start" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "status"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "status"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "status"' -l follow -d 'go on until each unit is ready or has failed'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "status" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "top"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "top" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "why"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "why"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "why"' -l run -x  -d 'another run: its id, or the beginning of it'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "why" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "runs"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "runs"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "runs" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "timeline"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "timeline"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "timeline"' -l run -x  -d 'another run: its id, or the beginning of it'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "timeline"' -l svg -r -F -d 'write it as SVG (-: to standard output)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "timeline"' -l png -r -F -d 'write it as PNG; needs the package resvg-py'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "timeline" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "install"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "install"' -l root -x -a '(__fish_complete_directories)' -d 'install into an image below DIR'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "install"' -l enable -d 'start it at boot, too'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "install" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "uninstall"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "uninstall"' -l root -x -a '(__fish_complete_directories)' -d 'take it out of an image below DIR'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "uninstall" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config" 0' -a init -d 'a commented config to begin with, on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config" 0' -a show -d 'the config that holds for a unit, and where each value comes from'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config init"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config init"' -l engine -x -a 'sglang vllm llama.cpp tgi triton tensorrt-llm ollama custom' -d 'the kind of server'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config init"' -l output -r -F -d 'write it there, if there is no such file yet'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config init" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config show"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config show"' -l json -d 'one JSON document on standard output'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "config show" 0' -a '(__gpu_lifecycle_units)'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "demo"' -s h -l help -d 'show this help message and exit'
complete -c gpu-lifecycle -n '__gpu_lifecycle_at "demo"' -l keep -d 'leave the test machine up and say how to enter it'
