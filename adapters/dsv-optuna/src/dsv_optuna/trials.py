"""The trials of Optuna: which candidate is next, and how it did."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.trial import BaseTrial, FrozenTrial, Trial, TrialState

from dsv_plugins import Candidate, Evaluation, InputError, Range, SearchProblem, space_to_json
from dsv_plugins.errors import describe_error

if TYPE_CHECKING:
    from dsv_optuna import OptunaSearch

__all__ = ["Trials"]

RUN, CANDIDATE, REASON = "run", "candidate", "reason"
"""The attributes of a trial: its run folder, its candidate, and why it failed if it did."""


class Trials:
    """One search. Without a storage it is repeated from its seed when the study resumes, and ends the same.

    Args:
        settings: The search plugin's settings.
        problem: What is searched.
    """

    def __init__(self, settings: OptunaSearch, problem: SearchProblem) -> None:
        self._settings = settings
        self._problem = problem
        self._here = f"{socket.gethostname()}:{problem.run}"
        with _quiet_optuna():
            self._study = self._open()

    def run(self) -> Mapping[str, Evaluation]:
        """The evaluations of all trials of this run folder that got the whole budget."""
        with _quiet_optuna():
            return self._run()

    def _run(self) -> dict[str, Evaluation]:
        evaluations = self._resume()
        while (room := self._room()) > 0:
            trials = [self._study.ask() for _ in range(min(self._settings.batch, room))]
            evaluations |= self._train_through_rungs({trial: self._candidate(trial) for trial in trials})
        self._note_better_elsewhere()
        return evaluations

    def _open(self) -> optuna.Study:
        problem, settings = self._problem, self._settings
        # Machines that share a search must not draw the same; nor must one that resumes repeat what it drew.
        seed = problem.seed if settings.storage is None else None
        try:
            return optuna.create_study(
                storage=settings.storage,
                study_name=settings.name or _name(problem),
                load_if_exists=True,
                sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
                pruner=_pruner(settings.pruner, problem),
            )
        except Exception as error:  # of the storage's driver, whichever that is
            raise InputError(
                f"the Optuna storage {settings.storage!r} cannot be used: {describe_error(error)}"
            ) from error

    def _room(self) -> int:
        """How many trials are left to start, on all machines; one that a kill left behind does not count."""
        begun = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
        trials = self._study.get_trials(deepcopy=False)
        return self._settings.trials - sum(trial.state in begun or REASON in trial.user_attrs for trial in trials)

    def _resume(self) -> dict[str, Evaluation]:
        """The finished trials of an earlier process for this run folder; those it left unfinished are tried again."""
        own = [trial for trial in self._study.get_trials() if trial.user_attrs.get(RUN) == self._here]
        for trial in own:
            if trial.state == TrialState.RUNNING:
                self._study.tell(trial.number, state=TrialState.FAIL)
                self._study.enqueue_trial(trial.params)
        pruned = [trial for trial in own if trial.state == TrialState.PRUNED]
        for updates in sorted({trial.last_step or 0 for trial in pruned}):
            self._stored([trial for trial in pruned if trial.last_step == updates], updates)
        return self._stored([trial for trial in own if trial.state == TrialState.COMPLETE], self._problem.steps()[-1])

    def _stored(self, trials: Sequence[FrozenTrial], updates: int | None) -> dict[str, Evaluation]:
        return (
            dict(self._problem.evaluate([self._candidate(trial) for trial in trials], updates, None)) if trials else {}
        )

    def _candidate(self, trial: BaseTrial) -> Candidate:
        """The candidate that a trial stands for; with several augmentations, it includes the choice of one."""
        spaces = self._problem.spaces
        name = next(iter(spaces)) if len(spaces) == 1 else trial.suggest_categorical("augmentation", list(spaces))
        candidate = self._problem.propose(name, lambda key, values: _suggested(trial, f"{name}.{key}", values))
        if isinstance(trial, Trial):
            trial.set_user_attr(RUN, self._here)
            trial.set_user_attr(CANDIDATE, candidate.id)
        return candidate

    def _train_through_rungs(self, trials: Mapping[Trial, Candidate]) -> dict[str, Evaluation]:
        """Train trials from rung to rung, unless they fail or are pruned; returns the evaluations at the last rung."""
        problem, going, reached = self._problem, dict(trials), None
        *_, last = problem.steps()
        evaluations: Mapping[str, Evaluation] = {}
        for updates in problem.steps():
            evaluations = problem.evaluate(list(going.values()), updates, reached) if going else {}
            for trial, candidate in list(going.items()):
                state = self._report(trial, evaluations.get(candidate.id), updates, is_last=updates == last)
                if state != TrialState.RUNNING:
                    del going[trial]
            reached = updates
        return dict(evaluations)

    def _report(self, trial: Trial, evaluation: Evaluation | None, updates: int | None, *, is_last: bool) -> TrialState:
        """Report to Optuna how a trial did at a rung, and return its new state."""
        loss = math.nan if evaluation is None else float(self._problem.losses([evaluation])[0])
        state = TrialState.COMPLETE if is_last else TrialState.RUNNING
        if not math.isfinite(loss):
            trial.set_user_attr(REASON, "its training failed" if evaluation is None else f"its loss is {loss}")
            state = TrialState.FAIL
        elif not is_last:
            assert updates is not None
            trial.report(loss, updates)
            if trial.should_prune():
                state = TrialState.PRUNED
        if state != TrialState.RUNNING:
            self._study.tell(trial, loss if state == TrialState.COMPLETE else None, state)
        return state

    def _note_better_elsewhere(self) -> None:
        """Note if the best trial of a shared search is in another run folder."""
        complete = self._study.get_trials(states=(TrialState.COMPLETE,))
        if complete:
            best = self._study.best_trial
            where = best.user_attrs.get(RUN, self._here)
            if where != self._here:
                self._problem.note(
                    f"the best trial of the shared search, with a loss of {best.value:.4g}, is in {where}"
                )


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """A line for each trial is more than our users want to see."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _suggested(trial: BaseTrial, name: str, values: Sequence[object] | Range) -> object:
    if isinstance(values, Range) and values.integer:
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    if isinstance(values, Range):
        return trial.suggest_float(name, values.low, values.high, log=values.log)
    # As text, since a storage takes no lists.
    texts = {json.dumps(value): value for value in values}
    return texts[trial.suggest_categorical(name, list(texts))]


def _pruner(name: str, problem: SearchProblem) -> BasePruner:
    if name == "none":
        return NopPruner()
    if name == "median":
        return MedianPruner()
    first, factor = problem.steps()[0] or 1, max(2, round(problem.rungs.factor))
    return SuccessiveHalvingPruner(min_resource=first, reduction_factor=factor)


def _name(problem: SearchProblem) -> str:
    """The same for studies of the same images, detector and spaces."""
    first = {name: problem.propose(name, _first).id for name in problem.spaces}
    spaces = {name: space_to_json(space) for name, space in problem.spaces.items()}
    content = json.dumps([first, spaces, problem.steps()])
    return f"dsv-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _first(_: str, values: Sequence[object] | Range) -> object:
    return values.low if isinstance(values, Range) else values[0]
