"""The command line. One function per command; everything that a command needs is imported inside it.

A hook must not pay for tables, HTTP or schemas that it does not use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from gpu_lifecycle import __version__
from gpu_lifecycle.errors import Exit, LifecycleError
from gpu_lifecycle.facts import Layout, UnitName

RELOAD = "reload"
HOOKS = ("pre-start", "post-stop", RELOAD)
if TYPE_CHECKING:
    import argparse

Command = Callable[["argparse.Namespace", Layout], int]


def unit_name(text: str) -> UnitName:
    """``sglang-kimi`` and ``sglang-kimi.service`` are the same unit. Raises UsageError."""
    from gpu_lifecycle.rules.names import parse_unit

    return parse_unit(text)


def run_hook(arguments: argparse.Namespace, layout: Layout) -> int:
    return hook(arguments.hook, arguments.unit, layout)


def hook(name: str, unit: str, layout: Layout) -> int:
    """Does not return, but for a reload."""
    import gc

    gc.disable()  # most hooks live for less than a second, and looking for garbage would be a twentieth of that
    if name == RELOAD:
        from gpu_lifecycle.jobs.ask import reload

        return reload(unit_name(unit), layout)
    from gpu_lifecycle.jobs.hooks import Hooks

    return leave(Hooks[name](unit_name(unit), layout))


def leave(status: int) -> NoReturn:
    """Ends this process at once: all is closed, and taking the interpreter apart costs a hook 10 ms, and the daemon 40.

    systemd waits for them, and so does whoever starts or stops the unit.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_serve(arguments: argparse.Namespace, layout: Layout) -> int:
    if arguments.self_test:
        from gpu_lifecycle.jobs.reload import self_test

        return self_test(unit_name(arguments.unit), layout)
    import gc

    gc.disable()  # nothing of what is read now becomes garbage, and looking for it would be a tenth of that time
    from gpu_lifecycle.jobs.run import serve

    return leave(serve(unit_name(arguments.unit), layout))


