"""What `dsv select --dry-run` shows: the candidates, and how long they may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv_plugins.cli.plugins import describe_space
from dsv_plugins.cli.terminal import Terminal, literal, progress_console

if TYPE_CHECKING:
    from dsv_plugins.study.study import Study

__all__ = ["show_plan"]


def show_plan(study: Study, *, as_json: bool) -> None:
    """Print the plan of a study, with an estimate from the first candidates; nothing is kept."""
    from dsv_plugins.plugins.registry import build_registry
    from dsv_plugins.study.check import check_detectors, make_executor
    from dsv_plugins.study.display import Display
    from dsv_plugins.study.estimate import estimate
    from dsv_plugins.study.plan import plan_study

    registry = build_registry(study.plugins)
    check_detectors(study, registry)
    plan = plan_study(study, registry)
    candidates = [] if plan.search_record.proposes else plan.candidates()
    count = plan.search.trials or len(candidates)
    workers = make_executor(study, registry).parallelism
    shared_updates = sum(map(plan.shared_updates, plan.detectors))
    with Display(progress_console(as_json=as_json)) as display:
        probe = estimate(plan, display)
    total = probe.total(count, workers)
    terminal = Terminal()
    if as_json:
        content = {
            "run": str(study.folder()),
            "candidates": [{"augmentation": c.augmentation, "params": dict(c.params)} for c in candidates],
            "trials": count,
            "updates": plan.budget,
            "shared_updates": shared_updates,
            "workers": workers,
            "seconds_per_candidate": probe.candidate,
            "seconds": total,
        }
        terminal.print_json_object(content)
        return

    def say(line: str) -> None:
        terminal.print(literal(line), soft_wrap=True)

    if plan.search_record.proposes:
        for name, space in plan.spaces().items():
            say(f"{name}: {describe_space(space)}")
    for candidate in candidates:
        say(str(candidate))
    shared = f", after {shared_updates} that they share," if shared_updates else ""
    budget = f" of {plan.budget} updates{shared}" if plan.budget else ""
    say(f"{count} candidates{budget} for {', '.join(study.detectors)}, {workers} at once")
    most = "at most " if plan.search_record.judges else ""
    probed = min(count, workers)
    source = "the first one" if probed == 1 else f"the first {probed}"
    say(f"{most}about {probe.candidate:.0f} s for each, {total / 60:.1f} min in all (from {source}, not kept)")
    say(f"run folder: {study.folder()}")
