"""`farm submit`: from a question to a decision."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from cli.asking import Asked, plan_for, release_options, understand
from cli.evidence import keep_evidence, keep_judgement, known_nightly
from cli.fleet import wait_for_hosts
from cli.following import follow
from cli.isolate import isolate_failing
from farm.broker.client import FarmClient
from farm.errors import (
    EXIT_COMPLETE,
    EXIT_FALLS_SHORT,
    EXIT_INCOMPLETE,
    EnvironmentFailed,
    FarmError,
    Incomplete,
    InfrastructureFailed,
    UsageError,
)
from farm.judge import falls_short, judge
from farm.local import LocalFarm
from farm.model import Backend, Decision, Evidence, Host, Isolation, Judgement, Plan, RunState
from farm.report.html import to_html
from farm.report.table import summary

__all__ = ["command", "exit_code", "publish"]

#: After a cancellation the worker ends its runners; then the run is over.
WIND_DOWN_S = 15.0


@click.command(
    "submit",
    epilog="\b\nExamples:\n  farm submit --candidate 2.13\n"
    "  farm submit --candidate 2.13.0 --baseline 2.12.1 --suite standard --backend cpu\n"
    "  farm submit --candidate nightly --require adopt      in CI: exit code 1 where it falls short\n"
    "  farm submit --candidate 2.13 --stages --detach       the whole window; then: farm watch RUN, farm report RUN",
)
@release_options
@click.option(
    "--require",
    type=click.Choice([Decision.ADOPT.value, Decision.ISOLATE.value]),
    help="Exit with 1 where a requested decision falls short of this.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="MINUTES", help="Give up after this.")
@click.option(
    "--isolate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    help="Then isolate failing cells on this machine, as many as fit into this time (farm isolate).",
)
@click.option("--detach", is_flag=True, help="Hand the run to the coordinator at FARM_URL, print its id and return.")
@click.option("--json", "as_json", is_flag=True, help="Print the judgement as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    candidate: str,
    baseline: str | None,
    suite: str | None,
    backends: tuple[Backend, ...],
    workloads: tuple[str, ...],
    matrix_path: Path | None,
    stages: bool,
    require: str | None,
    timeout: float | None,
    isolate: float | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Measure a candidate release beside a baseline and decide: adopt, isolate, defer or rollback.

    With FARM_URL set the cells go to that fleet; otherwise to a server, a worker and an aggregator that start and
    end with this command. With --stages a fleet takes the matrix's window, one stage after the other: Ctrl-C, or a
    terminal that is closed, leaves such a run to go on.
    """
    asked = understand(candidate, baseline, suite, backends, workloads, matrix_path, stages=stages)
    if isolate is not None and asked.settings.url is not None:
        raise UsageError("--isolate measures on this machine, and FARM_URL names a fleet; later: farm isolate RUN")
    if detach:
        _hand_over(asked, as_json, waits=require is not None or timeout is not None)
        return
    if asked.settings.url is None:
        evidence = _on_this_machine(asked, timeout)
    else:
        evidence = _on_the_fleet(asked, asked.settings.url, timeout)
    judgement = judge(evidence)
    page = publish(asked, evidence, judgement)
    isolations: list[Isolation] = []
    if isolate is not None:
        isolations = isolate_failing(evidence, judgement, asked.home, isolate * 60)
        page.write_text(to_html(evidence, judgement, isolations), encoding="utf-8")
    if as_json:
        click.echo(judgement.model_dump_json(indent=2))
    else:
        click.echo(summary(evidence, judgement, isolations))
        click.echo(f"page: {page}")
    ctx.exit(exit_code(evidence, judgement, Decision(require) if require else None))


def exit_code(evidence: Evidence, judgement: Judgement, require: Decision | None) -> int:
    """Return 3 where something requested is missing, 1 where ``require`` is not met, else 0; and say why on stderr."""
    missing = [*evidence.unfinished.items()]
    missing += [
        (backend, evidence.plan.unserved_backends[backend])
        for backend in evidence.plan.requested_backends
        if backend in evidence.plan.unserved_backends
    ]
    if missing or evidence.state is not RunState.COMPLETE:
        for what, why in missing:
            click.echo(f"farm: incomplete: {what}: {why}", err=True)
        return EXIT_INCOMPLETE
    if require is not None:
        short = falls_short(judgement, require, evidence.plan.requested_backends)
        for row in short:
            click.echo(f"farm: {row.workload} on {row.backend} for {row.tier}: {row.decision}, {row.reason}", err=True)
        if short:
            return EXIT_FALLS_SHORT
    return EXIT_COMPLETE


