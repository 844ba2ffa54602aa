"""The first bad nightly, found on this machine: one release after the other beside the good end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from packaging.version import Version

from farm.again import Inquiry, Told, check_work, environments_here, longest_s
from farm.bisection import absent_days, answer_of, concluded, next_probe, standing, step_cell, steps_left, verdicts_of
from farm.errors import EnvironmentFailed, UsageError
from farm.installer import InstallerError
from farm.model import Bisection, BisectionStep, Cell, CellResult, Environment, Outcome, Side
from farm.nightlies import nightlies_between
from farm.releases import resolve_beside, served_version
from farm.settings import Home
from workers.again import measure
from workers.environments import build, discard
from workers.probe import probe_host
from workers.wheelhouse import keep_closure, kept_environments

__all__ = ["bisect"]

#: What keeps any release from being installed: nothing is said by it about this one.
OF_THIS_MACHINE = ("network", "credentials", "no space", "permission", "timeout")

#: Measurements of one step, where all but the last were invalid: as `farm submit` confirms, once more.
TRIES = 2

Purpose = Literal["bad end", "good end", "probe", "confirmation"]


def bisect(
    inquiry: Inquiry,
    good: str | None,
    bad: str | None,
    home: Home,
    told: Told,
    keep: Callable[[Bisection], None],
    begun: Bisection | None = None,
) -> Bisection:
    """Return the walk from ``good`` to ``bad``, by default the run's baseline and candidate, to its end.

    ``keep`` is called after each step with what is known by then; ``begun`` is what an earlier call kept of the same
    question. Environments are removed once the walk is over, but those of the run.

    Raises UsageError for ends that cannot be meant or have nothing between them, InfrastructureFailed where the index
    cannot be asked or the machine cannot install, and EnvironmentFailed where the good end cannot be installed.
    """
    return _Bisecting(inquiry, home, told, keep).run(begun, good, bad)


class _Bisecting:
    def __init__(self, inquiry: Inquiry, home: Home, told: Told, keep: Callable[[Bisection], None]) -> None:
        self.inquiry, self.home, self.told, self._keep = inquiry, home, told, keep
        self.target = probe_host().target
        self.sides = environments_here(inquiry.evidence, inquiry.cell, self.target)
        check_work(inquiry.evidence, inquiry.cell)

    def run(self, begun: Bisection | None, good: str | None, bad: str | None) -> Bisection:
        self.now = begun or self._begin(good, bad)
        self._tell_what_comes()
        self._end("bad end", self.now.bad)
        if self._answer("bad end") == "bad":
            self._end("good end", self.now.good)
        if self._answer("good end") == "good":
            while (probe := next_probe(self.now.nights, self.now.steps)) is not None:
                self._step("probe", probe, self.now.good)
            assert self.now.first_bad is not None
            assert self.now.last_good is not None
            if self._answer("confirmation") is None:
                self._step("confirmation", self.now.first_bad, self.now.last_good)
        self._keep_wheels()
        self.now = self.now.model_copy(update={"complete": True})
        self._discard_all_but(set())
        return self.now

    def _tell_what_comes(self) -> None:
        nights, absent = self.now.nights, self.now.absent
        without = f" (none for {', '.join(absent)})" if absent else ""
        self.told.said(
            f"{len(nights)} nightlies between {self.now.good} and {self.now.bad}{without}; about "
            f"{steps_left(nights, self.now.steps)} measurements to come, each of at most "
            f"{longest_s(self.inquiry, 2):.0f} s beside installing"
        )

    def _begin(self, good: str | None, bad: str | None) -> Bisection:
        """Return the walk before its first step: both ends and what lies between."""
        kept = kept_environments(self.home)
        baseline, candidate = self.sides[Side.BASELINE], self.sides[Side.CANDIDATE]
        ends = [
            served_version(text, baseline, option, kept) if text else Version(of_run.release.version)
            for text, option, of_run in ((good, "--good", baseline), (bad, "--bad", candidate))
        ]
        if ends[0] >= ends[1]:
            raise UsageError(f"the good end {ends[0]} is not older than the bad end {ends[1]}; nothing lies between")
        self.told.said(f"asking the index for the nightlies between {ends[0]} and {ends[1]}")
        nights = nightlies_between(ends[0], ends[1], baseline, kept)
        if not nights:
            raise UsageError(
                f"the configured index serves no nightly of torch between {ends[0]} and {ends[1]} for "
                f"{baseline.release.platform}; add a nightly index to pip's or uv's settings, or name other ends"
            )
        names = [version.public for version in ends]
        return Bisection(
            run_id=self.inquiry.evidence.run_id,
            cell_id=self.inquiry.cell.id,
            tier=self.inquiry.tier.name,
            gates=self.inquiry.gates,
            budget_s=self.inquiry.budget_s,
            complete=False,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            good=names[0],
            bad=names[1],
            nights=nights,
            absent=absent_days([names[0], *nights, names[1]]),
            environments={},
        )

    def _answer(self, purpose: Purpose) -> str | None:
        return next((step.answer for step in self.now.steps if step.purpose == purpose), None)

    def _end(self, purpose: Purpose, version: str) -> None:
        if self._answer(purpose) is None:
            self._step(purpose, version, self.now.good)

    def _step(self, purpose: Purpose, version: str, beside: str) -> None:
        said = {"probe": f"measuring {version}", "confirmation": f"measuring {version} beside {beside} to confirm"}
        self.told.said(said.get(purpose, f"measuring the {purpose}, {version}"))
        step = self._measured(purpose, version, beside)
        steps = (*self.now.steps, step)
        self.now = concluded(self.now.model_copy(update={"steps": steps}))
        self._keep(self.now)
        self.told.said(f"{version} {step.answer}: {step.reason}")
        if purpose == "probe":
            good, bad, _ = standing(self.now.nights, steps)
            versions = [self.now.good, *self.now.nights, self.now.bad]
            self._discard_all_but({self.now.good, self.now.bad, versions[good + 1], versions[bad + 1]})

    def _measured(self, purpose: Purpose, version: str, beside: str) -> BisectionStep:
        reference = self._installed(beside)
        try:
            probe = self._installed(version)
        except EnvironmentFailed as error:
            kind = error.kind if isinstance(error, InstallerError) else ""
            if kind in OF_THIS_MACHINE or isinstance(error.__cause__, OSError):
                raise
            return BisectionStep(
                purpose=purpose, version=version, beside=beside, answer="cannot be installed", reason=_why(error)
            )
        cell = step_cell(self.inquiry, reference.key, probe.key, self.target)
        result, disturbed = self._measure(cell)
        ended = result.arms[Side.BASELINE]
        if ended.outcome is Outcome.NO_ENVIRONMENT:
            raise EnvironmentFailed(f"{beside}, which all are measured beside: {ended.reason}", ended.log_tail)
        bad_end = next((step for step in self.now.steps if step.purpose == "bad end"), None)
        verdicts = verdicts_of(cell, result, self.inquiry.tier)
        answer, reason = answer_of(result, verdicts, bad_end, self.inquiry.tier)
        revision = str(result.arms[Side.CANDIDATE].facts.get("git") or "")
        return BisectionStep(
            purpose=purpose,
            version=version,
            beside=beside,
            answer=answer,
            reason=reason,
            revision=revision,
            cell=cell,
            result=result,
            disturbed=disturbed,
        )

    def _measure(self, cell: Cell) -> tuple[CellResult, tuple[CellResult, ...]]:
        """Return what measuring ``cell`` gave, and what was invalid before: no night is skipped for a disturbance."""
        found: list[CellResult] = []
        while len(found) < TRIES:
            number = sum(1 + len(step.disturbed) for step in self.now.steps) + len(found) + 1
            found.append(measure(self.inquiry, cell, self.now.environments, self.home, self.told, number))
            if found[-1].validity.valid:
                break
            self.told.said(f"invalid: {'; '.join(found[-1].validity.reasons)}")
        return found[-1], tuple(found[:-1])

    def _installed(self, version: str) -> Environment:
        """Return the environment of ``version``, built: what cannot be is no fault of its work."""
        environment = self._environment(version)
        build(environment, self.home, None)
        if environment.key not in self.now.environments:
            known = {**self.now.environments, environment.key: environment}
            self.now = self.now.model_copy(update={"environments": known})
        return environment

    def _environment(self, version: str) -> Environment:
        known = [*self.now.environments.values(), *self.sides.values()]
        for environment in known:
            if environment.release.version == version:
                return environment
        return resolve_beside(version, self.sides[Side.BASELINE], kept_environments(self.home))

    def _keep_wheels(self) -> None:
        """Keep the wheels of the two that were found: nightlies leave an index, and these are to be installed again."""
        for environment in self.now.environments.values():
            if environment.release.version in (self.now.last_good, self.now.first_bad):
                for wheel, why in keep_closure(environment, self.home, [Side.CANDIDATE]).items():
                    self.told.said(f"not kept in the wheelhouse: {wheel}: {why}")

    def _discard_all_but(self, versions: set[str]) -> None:
        of_run = self.inquiry.evidence.plan.environments
        for key, environment in self.now.environments.items():
            if key not in of_run and environment.release.version not in versions:
                discard(environment, self.home)


def _why(error: EnvironmentFailed) -> str:
    """Return in one line why a release cannot be installed: what the resolver concludes, or the last line said."""
    words = " ".join(error.last_words.split())
    cause = words.partition("cause: ")[2] or (error.last_words.strip().splitlines() or [""])[-1].strip()
    return f"{error}: {cause}" if cause and cause not in str(error) else str(error)
