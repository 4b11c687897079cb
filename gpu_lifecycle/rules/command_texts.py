"""More on a command than its one line: for the end of its ``--help``, and its man page.

One paragraph a command, by its words. A command without one says all in its line.
"""

from __future__ import annotations

# Those of rules/engines.py, which takes longer to import than most commands take; a test holds them equal.
ENGINE_NAMES = ("sglang", "vllm", "llama.cpp", "tgi", "triton", "tensorrt-llm", "ollama", "custom")

MORE: dict[str, str] = {
    "holders": "Every process that has an NVIDIA device node open or mapped, with its owner, and the verdict that a sweep for"
    " UNIT would give it, by the name of the rule. Without UNIT: as the only managed unit would judge, or, where there are"
    " several, as the default policy would. Nothing is signalled. As a user other than root not all can be seen, and that is"
    " said.",
    "gpus": "Memory that no visible process explains is shown apart: it belongs to a process of another container or host, or"
    " to the driver. With --watch and --json each look is one document on one line.",
    "check": "Reads the config, the command line and the model's files, looks at the GPUs and at who holds them, and prints"
    " every finding. The exit status is that of a start: 0 where it would go through.",
    "sweep": "Ends what earlier runs of UNIT left, and orphans, by the rules that holders shows; waits until they are gone;"
    " and proves the memory free. What belongs to a run of UNIT that is alive is spared. Only root may sweep; --dry-run shows"
    " what would be done.",
    "serve": "The main process of the unit: it starts the engine, says ready when the model is resident and answers, watches"
    " it, and ends it. By hand it stays in the foreground until it is interrupted. It ends with the status that says whether a"
    " restart can help.",
    "hook": "pre-start sweeps and examines the GPUs, post-stop ends survivors and proves the memory free, reload has the daemon"
    " read its config again and become the installed code. They are for the unit file: by hand use sweep, and systemctl"
    " reload.",
    "start": "Queues the same job as systemctl start, and shows what status --follow shows; in a pipe, one line for each change"
    " of phase. Exit status: 0 where the unit is active, or was; else that of the start: 69, 75, 77 or 78. Ctrl-C ends the"
    " watching (130), never the start.",
    "status": "Without UNIT: every unit that has a config. With --follow, in its place on a terminal and one line for each"
    " change in a pipe, until each unit is ready, down or failed; the exit status is 0 only where the end of each is ready.",
    "top": "Looks every 2 s; the verdicts are those that holders shows. Keys: q quits; the arrows choose a holder; r, and then"
    " y, sweeps for UNIT, by the rules and in the way of sweep, and only as root. Any other answer does nothing. It needs a"
    " terminal that can be drawn on; elsewhere use holders, gpus --watch and status --follow.",
    "timeline": "The last run that was ready or has ended, or another one of gpu-lifecycle runs: its phases, the engine's"
    " steps, the memory of each claimed GPU, what happened when, and up to five runs before it as a grey band. On a terminal a"
    " chart of text, as wide as that. Kept of the newest 50 starts, until READY or the end; of others the phases alone are"
    " shown, and why. --png needs a library that is not installed by itself: pip install 'gpu-lifecycle[png]'.",
    "install": "May be repeated: it renews what it wrote, and nothing that was edited. With --root, into an image: user and"
    " folders are then made when that boots.",
    "uninstall": "Refuses while the unit runs. What was edited stays, and is named.",
    "config init": "Every key stands in it with its meaning; those that are commented out keep their defaults. An output file"
    " that is there already is never overwritten.",
    "config show": "The values that hold, each with the line of the file that says it, or the engine's command line or"
    " environment that it was read from, or default. Values of environment variables, and of options that name a key or a"
    " password, are not shown.",
}
