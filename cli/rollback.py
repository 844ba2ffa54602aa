"""`farm rollback`: an environment of yours, taken back to a release: planned, shown, done, proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from tabulate import tabulate

from farm.errors import EXIT_COMPLETE, EXIT_INFRASTRUCTURE, Incomplete, UsageError
from farm.model import RollbackJournal, RollbackPlan, RollbackProof
from farm.settings import Home

__all__ = ["command"]

#: Findings of one kind that are shown; --json has all.
SHOWN = 8

DONE = {
    "rolled back": "rolled back",
    "already there": "nothing had to move: that is what is installed",
    "went on": "the interrupted rollback was finished",
    "undone": "undone: what was taken out is back",
}


@click.command(
    "rollback",
    epilog="\b\nExamples:\n  farm rollback --env .venv                     what would be done; changes nothing\n"
    "  farm rollback --env .venv --yes               to the baseline of the run that compared what is installed\n"
    "  farm rollback --env .venv --to 2.12.1 --companions move --yes\n"
    "  farm rollback --env .venv --verify            after a later install: is it still that torch?\n"
    "  farm rollback --env .venv --undo --yes        what was taken out comes back",
)
@click.option("--env", "path", required=True, type=click.Path(path_type=Path), help="The virtual environment's folder.")
@click.option("--to", metavar="RELEASE", help="Where it goes back to; by default the baseline of the newest run here.")
@click.option("--yes", is_flag=True, help="Do it; without this the plan is shown and nothing is changed.")
@click.option(
    "--companions",
    type=click.Choice(["ask", "move", "leave"]),
    default="ask",
    show_default=True,
    help="What to do with packages that were made for the torch that goes, such as torchvision.",
)
@click.option("--force", is_flag=True, help="Although processes run from the environment.")
@click.option("--keep", "keep_old", is_flag=True, help="Keep what is taken out, so that --undo works after the proof.")
@click.option("--verify", is_flag=True, help="Only hold what is installed against what was put there; changes nothing.")
@click.option("--undo", "undoing", is_flag=True, help="Put back what the last rollback took out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    path: Path,
    to: str | None,
    yes: bool,
    companions: str,
    force: bool,
    keep_old: bool,
    verify: bool,
    undoing: bool,
    as_json: bool,
) -> int:
    """Take a virtual environment of yours back to a release of torch: torch's family moves, everything else stays.

    A kill at any step leaves it as it was, or the same command finishes it. Exits with 4 where what was done or
    verified could not be proven.
    """
    if sum((verify, undoing)) > 1 or (verify and yes):
        raise UsageError("--verify looks and changes nothing; name it alone")
    if undoing and to is not None:
        raise UsageError("--undo goes back to what was there before; it takes no --to")
    from workers.user_environment import inspect

    environment = inspect(path)
    home = Home.default()
    if verify:
        return _verify(environment, to, home, as_json)
    if undoing and yes:
        from workers.rollback import undo

        journal, proof = undo(environment, _say)
        return _proven("undone", journal, proof, as_json, path)
    from workers.swap import Keeping

    journal_there = Keeping(environment).journal
    interrupted = journal_there is not None and journal_there.phase != "proven"
    if not yes and (undoing or interrupted):
        return _standing(Keeping(environment), journal_there, as_json, path, undoing=undoing)
    from workers.rollback_plan import make_plan
    from workers.rollback_target import find_wanted

    if not yes:
        wanted = find_wanted(environment, to, home, journal_there)
        _say(f"looking at what is there, for the way to torch {wanted.identity.identity}")
        plan = make_plan(environment, wanted, home, companions)  # type: ignore[arg-type]
        click.echo(plan.model_dump_json(indent=2) if as_json else _plan(plan, path, to, companions))
        return EXIT_COMPLETE
    from workers.rollback import roll_back

    try:
        done, journal, proof = roll_back(
            environment,
            lambda there, before: find_wanted(there, to, home, before),
            home,
            companions,  # type: ignore[arg-type]
            _say,
            to=to,
            force=force,
            keep_old=keep_old,
        )
    except KeyboardInterrupt:
        left = Keeping(environment).journal
        begun = left is not None and left.phase != "proven"
        words = "finish it: the same again, or go back: --undo --yes" if begun else "nothing was changed"
        raise Incomplete(f"interrupted; {words}") from None
    return _proven(done, journal, proof, as_json, path)


def _say(words: str) -> None:
    click.echo(f"farm: {words}", err=True)


def _verify(environment: Any, to: str | None, home: Home, as_json: bool) -> int:
    from workers.rollback_proof import expected_of, prove
    from workers.rollback_target import find_wanted
    from workers.swap import Keeping

    journal = Keeping(environment).journal
    if journal is not None and journal.phase != "proven":
        raise UsageError(f"a rollback of '{environment.root}' is not finished; finish it first: the same with --yes")
    if to is not None or journal is None:
        if to is None:
            raise UsageError(
                f"the farm rolled nothing back in '{environment.root}', and does not know what should be there: name "
                "it, --verify --to 2.12.1"
            )
        journal = expected_of(environment, find_wanted(environment, to, home), home)
    proof = prove(environment, journal, _say, later=True)
    if as_json:
        click.echo(json.dumps({"journal": _dump(journal), "proof": _dump(proof)}, indent=2))
    else:
        head = f"{environment.root}: wanted is torch {journal.to.identity}, {journal.source}"
        click.echo("\n".join([head, "", *_proof(proof)]))
    return EXIT_INFRASTRUCTURE if proof.wrong else EXIT_COMPLETE


def _standing(keeping: Any, journal: RollbackJournal | None, as_json: bool, path: Path, *, undoing: bool) -> int:
    """Tell where an interrupted rollback stands, or what an undo would put back."""
    if journal is None or not keeping.can_undo(journal):
        raise UsageError(f"there is nothing to undo in '{path}'")
    if as_json:
        click.echo(json.dumps({"journal": _dump(journal)}, indent=2))
        return EXIT_COMPLETE
    before = f"torch {journal.before.identity}" if journal.before else "what was there"
    if journal.phase == "proven":
        click.echo(
            f"{path} was taken to torch {journal.to.identity} on {journal.created}; --undo --yes puts {before} back."
        )
    else:
        back = journal.phase in ("giving back", "restoring")
        words = "an undo" if back else f"a rollback from {before} to torch {journal.to.identity}"
        click.echo(f"{path}: {words} of {journal.created} was interrupted while {journal.phase}.")
    click.echo(_moves_of(journal, back=undoing))
    click.echo("Nothing was changed.")
    if journal.phase != "proven":
        click.echo(f"Finish it: farm rollback --env {path} --yes")
    click.echo(f"Undo it:   farm rollback --env {path} --undo --yes")
    return EXIT_COMPLETE


def _proven(done: str, journal: RollbackJournal, proof: RollbackProof, as_json: bool, path: Path) -> int:
    if as_json:
        click.echo(json.dumps({"done": done, "journal": _dump(journal), "proof": _dump(proof)}, indent=2))
    else:
        head = f"{path}: {DONE[done]}"
        if done != "undone":
            head += f" (torch {journal.to.identity}, {journal.source})"
        moves = [_moves_of(journal, back=done == "undone")] if journal.moves else []
        lines = [head, *moves, "", *_proof(proof)]
        if proof.wrong and done in ("rolled back", "went on"):
            lines += ["", f"What was taken out is kept. Back to it: farm rollback --env {path} --undo --yes"]
            lines += [f"Once more from the wheels: farm rollback --env {path} --yes"]
        click.echo("\n".join(lines))
    return EXIT_INFRASTRUCTURE if proof.wrong else EXIT_COMPLETE


def _moves_of(journal: RollbackJournal, *, back: bool = False) -> str:
    lines = []
    for move in journal.moves:
        ends = (move.before or "none", move.after or "none")
        lines.append(f"  {move.name} {' -> '.join(reversed(ends) if back else ends)}")
    return "\n".join(lines)


def _proof(proof: RollbackProof) -> list[str]:
    lines = [f"proven: {words}" for words in proof.checked] if not proof.wrong else []
    if proof.torch_says:
        built = proof.torch_says
        runtime = f"CUDA {built['cuda']}" if built["cuda"] else f"HIP {built['hip']}" if built["hip"] else "no device"
        lines.append(f"torch says: {built['version']}, built for {runtime}")
    lines += [f"not proven: {words}" for words in proof.unproven]
    lines += [f"WRONG: {words}" for words in proof.wrong]
    lines += [f"since then: {words}" for words in proof.blamed]
    verdict = "not what it should be" if proof.wrong else "as it should be"
    return [*lines, f"{verdict}, {proof.wall_ns / 1e9:.1f} s of looking"]


def _plan(plan: RollbackPlan, path: Path, to: str | None, companions: str) -> str:
    there = plan.installed.identity if plan.installed else "none"
    if plan.installed and plan.installed.installer:
        there += f", installed by {plan.installed.installer}"
    rehearsed = f", rehearsed there in {plan.rehearsed_s:.1f} s" if plan.rehearsed_s is not None else ""
    lines = [
        f"environment:  {plan.environment} (Python {plan.python}, {plan.platform})",
        f"installed:    torch {there}",
        f"goes back to: torch {plan.to.identity} ({plan.source}{rehearsed})",
        "",
    ]
    if not plan.moves:
        lines += ["Nothing has to move: that is what is installed, whole.", ""]
    else:
        lines += [tabulate(_rows(plan), headers=["package", "from", "to", "why", "wheel"]), ""]
    lines += [f"Other packages, which stay as they are: {plan.untouched}."]
    lines += _warnings(plan)
    lacking = len(plan.lacking)
    known = f"{plan.needed_bytes / 1e9:.2f} GB unpacked" + (" without what is not here yet" if lacking else "")
    lines += [f"Space: {known}, {plan.free_bytes / 1e9:.1f} GB free."] if plan.moves else []
    lines += [
        f"Network: needed, for what is to be fetched ({lacking}); that is done before anything is touched."
        if lacking
        else "Network: not needed."
    ]
    again = f"farm rollback --env {path}" + (f" --to {to}" if to else "")
    choice = f" --companions {companions}" if companions != "ask" else ""
    if plan.breaking and not choice:
        choice = " --companions move"
    force = " --force" if plan.in_use else ""
    return "\n".join([*lines, "", f"Nothing was changed. To do it: {again}{choice}{force} --yes"])


def _rows(plan: RollbackPlan) -> list[list[str]]:
    from workers.rollback_plan import origin

    rows = []
    for move in plan.moves:
        if move.wheel is None:
            wheel = ""
        elif move.held:
            wheel = "in the wheelhouse"
        else:
            wheel = f"to be fetched from {origin(move.wheel)}"
        rows.append([move.name, move.before or "none", move.after or "none", move.why, wheel])
    return rows


def _warnings(plan: RollbackPlan) -> list[str]:
    lines = []
    for one in plan.dependents:
        if one.breaks:
            lines.append(
                f"would break: {one.name} {one.version} needs {one.needs} (--companions move takes it along, "
                "--companions leave leaves it broken)"
            )
        else:
            lines.append(f"may break: {one.name} {one.version} was compiled against a torch; try it afterwards")
    lines += [f"note: {note}" for note in plan.notes]
    if plan.strays:
        more = f" and {len(plan.strays) - SHOWN} more" if len(plan.strays) > SHOWN else ""
        lines.append(
            f"note: no package owns {', '.join(plan.strays[:SHOWN])}{more}; kept aside in .farm-rollback/strays"
        )
    lines += [f"in use: process {process}" for process in plan.in_use]
    return lines


def _dump(record: RollbackJournal | RollbackProof) -> Any:
    return record.model_dump(mode="json")
