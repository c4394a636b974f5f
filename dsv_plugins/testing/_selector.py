"""What a selector must do."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from dsv_plugins.errors import DSVError
from dsv_plugins.plugins.interfaces import ResamplingSelector, Selector
from dsv_plugins.plugins.records import SelectorPlugin
from dsv_plugins.testing._suite import Subject, Suite, demand, has_all_methods, has_sound_record
from dsv_plugins.transforms import global_randomness
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores

__all__ = ["SUITE"]

CANDIDATES, TRAIN, TEST, HOLDOUT, WIDTH = 5, 30, 20, 10, 6
TOLERANCE = 1e-5

Sets = TypeVar("Sets", Embeddings, Scores)


class _Subject(Subject[Selector]):
    methods = ("losses",)

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """The losses of a new object; each must be a real number."""
        losses: object = self.build().losses(evaluations)
        if not isinstance(losses, Iterable):
            raise AssertionError(f"returned a {type(losses).__name__}, not a sequence of losses")
        losses = list(losses)
        demand(len(losses) == len(evaluations), f"returned {len(losses)} losses for {len(evaluations)} candidates")
        for loss in losses:
            demand(
                isinstance(loss, numbers.Real), f"returned {loss!r:.60} as a loss, a {type(loss).__name__}; use float"
            )
        return [float(loss) for loss in losses]

    def losses_or_reason(self, evaluations: Sequence[Evaluation]) -> list[float] | None:
        """The losses, or None if it raised an error that says why."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # here a selector has cause to warn
                return self.losses(evaluations)
        except DSVError as error:
            demand(bool(str(error).strip()), f"raised {type(error).__name__} without a word of why")
            return None


def returns_one_float_for_each_candidate(subject: _Subject) -> None:
    """There are as many losses as candidates, and each is a float; NaN and infinity are permitted."""
    subject.losses(_pool())


def ranks_ordinary_candidates(subject: _Subject) -> None:
    """In a pool without oddities, one loss at least is finite."""
    losses = subject.losses(_pool())
    demand(any(map(math.isfinite, losses)), f"returned {losses} for ordinary candidates; none is finite")


def follows_the_order_of_candidates(subject: _Subject) -> None:
    """Permuting the candidates permutes the losses and changes none of them."""
    losses = subject.losses(_pool())
    order = [3, 0, 4, 1, 2]
    permuted = subject.losses([_pool()[index] for index in order])
    expected = [losses[index] for index in order]
    demand(_same(permuted, expected), f"returned {permuted} for permuted candidates, and {expected} was expected")


def repeats_itself(subject: _Subject) -> None:
    """The same candidates have the same losses, for any state of the global random generators."""
    with global_randomness() as seed_all:
        repeated = []
        for seed in range(3):
            seed_all(seed)
            repeated.append(subject.losses(_pool()))
    for losses in repeated:
        demand(_same(losses, repeated[0]), f"returned {repeated[0]} and then {losses} for the same candidates")


def does_not_modify_its_input(subject: _Subject) -> None:
    """The evaluations, their order and their tensors are the same afterwards."""
    pool = _pool()
    given = list(pool)
    subject.losses(given)
    demand([id(one) for one in given] == [id(one) for one in pool], "changes the list of candidates it is given")
    for evaluation, untouched in zip(pool, _pool(), strict=True):
        demand(evaluation.candidate == untouched.candidate, "changes the candidates it is given")
        pairs = zip(_tensors(evaluation), _tensors(untouched), strict=True)
        demand(all(torch.equal(*pair) for pair in pairs), "changes the tensors it is given; work on a copy")


def judges_alone_if_it_says_so(subject: _Subject) -> None:
    """With `judges_alone`, a candidate has the same loss alone as in the pool."""
    assert isinstance(subject.record, SelectorPlugin)
    if subject.record.judges_alone:
        together, alone = subject.losses(_pool()), [subject.losses([one])[0] for one in _pool()]
        demand(_same(together, alone), f"says judges_alone, but returned {together} together and {alone} alone")


