"""What a selector must do."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from dsv_plugins.errors import DSVError
from dsv_plugins.plugins.interfaces import ResamplingSelector, Selector
from dsv_plugins.plugins.records import SelectorPlugin
from dsv_plugins.testing._suite import Suite, demand
from dsv_plugins.transforms import global_randomness
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores

__all__ = ["Checks"]

CANDIDATES, TRAIN, TEST, HOLDOUT, WIDTH = 5, 30, 20, 10, 6
TOLERANCE = 1e-5


class Checks(Suite[Selector]):
    """The checks of a selector."""

    record: SelectorPlugin
    methods = ("losses",)

    def returns_one_float_for_each_candidate(self) -> None:
        """There are as many losses as candidates, and each is a float; NaN and infinity are permitted."""
        self._losses(_pool())

    def ranks_ordinary_candidates(self) -> None:
        """In a pool without oddities, one loss at least is finite."""
        losses = self._losses(_pool())
        demand(any(map(math.isfinite, losses)), f"returned {losses} for ordinary candidates; none is finite")

    def follows_the_order_of_candidates(self) -> None:
        """Permuting the candidates permutes the losses and changes none of them."""
        losses = self._losses(_pool())
        order = [3, 0, 4, 1, 2]
        permuted = self._losses([_pool()[index] for index in order])
        expected = [losses[index] for index in order]
        demand(_same(permuted, expected), f"returned {permuted} for permuted candidates, and {expected} was expected")

    def repeats_itself(self) -> None:
        """The same candidates have the same losses, for any state of the global random generators."""
        with global_randomness() as seed_all:
            repeated = []
            for seed in range(3):
                seed_all(seed)
                repeated.append(self._losses(_pool()))
        for losses in repeated:
            demand(_same(losses, repeated[0]), f"returned {repeated[0]} and then {losses} for the same candidates")

    def does_not_modify_its_input(self) -> None:
        """The evaluations, their order and their tensors are the same afterwards."""
        pool = _pool()
        given = list(pool)
        self._losses(given)
        demand([id(one) for one in given] == [id(one) for one in pool], "changes the list of candidates it is given")
        for evaluation, untouched in zip(pool, _pool(), strict=True):
            demand(evaluation.candidate == untouched.candidate, "changes the candidates it is given")
            same = all(map(torch.equal, _tensors(evaluation).values(), _tensors(untouched).values()))
            demand(same, "changes the tensors it is given; work on a copy")

    def judges_alone_if_it_says_so(self) -> None:
        """With `judges_alone`, a candidate has the same loss alone as in the pool."""
        if self.record.judges_alone:
            together, alone = self._losses(_pool()), [self._losses([one])[0] for one in _pool()]
            demand(_same(together, alone), f"says judges_alone, but returned {together} together and {alone} alone")

    def resamples_as_it_judges(self) -> None:
        """With `resampled_losses`, each resample of the test images has the losses that `losses` gives for it."""
        selector = self._build()
        if not isinstance(selector, ResamplingSelector):
            return
        test_rows = torch.randint(TEST, (3, TEST), generator=torch.Generator().manual_seed(0))
        resampled = selector.resampled_losses(_pool(), test_rows)
        demand(
            isinstance(resampled, Tensor) and resampled.shape == (3, CANDIDATES),
            f"returned {resampled!r:.60} as resampled losses, not a tensor of shape (resamples, candidates)",
        )
        for rows, losses in zip(test_rows, resampled.tolist(), strict=True):

            def resample(name: str, tensor: Tensor, rows: Tensor = rows) -> Tensor:
                return tensor[rows] if name.endswith("test") else tensor

            expected = self._losses([_changed(evaluation, resample) for evaluation in _pool()])
            demand(_same(losses, expected), f"returned {losses} among resampled losses, and {expected} by `losses`")

    def survives_one_candidate(self) -> None:
        """A single candidate gets a loss, or a DSVError that says why not."""
        self._losses_or_reason(_pool()[:1])

    def survives_constant_scores(self) -> None:
        """Detectors that give every image the same score get losses, or a DSVError that says why not."""
        pool = _pool()
        constant = [_changed(evaluation, _without_scores) for evaluation in pool]
        self._losses_or_reason([constant[0], *pool[1:]])
        self._losses_or_reason(constant)

    def survives_nan_in_one_candidate(self) -> None:
        """A candidate with NaN does not take the losses from the others, or a DSVError says why."""
        pool = _pool()
        losses = self._losses_or_reason([_changed(pool[0], _with_nan), *pool[1:]])
        if losses is not None:
            demand(any(map(math.isfinite, losses[1:])), f"returned {losses} although only the first candidate has NaN")

    def survives_no_holdout(self) -> None:
        """Without images kept out of training there are losses, or a DSVError that says why not.

        A study does not run a selector that says `needs_holdout` without such images, so that one may do as it likes.
        """
        if not self.record.needs_holdout:
            self._losses_or_reason([_changed(evaluation, _without_holdout) for evaluation in _pool()])

    def _losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """The losses of a new object; each must be a real number."""
        losses: object = self._build().losses(evaluations)
        if not isinstance(losses, Iterable):
            raise AssertionError(f"returned a {type(losses).__name__}, not a sequence of losses")
        losses = list(losses)
        demand(len(losses) == len(evaluations), f"returned {len(losses)} losses for {len(evaluations)} candidates")
        for loss in losses:
            is_real = isinstance(loss, numbers.Real)
            demand(is_real, f"returned {loss!r:.60} as a loss, a {type(loss).__name__}; use float")
        return [float(loss) for loss in losses]

    def _losses_or_reason(self, evaluations: Sequence[Evaluation]) -> list[float] | None:
        """The losses, or None if it raised an error that says why."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # here a selector has cause to warn
                return self._losses(evaluations)
        except DSVError as error:
            demand(bool(str(error).strip()), f"raised {type(error).__name__} without a word of why")
            return None


