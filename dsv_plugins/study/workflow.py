"""One run of a study: claim the folder, prepare the images, train what is missing, select, keep."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from dsv_plugins.calibration import (
    DEFAULT_FALSE_ALARMS,
    Calibration,
    Findings,
    findings,
    images_to_keep_out,
    lowest_rate,
)
from dsv_plugins.data.dataset import Dataset
from dsv_plugins.data.shift import shift_warning
from dsv_plugins.errors import PluginError, TrainingError, shown
from dsv_plugins.plugins.interfaces import Executor
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.plugin_errors import wrap_exits
from dsv_plugins.plugins.records import SearchPlugin, SelectorPlugin
from dsv_plugins.plugins.search import SearchProblem
from dsv_plugins.run.artifacts import read_image_index
from dsv_plugins.run.folder import RunFolder, finite_or_none
from dsv_plugins.run.journal import RESUMED, SELECTED, STARTED
from dsv_plugins.run.model import NO_CALIBRATION
from dsv_plugins.run.records import CandidateRecord, SelectionRecord, write_checksummed
from dsv_plugins.run.remote_copy import RemoteCopy
from dsv_plugins.run.run import Run, claim
from dsv_plugins.study.check import make_observers
from dsv_plugins.study.finished import remember
from dsv_plugins.study.judging import Verdict, judge_pool, losses_by
from dsv_plugins.study.keep import Kept, keep_model, kept_candidates
from dsv_plugins.study.observers import RunLog
from dsv_plugins.study.plan import Plan
from dsv_plugins.study.schedule import Schedule
from dsv_plugins.training.suspects import suspects_notes
from dsv_plugins.types import Evaluation

__all__ = ["run_study"]

MORE_HELD_OUT = 0.4
"""What is suggested if so few good images are there that none are kept out by default."""


def run_study(plan: Plan, executor: Executor, observer: Observer, *, command: str = "") -> Run:
    """Train what is not trained yet, and select.

    Args:
        plan: What to do.
        executor: What runs the trainings.
        observer: Notified of what happens, beside the study's observer plugins.
        command: The command line that asked for it, for the journal and the report.
    """
    settings, registry = plan.settings, plan.registry
    folder = RunFolder(settings.folder())
    remote_copy = None if settings.address is None else RemoteCopy(settings.address, folder)
    log = RunLog(folder, remote_copy, make_observers(settings, registry, observer))
    schedule = Schedule(plan, folder, executor, log)
    with folder.locked(), log.failure_notified():
        if remote_copy is not None:
            remote_copy.pull()
        was_there = claim(folder, settings.identity())
        unreadable = log.journal.unreadable_lines()
        log.record(RESUMED if was_there else STARTED, pid=os.getpid(), command=command)
        if unreadable:
            log.note(f"{folder.journal} has {unreadable} lines that cannot be read; they are skipped")
        dataset, bad = plan.prepare_images(folder.data, log.observers, log.note)
        warning = shift_warning(dataset.train, dataset.test, dataset.tiles.count if dataset.tiles else 1)
        left_out, resizing = (f"left out: {file}" for file in bad), str(dataset.loading or "")
        of_inputs = [*left_out, *filter(None, [resizing, warning]), *_scale_notes(plan), *_lacks(plan, dataset)]
        for note in of_inputs:
            log.note(note)
        evaluations = _search(plan, dataset, schedule, folder, log)
        passing = len(log.notes)  # those until here tell of this run only, but for those of its inputs
        verdicts = judge_pool(
            registry,
            settings.selectors,
            evaluations,
            seed=settings.seed,
            confidence=settings.confidence,
            note=log.note,
            params={name: settings.params_of_selector(name) for name in settings.selectors},
        )
        chosen = evaluations[verdicts[settings.selectors[0]].choice]
        kept = kept_candidates(plan, evaluations, verdicts[settings.selectors[0]], dataset.tiles)
        scores = kept.scores()
        for note in suspects_notes(scores, read_image_index(folder.data).files):
            log.note(note)
        found = None
        if settings.test is not None and "holdout" in scores:
            found = findings(Calibration(scores["holdout"]), scores["test"], seed=settings.seed)
        presumes = registry.get(SelectorPlugin, settings.selectors[0]).presumes_concentration
        reasons = [chosen.health.warning if chosen.health and presumes else None, found.warning if found else None]
        for reason in filter(None, reasons):
            log.note(reason)
        selection = _selection(
            schedule, evaluations, verdicts, kept, findings=found, warnings=list(filter(None, (warning, *reasons)))
        )
        write_checksummed(folder.selection, asdict(selection))
        keep_model(plan, folder, dataset, chosen.candidate, kept, schedule=schedule)
        log.record(SELECTED, candidate=chosen.candidate.id, selector=settings.selectors[0])
        run = Run(folder.path, settings.plugins)
        remember(
            settings, registry, run, plan.size_of(dataset), dataset.fingerprint, [*of_inputs, *log.notes[passing:]]
        )
        for name, choice in run.selected.items():
            log.notify(Observer.selected, name, choice.candidate, choice.loss)
        log.notify(Observer.study_ended, run)
        return run


def _selection(
    schedule: Schedule,
    evaluations: Sequence[Evaluation],
    verdicts: Mapping[str, Verdict],
    kept: Kept,
    *,
    findings: Findings | None,
    warnings: Sequence[str],
) -> SelectionRecord:
    """Collect what was selected, with the candidates that were not judged."""
    ids = [evaluation.candidate.id for evaluation in evaluations]
    entries = []
    for identifier, candidate in schedule.requested.items():
        place = ids.index(identifier) if identifier in ids else None
        entries.append(
            CandidateRecord(
                candidate=candidate,
                status="failed" if identifier in schedule.failures else "stopped" if place is None else "finished",
                reason=schedule.failures.get(identifier, ""),
                updates=schedule.trained_to.get(identifier),
                losses={}
                if place is None
                else {name: finite_or_none(verdict.losses[place]) for name, verdict in verdicts.items()},
                health=None if place is None else evaluations[place].health,
            )
        )
    return SelectionRecord(
        candidates=entries,
        choices={name: ids[verdict.choice] for name, verdict in verdicts.items()},
        confidence={
            name: dict(zip(ids, verdict.wins, strict=True))
            for name, verdict in verdicts.items()
            if verdict.wins is not None
        },
        shares={each.candidate.id: share for each, share in zip(kept.evaluations, kept.shares, strict=True)},
        updates_spent=schedule.updates_spent,
        findings=findings,
        warnings=warnings,
    )


def _scale_notes(plan: Plan) -> list[str]:
    """Say which selectors cannot compare the candidates, since their detectors differ."""
    selectors = plan.settings.selectors if plan.settings.compares_detectors else ()
    return [
        f"{name!r} depends on the scale of the embeddings, so that it cannot compare these detectors"
        for name in selectors
        if plan.registry.get(SelectorPlugin, name).depends_on_scale
    ]


def _lacks(plan: Plan, dataset: Dataset) -> Iterator[str]:
    """Say what the images cannot give, before the training."""
    if plan.settings.test is None:
        yield "there are no test images: held-out good images stand in for them in the report"
    rows = dataset.tiles.count if dataset.tiles else 1
    train, held_out = (0 if each is None else len(each) // rows for each in (dataset.train, dataset.holdout))
    if not held_out:
        more = images_to_keep_out(train, MORE_HELD_OUT)
        yield (
            f"no image can be called anomalous: {NO_CALIBRATION}, or run with --holdout {MORE_HELD_OUT:g}, which keeps "
            f"{more} of {train} out, enough for a false-alarm rate of {lowest_rate(more):.2g}"
        )
    elif (lowest := lowest_rate(held_out)) > DEFAULT_FALSE_ALARMS:
        yield (
            f"{held_out} held-out images can promise no false-alarm rate below {lowest:.2g}; "
            f"{DEFAULT_FALSE_ALARMS:g} needs {round(1 / DEFAULT_FALSE_ALARMS) - 1}: give more good images, or --holdout"
        )


def _search(plan: Plan, dataset: Dataset, schedule: Schedule, folder: RunFolder, log: RunLog) -> Sequence[Evaluation]:
    """Return the evaluations of all candidates that got the whole budget, in the order in which they were requested."""
    settings = plan.settings
    problem = SearchProblem(
        spaces=plan.spaces(),
        candidate=functools.partial(plan.candidate, context=plan.context(dataset)),
        evaluate=schedule.evaluate,
        losses=functools.partial(
            losses_by,
            plan.registry,
            settings.selectors[0],
            params=settings.params_of_selector(settings.selectors[0]),
        ),
        budget=plan.budget,
        rungs=settings.schedule,
        seed=settings.seed,
        run=folder.path,
        note=log.note,
        accepted=schedule.accepted,
    )
    candidates = [] if plan.search_record.proposes else problem.grid()
    log.notify(Observer.started, folder.path, candidates, planned=len(candidates) or plan.search.trials)
    label = plan.registry.label(SearchPlugin, settings.search)
    with wrap_exits(label):
        evaluations: object = plan.search.run(problem)
    if not isinstance(evaluations, Mapping):
        raise PluginError(f"{label} returned {shown(evaluations)}; return evaluations by candidate id")
    finished = [evaluations[candidate_id] for candidate_id in schedule.requested if candidate_id in evaluations]
    if finished:
        return finished
    if schedule.failures:
        first = next(iter(schedule.failures.values()))
        raise TrainingError(f"every candidate failed; the first: {first}") from schedule.first_error
    raise TrainingError(f"the search {settings.search!r} gave no candidate the whole budget")