def run_holders(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.inspect import holders

    return holders(unit_name(arguments.unit) if arguments.unit else None, layout, as_json=arguments.json)


def run_gpus(arguments: argparse.Namespace, layout: Layout) -> int:
    if arguments.release:
        from gpu_lifecycle.jobs.release import release

        return release(layout, arguments.release)
    from gpu_lifecycle.jobs.inspect import gpus

    return gpus(layout, as_json=arguments.json, watch=arguments.watch)


def run_status(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.status import status

    return status(
        unit_name(arguments.unit) if arguments.unit else None, layout, as_json=arguments.json, follow=arguments.follow
    )


def run_start(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.start import start

    return start(unit_name(arguments.unit), layout)


def run_top(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.top import top

    return top(unit_name(arguments.unit) if arguments.unit else None, layout)


def run_why(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.why import why

    return why(unit_name(arguments.unit), layout, arguments.run_id, as_json=arguments.json)


def run_runs(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.why import runs

    return runs(unit_name(arguments.unit), layout, as_json=arguments.json)


def run_timeline(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.timeline import timeline

    files = {"svg": arguments.svg, "png": arguments.png}
    return timeline(unit_name(arguments.unit), layout, arguments.run_id, files, as_json=arguments.json)


def run_check(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.check import check

    return check(unit_name(arguments.unit), layout, as_json=arguments.json)


def run_sweep(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs.inspect import sweep

    return sweep(unit_name(arguments.unit), layout, as_json=arguments.json, dry_run=arguments.dry_run)


def run_install(arguments: argparse.Namespace, _: Layout) -> int:
    from gpu_lifecycle.jobs.install import install

    for line in install(unit_name(arguments.unit), Layout(arguments.root), enable=arguments.enable):
        print(line)
    return Exit.OK


def run_uninstall(arguments: argparse.Namespace, _: Layout) -> int:
    from gpu_lifecycle.jobs.install import uninstall

    for line in uninstall(unit_name(arguments.unit), Layout(arguments.root)):
        print(line)
    return Exit.OK


def run_config(arguments: argparse.Namespace, layout: Layout) -> int:
    from gpu_lifecycle.jobs import config_file

    unit = unit_name(arguments.unit) if arguments.unit else None
    if unit is None or arguments.action == "init":
        return config_file.init(unit, arguments.engine, arguments.output)
    return config_file.show(unit, layout, as_json=arguments.json)


def run_demo(arguments: argparse.Namespace, _: Layout) -> int:
    from gpu_lifecycle.jobs.demo import demo

    return demo(keep=arguments.keep)


def parser() -> argparse.ArgumentParser:
    """All commands with their help."""
    import argparse

    from gpu_lifecycle.rules.command_texts import MORE

    top = argparse.ArgumentParser(
        prog="gpu-lifecycle", description="Makes systemctl start of a GPU inference server a thing one can trust."
    )
    top.add_argument("--version", action="version", version=f"gpu-lifecycle {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, run: Command, unit: str = "") -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, epilog=MORE.get(name))
        command.set_defaults(run=run)
        if unit:
            command.add_argument(
                "unit",
                metavar="UNIT",
                nargs="?" if unit == "optional" else None,
                help="a managed unit, such as sglang-kimi",
            )
        return command

    def json_too(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
        command.add_argument("--json", action="store_true", help="one JSON document on standard output")
        return command

    json_too(add("holders", "who holds which GPU, with owner, verdict and rule", run_holders, "optional"))
    gpus = json_too(add("gpus", "each GPU: memory, health, claimed by", run_gpus))
    gpus.add_argument("--watch", action="store_true", help="go on every 2 s, until it is interrupted")
    release = "have the daemon of a unit, or all, let go of NVML for a minute (before a GPU reset)"
    gpus.add_argument("--release", nargs="?", const="all", metavar="UNIT", help=release)
    json_too(add("check", "all that a start would check; changes nothing", run_check, "required"))
    sweep = json_too(add("sweep", "the sweep by hand: find, judge, reap, prove", run_sweep, "required"))
    sweep.add_argument("--dry-run", action="store_true", help="show exactly what would be done; signal nobody")
    serve = add("serve", "the resident daemon (the unit's main process; also in the foreground)", run_serve, "required")
    serve.add_argument("--self-test", action="store_true", help=argparse.SUPPRESS)
    hooks = add("hook", "the unit's own hooks; systemd calls them", run_hook)
    hooks.add_argument("hook", choices=HOOKS, help="which hook")
    hooks.add_argument("unit", metavar="UNIT", help="a managed unit, such as sglang-kimi")
    add("start", "systemctl start that shows how far it is, until the unit is ready or why not", run_start, "required")
    status = json_too(add("status", "state, phase, progress, last probes", run_status, "optional"))
    status.add_argument("--follow", action="store_true", help="go on until each unit is ready or has failed")
    add("top", "GPUs, holders and units on the whole screen, as they change", run_top, "optional")
    why = json_too(add("why", "why the last run ended, what was seen, what to do", run_why, "required"))
    why.add_argument("--run", dest="run_id", default="", metavar="ID", help="another run: its id, or the beginning of it")
    json_too(add("runs", "the runs, how long their phases were, how they ended", run_runs, "required"))
    _timeline_options(json_too(add("timeline", "the start of a run as a picture", run_timeline, "required")))
    install = add("install", "install the unit, its config example, catalog, user and folders", run_install, "required")
    install.add_argument("--root", default="/", metavar="DIR", help="install into an image below DIR")
    install.add_argument("--enable", action="store_true", help="start it at boot, too")
    uninstall = add("uninstall", "take away what install wrote, and nothing else", run_uninstall, "required")
    uninstall.add_argument("--root", default="/", metavar="DIR", help="take it out of an image below DIR")
    _config_commands(add("config", "write a commented config, or show the one that holds", run_config))
    demo = add("demo", "the whole story on a machine without a GPU (needs a source checkout)", run_demo)
    demo.add_argument("--keep", action="store_true", help="leave the test machine up and say how to enter it")
    return top


def _timeline_options(timeline: argparse.ArgumentParser) -> None:
    timeline.add_argument("--run", dest="run_id", default="", metavar="ID", help="another run: its id, or the beginning of it")
    timeline.add_argument("--svg", default="", metavar="FILE", help="write it as SVG (-: to standard output)")
    timeline.add_argument("--png", default="", metavar="FILE", help="write it as PNG; needs the package resvg-py")


def _config_commands(config: argparse.ArgumentParser) -> None:
    from gpu_lifecycle.rules.command_texts import ENGINE_NAMES, MORE

    actions = config.add_subparsers(dest="action", required=True, metavar="COMMAND")
    text = "a commented config to begin with, on standard output"
    init = actions.add_parser("init", help=text, description=text, epilog=MORE["config init"])
    init.add_argument("unit", metavar="UNIT", nargs="?", help="the unit that it is for")
    init.add_argument("--engine", choices=ENGINE_NAMES, default="sglang", help="the kind of server")
    init.add_argument("--output", metavar="FILE", help="write it there, if there is no such file yet")
    text = "the config that holds for a unit, and where each value comes from"
    show = actions.add_parser("show", help=text, description=text, epilog=MORE["config show"])
    show.add_argument("unit", metavar="UNIT", help="a managed unit, such as sglang-kimi")
    show.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(words: list[str]) -> int:
    """As systemd calls a hook, its words need no parser, whose making is a tenth of a hook's start; all else does."""
    if len(words) == 3 and words[0] == "hook" and words[1] in HOOKS and not words[2].startswith("-"):
        return hook(words[1], words[2], Layout())
    arguments = parser().parse_args(words)
    return int(arguments.run(arguments, Layout()))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status. The one place where an error becomes a line for a person."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return run(words)
    except LifecycleError as error:
        print(f"gpu-lifecycle: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone (| head): no traceback, and no second one at exit
        return Exit.DEFECT
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as a shell reports it