def _pool() -> list[Evaluation]:
    """Candidates whose augmentation comes ever closer to the anomalies in the test set; the same at every call."""
    return [_evaluation(index) for index in range(CANDIDATES)]


def _evaluation(index: int) -> Evaluation:
    generator = torch.Generator().manual_seed(index)

    def cloud(count: int, distance: float) -> Tensor:
        return torch.randn(count, WIDTH, generator=generator) + distance

    train, augmented, holdout = cloud(TRAIN, 0.0), cloud(TRAIN, 1.0 + index), cloud(HOLDOUT, 0.0)
    pseudo = cloud(HOLDOUT, 2.0)
    test = torch.cat([cloud(TEST // 2, 0.0), cloud(TEST - TEST // 2, 3.0)])

    def score(embeddings: Tensor) -> Tensor:
        return (embeddings - train.mean(dim=0)).square().sum(dim=1).sqrt()

    return Evaluation(
        Candidate("kit", {"strength": index}),
        Embeddings(train, augmented, test, holdout),
        Scores(score(train), score(test), score(holdout), score(augmented), score(pseudo)),
        Health(training_accuracy=0.9, concentration=0.4),
    )


def _tensors(evaluation: Evaluation) -> dict[str, Tensor]:
    """All tensors of an evaluation, by names such as scores.test."""
    parts: dict[str, Any] = {"embeddings": evaluation.embeddings, "scores": evaluation.scores}
    return {f"{part}.{each.name}": getattr(sets, each.name) for part, sets in parts.items() for each in fields(sets)}


def _changed(evaluation: Evaluation, change: Callable[[str, Tensor], Tensor | None]) -> Evaluation:
    """The evaluation with each tensor changed; `change` gets its name, too."""
    changed: dict[str, dict[str, Any]] = {"embeddings": {}, "scores": {}}
    for name, tensor in _tensors(evaluation).items():
        part, _, field = name.partition(".")
        changed[part][field] = change(name, tensor)
    return replace(evaluation, embeddings=Embeddings(**changed["embeddings"]), scores=Scores(**changed["scores"]))


def _without_scores(name: str, tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if name.startswith("scores") else tensor


def _with_nan(_: str, tensor: Tensor) -> Tensor:
    return torch.cat([torch.full_like(tensor[:1], math.nan), tensor[1:]])


def _without_holdout(name: str, tensor: Tensor) -> Tensor | None:
    return None if name.endswith(("holdout", "pseudo")) else tensor


def _same(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(
        math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))
        for one, other in zip(first, second, strict=True)
    )