def publish(asked: Asked, evidence: Evidence, judgement: Judgement) -> Path:
    """Keep the evidence and its page in the home; return the page."""
    folder = keep_evidence(asked.home, evidence)
    keep_judgement(folder, judgement)
    page = folder / "report.html"
    page.write_text(to_html(evidence, judgement), encoding="utf-8")
    return page


def _on_this_machine(asked: Asked, timeout: float | None) -> Evidence:
    from workers.probe import probe_host

    # Before anything is started: most mistakes are in the question.
    plan = _make_plan(asked, [probe_host()])
    with LocalFarm(asked.home) as farm:
        try:
            return _run(asked, FarmClient(farm.url), plan, farm.check, timeout)
        except InfrastructureFailed:
            # A part that has died explains more than the connection that it took with it.
            farm.check(patience_s=1.0)
            raise


def _on_the_fleet(asked: Asked, url: str, timeout: float | None) -> Evidence:
    client = FarmClient(url)
    return _run(asked, client, _make_plan(asked, wait_for_hosts(client)), lambda: None, timeout)


def _hand_over(asked: Asked, as_json: bool, *, waits: bool) -> None:
    """Submit and say how to come back. Raises UsageError where there is nobody to hand the run to."""
    if asked.settings.url is None:
        raise UsageError("--detach needs a coordinator that goes on without this command: set FARM_URL, see farm up")
    if waits:
        raise UsageError("--detach returns before anything is decided; leave out --require and --timeout")
    client = FarmClient(asked.settings.url)
    plan = _make_plan(asked, wait_for_hosts(client))
    run_id = client.submit(plan)
    if as_json:
        click.echo(json.dumps({"run_id": run_id, "plan_digest": plan.plan_digest}))
        return
    click.echo(run_id)
    click.echo(f"{len(plan.cells)} cells, plan {plan.plan_digest[:16]}; {_coming_back(run_id)}", err=True)


def _coming_back(run_id: str) -> str:
    return f"follow it: farm watch {run_id}; what is over: farm report {run_id}; end it: farm watch {run_id} --cancel"


def _make_plan(asked: Asked, hosts: Sequence[Host]) -> Plan:
    click.echo("resolving releases ...", err=True)
    plan = plan_for(asked, hosts)
    if not plan.cells:
        asked_for = {b: why for b, why in plan.unserved_backends.items() if b in plan.requested_backends}
        reasons = "; ".join(f"{backend}: {why}" for backend, why in (asked_for or plan.unserved_backends).items())
        raise Incomplete(f"nothing can be measured: {reasons}; see what there is: farm status")
    for note in plan.resolution_notes:
        click.echo(f"  {note}", err=True)
    same = known_nightly(asked.home, plan)
    if same is not None:
        click.echo(f"farm: {same}; measured again all the same", err=True)
    for refused in plan.refused:
        click.echo(f"  {refused.side}: {refused.reason}", err=True)
    if plan.refused and not plan.environments:
        raise EnvironmentFailed("neither release can be installed", plan.refused[0].last_words)
    return plan


def _run(asked: Asked, client: FarmClient, plan: Plan, check: Callable[[], None], timeout: float | None) -> Evidence:
    run_id = client.submit(plan)
    click.echo(f"run {run_id}: {len(plan.cells)} cells, plan {plan.plan_digest[:16]}", err=True)
    try:
        state = follow(client, run_id, check, timeout * 60 if timeout else None)
    except InfrastructureFailed as error:
        if asked.settings.url is None:
            raise
        waits = f"run {run_id} goes on when the coordinator is back: farm watch {run_id}"
        raise InfrastructureFailed(f"{error}; {waits}") from error
    except KeyboardInterrupt as interrupt:
        if plan.stages and asked.settings.url is not None:
            # Two weeks are longer than any terminal stays open.
            raise Incomplete(f"run {run_id} goes on without this command; {_coming_back(run_id)}") from interrupt
        click.echo("\ncancelling; what was measured is kept ...", err=True)
        try:
            _cancel(client, run_id, "interrupted")
            keep_evidence(asked.home, client.evidence(run_id))
        except FarmError as error:
            raise Incomplete(f"interrupted; run {run_id} could not be cancelled: {error}") from interrupt
        raise Incomplete(f"interrupted; what was measured: farm report {run_id}") from interrupt
    if state is None:
        click.echo(f"farm: run {run_id} took longer than {timeout} min; what was measured is kept", err=True)
        _cancel(client, run_id, f"not done within {timeout} min")
    return client.evidence(run_id)


def _cancel(client: FarmClient, run_id: str, reason: str) -> None:
    client.cancel(run_id, reason)
    deadline = time.monotonic() + WIND_DOWN_S
    while time.monotonic() < deadline and client.state(run_id) is RunState.RUNNING:
        time.sleep(0.2)
