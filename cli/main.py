"""`farm`: one click group whose commands are imported when they are called, so that help answers at once."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from farm.errors import EXIT_INCOMPLETE, EXIT_INFRASTRUCTURE, FarmError

__all__ = ["main"]

#: Name, module and one line; in the order of a first day with the farm.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "submit": ("cli.submit", "Compare a candidate with a baseline and decide."),
    "report": ("cli.report", "Print a run's decisions again, or write its page."),
    "decide": ("cli.decide", "Judge stored evidence again, with its own limits or with others."),
    "export": ("cli.export", "Write a run's numbers as CSV, for asv, or for the PyTorch benchmark database."),
    "isolate": ("cli.isolate", "Say which package beside torch carries the change of a failing cell."),
    "bisect": ("cli.bisect", "Find the first nightly with which a cell fails, by wheels alone."),
    "plan": ("cli.plan", "Show what a submission would measure, without measuring."),
    "calibrate": ("cli.calibrate", "Measure how noisy this machine is and what it can resolve."),
    "status": ("cli.status", "List runs, queues and workers."),
    "watch": ("cli.watch", "Follow a run until it is complete."),
    "up": ("cli.up", "Run a coordinator: server and aggregator."),
    "worker": ("cli.worker", "Measure on this machine for a coordinator."),
    "doctor": ("cli.doctor", "Say what makes measurements on this machine noisy, and what could be better."),
    "rollback": ("cli.rollback", "Take an environment of yours back to a release, and prove it."),
    "wheelhouse": ("cli.wheelhouse", "List, check, watch, prune and pull the wheels that are kept here."),
    "workload": ("cli.workload", "List and show workloads."),
    "schema": ("cli.schema", "Print the JSON Schema of what is kept and exchanged."),
}

EPILOG = """\b
Examples:
  farm submit --candidate 2.13                    decide on this machine
  farm submit --candidate 2.13 --suite standard   with production shapes
  farm report --format html -o page.html          the last run as a page

Exit codes: 0 complete, 1 --require falls short, 2 usage, 3 incomplete, 4 infrastructure failed.
"""


class LazyGroup(click.Group):
    """A group that imports a command's module when it is called; its own help needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            raise click.UsageError(f"No such command '{name}'; there are {', '.join(COMMANDS)}.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"farm {version('pytorch-farm')}")
        ctx.exit()


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Show the version.")
def farm() -> None:
    """Should your workloads move to this PyTorch release? Measured on your machines, decided by your limits."""


def main() -> None:
    """Run the command line: every failure is one line on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # A terminal that is closed interrupts as Ctrl-C does; under nohup it does not.
        signal.signal(signal.SIGHUP, _terminated)
    try:
        code = farm.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except FarmError as error:
        _say(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("farm: interrupted", err=True)
        sys.exit(EXIT_INCOMPLETE)
    except BrokenPipeError:
        # The reader of our output is gone: nothing is left to say, and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_INFRASTRUCTURE)
    except Exception as error:
        click.echo(f"farm: unexpected {type(error).__name__}: {error}; details in {_log(error)}", err=True)
        sys.exit(EXIT_INFRASTRUCTURE)
    sys.exit(code if isinstance(code, int) else 0)


def _terminated(*_: Any) -> None:
    raise KeyboardInterrupt("terminated")


def _say(error: FarmError) -> None:
    first, *rest = str(error).splitlines() or [type(error).__name__]
    click.echo(f"farm: {first}", err=True)
    words = getattr(error, "last_words", "")
    for line in [*rest, *words.splitlines()]:
        click.echo(f"  {line}", err=True)


def _log(error: Exception) -> Path:
    """Keep the traceback of an unexpected failure where a report of it can find it."""
    import tempfile
    import traceback

    from farm.settings import Home

    text = "".join(traceback.format_exception(error))
    for folder in (Home.default().logs, Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"unexpected-{os.getpid()}.log"
            path.write_text(text)
        except OSError:
            continue
        return path
    return Path(os.devnull)


if __name__ == "__main__":
    main()