def resamples_as_it_judges(subject: _Subject) -> None:
    """With `resampled_losses`, each resample of the test images has the losses that `losses` gives for it."""
    selector = subject.build()
    if not isinstance(selector, ResamplingSelector):
        return
    test_rows = torch.randint(TEST, (3, TEST), generator=torch.Generator().manual_seed(0))
    resampled = selector.resampled_losses(_pool(), test_rows)
    demand(
        isinstance(resampled, Tensor) and resampled.shape == (3, CANDIDATES),
        f"returned {resampled!r:.60} as resampled losses, not a tensor of shape (resamples, candidates)",
    )
    for rows, losses in zip(test_rows, resampled.tolist(), strict=True):
        expected = subject.losses([_with_test_rows(evaluation, rows) for evaluation in _pool()])
        demand(_same(losses, expected), f"returned {losses} among resampled losses, and {expected} by `losses`")


def survives_one_candidate(subject: _Subject) -> None:
    """A single candidate gets a loss, or a DSVError that says why not."""
    subject.losses_or_reason(_pool()[:1])


def survives_constant_scores(subject: _Subject) -> None:
    """Detectors that give every image the same score get losses, or a DSVError that says why not."""
    pool = _pool()
    constant = [_with_constant_scores(evaluation) for evaluation in pool]
    subject.losses_or_reason([constant[0], *pool[1:]])
    subject.losses_or_reason(constant)


def survives_nan_in_one_candidate(subject: _Subject) -> None:
    """A candidate with NaN does not take the losses from the others, or a DSVError says why."""
    pool = _pool()
    losses = subject.losses_or_reason([_with_nan(pool[0]), *pool[1:]])
    if losses is not None:
        demand(any(map(math.isfinite, losses[1:])), f"returned {losses} although only the first candidate has NaN")


def survives_no_holdout(subject: _Subject) -> None:
    """Without images kept out of training there are losses, or a DSVError that says why not.

    A study does not run a selector that says `needs_holdout` without such images, so that one may do as it likes.
    """
    assert isinstance(subject.record, SelectorPlugin)
    if not subject.record.needs_holdout:
        subject.losses_or_reason([_without_holdout(evaluation) for evaluation in _pool()])


SUITE = Suite(
    _Subject,
    (
        has_sound_record,
        has_all_methods,
        returns_one_float_for_each_candidate,
        ranks_ordinary_candidates,
        follows_the_order_of_candidates,
        repeats_itself,
        does_not_modify_its_input,
        judges_alone_if_it_says_so,
        resamples_as_it_judges,
        survives_one_candidate,
        survives_constant_scores,
        survives_nan_in_one_candidate,
        survives_no_holdout,
    ),
)


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


def _with_constant_scores(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, scores=_changed(evaluation.scores, torch.zeros_like))


def _with_test_rows(evaluation: Evaluation, rows: Tensor) -> Evaluation:
    embeddings, scores = evaluation.embeddings, evaluation.scores
    return replace(
        evaluation,
        embeddings=replace(embeddings, test=embeddings.test[rows]),
        scores=replace(scores, test=scores.test[rows]),
    )


def _with_nan(evaluation: Evaluation) -> Evaluation:
    def spoilt(tensor: Tensor) -> Tensor:
        first = torch.arange(len(tensor)) == 0
        return tensor.masked_fill(first.view(-1, *[1] * (tensor.ndim - 1)), math.nan)

    embeddings, scores = _changed(evaluation.embeddings, spoilt), _changed(evaluation.scores, spoilt)
    return replace(evaluation, embeddings=embeddings, scores=scores)


def _without_holdout(evaluation: Evaluation) -> Evaluation:
    embeddings = replace(evaluation.embeddings, holdout=None)
    scores = replace(evaluation.scores, holdout=None, pseudo=None)
    return replace(evaluation, embeddings=embeddings, scores=scores)


def _changed(sets: Sets, change: Callable[[Tensor], Tensor]) -> Sets:
    return replace(sets, **{field.name: change(getattr(sets, field.name)) for field in fields(sets)})


def _tensors(evaluation: Evaluation) -> list[Tensor]:
    sets = (evaluation.embeddings, evaluation.scores)
    return [getattr(each, field.name) for each in sets for field in fields(each)]


def _same(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(
        math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))
        for one, other in zip(first, second, strict=True)
    )
