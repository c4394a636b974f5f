"""The selectors against oracles that share no line with them: float64 loops, scipy, exact fractions, the SVD."""

from __future__ import annotations

import itertools
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from dsv_plugins import (
    Candidate,
    Embeddings,
    Evaluation,
    PluginSettingsError,
    ScoreError,
    Scores,
    SelectorPlugin,
    build_registry,
)
from dsv_plugins.plugins.search import choose, rank

EMBEDDING_SELECTORS = ("dsv", "discordance", "separability", "base", "mmd", "std")
SCORE_SELECTORS = ("mc", "select", "hits")


REGISTRY = build_registry()


def losses_of(name, evaluations, **params):
    return REGISTRY.create(SelectorPlugin, name, params).losses(evaluations)


def evaluation(index=0, *, train=None, augmented=None, test=None, scores=None):
    some = torch.eye(2)
    sets = [some if each is None else torch.as_tensor(each) for each in (train, augmented, test)]
    test_scores = torch.zeros(len(sets[2])) if scores is None else torch.as_tensor(scores)
    return Evaluation(
        Candidate("cutpaste", {"patch_size": index + 1}),
        Embeddings(*sets),
        Scores(train=torch.zeros(len(sets[0])), test=test_scores),
    )


def evaluations_of(scores):
    """One candidate for each column."""
    return [evaluation(index, scores=column) for index, column in enumerate(np.asarray(scores, dtype=np.float64).T)]


# ---------------------------------------------------------------------------
# Losses of embeddings
# ---------------------------------------------------------------------------


def distances(a, b):
    return [math.sqrt(sum((x - y) ** 2 for x, y in zip(p, q, strict=True))) for p in a for q in b]


def mean(values):
    return math.fsum(values) / len(values)


def deviation(values):
    centre = mean(values)
    return math.sqrt(mean([(value - centre) ** 2 for value in values]))


def projection(origin, towards, point):
    direction = towards - origin
    return float(np.dot(point - origin, direction) / math.sqrt(np.dot(direction, direction)))


class Oracle:
    """The formulas of METHOD.md, pair by pair."""

    def __init__(self, train, augmented, test):
        self.train, self.augmented, self.test = (
            np.asarray(each, dtype=np.float64) for each in (train, augmented, test)
        )
        self.seen = [*self.train, *self.augmented]

    def discordance(self):
        return self.base() / mean(distances(self.train, self.augmented))

    def separability(self, factor=1.0):
        origin = self.train.mean(axis=0)
        spread = deviation([projection(origin, a, t) for a in self.augmented for t in self.test])
        return factor * spread / mean(distances(self.train, self.augmented))

    def dsv(self, factor=1.0):
        return self.discordance() - min(self.separability(factor), 0.5) / self.discordance()

    def base(self):
        return mean(distances(self.seen, self.test))

    def linear_mmd(self):
        return float(((np.mean(self.seen, axis=0) - self.test.mean(axis=0)) ** 2).sum())

    def rbf_mmd(self):
        points = [*self.seen, *self.test]
        apart = sorted(d for i, p in enumerate(points) for d in distances([p], points[:i]) if d > 0)
        bandwidth = apart[(len(apart) - 1) // 2]

        def similarity(a, b):
            return mean([math.exp(-(d**2) / (2 * bandwidth**2)) for d in distances(a, b)])

        within = similarity(self.seen, self.seen) + similarity(self.test, self.test)
        return within - 2 * similarity(self.seen, self.test)

    def std(self, include_augmented=True):
        return deviation(distances(self.seen if include_augmented else self.train, self.test))


EMBEDDING_ORACLES = [
    ("dsv", {}, lambda o: o.dsv()),
    ("dsv", {"variant": "paper"}, lambda o: o.dsv()),
    ("dsv", {"variant": "reference"}, lambda o: o.dsv(factor=2.0)),
    ("discordance", {}, lambda o: o.discordance()),
    ("separability", {}, lambda o: -min(o.separability(), 0.5)),
    ("separability", {"cap": None}, lambda o: -o.separability()),
    ("separability", {"cap": 0.1}, lambda o: -min(o.separability(), 0.1)),
    ("base", {}, lambda o: o.base()),
    ("mmd", {}, lambda o: o.linear_mmd()),
    ("mmd", {"kernel": "linear"}, lambda o: o.linear_mmd()),
    ("mmd", {"kernel": "rbf"}, lambda o: o.rbf_mmd()),
    ("std", {}, lambda o: -o.std()),
    ("std", {"include_augmented": True}, lambda o: -o.std()),
    ("std", {"include_augmented": False}, lambda o: -o.std(include_augmented=False)),
]


def embedding_sets(seed, sizes, width, spread=1.0):
    generator = np.random.default_rng(seed)
    shifts = generator.normal(size=(3, width)) * spread
    return [generator.normal(size=(n, width)).astype(np.float32) + s for n, s in zip(sizes, shifts, strict=True)]


@pytest.mark.parametrize(("name", "params", "oracle"), EMBEDDING_ORACLES)
@pytest.mark.parametrize("spread", [0.1, 3.0])  # with and without a separability past its cap
def test_embedding_selector_equals_its_formula(name, params, oracle, spread):
    cases = [
        embedding_sets(seed, sizes, width, spread)
        for seed, (sizes, width) in enumerate([((6, 6, 9), 5), ((1, 1, 1), 3), ((4, 4, 2), 1), ((3, 3, 20), 16)])
    ]
    evaluations = [evaluation(i, train=a, augmented=b, test=c) for i, (a, b, c) in enumerate(cases)]
    expected = [oracle(Oracle(*case)) for case in cases]
    assert losses_of(name, evaluations, **params) == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_oracles_meet_both_sides_of_the_separability_cap():
    tight = Oracle(*embedding_sets(0, (6, 6, 9), 5, 0.1)).separability()
    wide = Oracle(np.zeros((1, 1)), np.ones((1, 1)), np.array([[-4.0], [4.0]])).separability()
    assert tight < 0.5 < wide


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 6),
    tests=st.integers(1, 8),
    width=st.integers(1, 6),
    offset=st.sampled_from([0.0, 1.0, 1000.0]),
)
def test_dsv_equals_its_formula_wherever_the_embeddings_lie(seed, count, tests, width, offset):
    sets = [each + np.float32(offset) for each in embedding_sets(seed, (count, count, tests), width)]
    oracle = Oracle(*sets)
    found = losses_of("dsv", [evaluation(train=sets[0], augmented=sets[1], test=sets[2])])
    assert found == pytest.approx([oracle.dsv()], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", EMBEDDING_SELECTORS)
@pytest.mark.parametrize("kind", ["train", "augmented", "test"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_candidate_with_broken_embeddings_is_named_and_the_others_are_as_without_it(name, kind, value):
    whole = [
        dict(zip(("train", "augmented", "test"), embedding_sets(seed, (5, 5, 7), 4), strict=True)) for seed in range(3)
    ]
    broken = {set_name: rows.copy() for set_name, rows in whole[1].items()}
    broken[kind][-1, -1] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = losses_of(name, [evaluation(0, **whole[0]), evaluation(2, **whole[2])])
    with pytest.warns(UserWarning, match=r"cutpaste\(patch_size=2\) is left out of the selection: .+") as caught:
        losses = losses_of(name, [evaluation(0, **whole[0]), evaluation(1, **broken), evaluation(2, **whole[2])])
    assert len(caught) == 1
    assert caught[0].filename == __file__, "the warning points at the caller"
    assert math.isnan(losses[1])
    assert [losses[0], losses[2]] == expected
    assert choose(losses) != 1


@pytest.mark.parametrize("name", EMBEDDING_SELECTORS)
def test_embedding_selector_of_one_candidate_and_of_none(name):
    train, augmented, test = embedding_sets(0, (5, 5, 7), 4)
    (loss,) = losses_of(name, [evaluation(train=train, augmented=augmented, test=test)])
    assert math.isfinite(loss)
    assert losses_of(name, []) == []


def test_augmented_that_equal_train_rank_last():
    train, augmented, test = embedding_sets(0, (1, 1, 7), 4)
    collapsed = evaluation(0, train=train, augmented=train, test=test)
    sound = evaluation(1, train=train, augmented=augmented, test=test)
    for name in ("dsv", "discordance"):
        losses = losses_of(name, [collapsed, sound])
        assert losses[0] == math.inf
        assert choose(losses) == 1


@pytest.mark.parametrize("name", EMBEDDING_SELECTORS)
def test_equal_embeddings_give_equal_losses_and_the_first_is_chosen(name):
    train, augmented, test = embedding_sets(0, (5, 5, 7), 4)
    losses = losses_of(name, [evaluation(i, train=train, augmented=augmented, test=test) for i in range(3)])
    assert losses[0] == losses[1] == losses[2]
    assert choose(losses) == 0


# ---------------------------------------------------------------------------
# Losses of scores
# ---------------------------------------------------------------------------


def tau(first, second):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        statistic = kendalltau([float(x) for x in first], [float(x) for x in second]).statistic
    return -math.inf if math.isnan(statistic) else float(statistic)


def centrality_oracle(scores):
    columns = list(scores.T)
    means = []
    for i, column in enumerate(columns):
        taus = [tau(column, other) for j, other in enumerate(columns) if j != i]
        defined = [value for value in taus if value > -math.inf]
        means.append(mean(defined) if defined else -math.inf)
    return means


def exact_ranks(column, *, descending=False):
    """Average ranks as fractions, by counting."""
    ranks = []
    column = [float(value) for value in column]
    for value in column:
        before = sum(other > value if descending else other < value for other in column)
        tied = sum(other == value for other in column)
        ranks.append(before + Fraction(tied + 1, 2))
    return ranks


def dense(fractions):
    """The fractions' order as whole numbers, so that exactly equal ones are tied."""
    order = sorted(set(fractions))
    return [order.index(value) for value in fractions]


def select_oracle(scores):
    """SELECT, step by step, in exact arithmetic."""
    evidence = [[1 / r for r in exact_ranks(column)] for column in scores.T]

    def consensus(places):
        return dense([sum(evidence[p][row] for p in places) / len(places) for row in range(len(scores))])

    def best_of(places, target):
        taus = [tau(target, dense(evidence[p])) for p in places]
        largest = max(taus)
        # Equal but for rounding is equal: the first of them.
        place = next(p for p, value in zip(places, taus, strict=True) if value >= largest - 1e-13)
        return place, largest

    everyone = list(range(len(evidence)))
    first, first_tau = best_of(everyone, consensus(everyone))
    chosen, taus = [first], [first_tau]
    while len(chosen) < len(everyone):
        nearest, value = best_of([p for p in everyone if p not in chosen], consensus(chosen))
        if value < sum(taus) / len(taus) - 1e-13:
            break
        chosen.append(nearest)
        taus.append(value)
    final = consensus(chosen)
    return [tau(final, dense(column)) for column in evidence]


def hits_oracle(scores, *, descending=True):
    ranks = np.array([[float(r) for r in exact_ranks(column, descending=descending)] for column in scores.T]).T
    return np.abs(np.linalg.svd(1 / ranks)[2][0])


random_scores = st.tuples(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(2, 6)).map(
    lambda drawn: np.random.default_rng(drawn[0]).normal(size=drawn[1:])
)
tied_scores = st.tuples(st.integers(2, 12), st.integers(2, 6), st.integers(1, 4)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, shape[2]), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
    ).map(lambda rows: np.array(rows, dtype=np.float64))
)
score_matrices = random_scores | tied_scores


@settings(max_examples=150, deadline=None)
@given(score_matrices)
def test_mc_equals_the_mean_kendall_correlation(scores):
    expected = [-value for value in centrality_oracle(scores)]
    assert losses_of("mc", evaluations_of(scores)) == pytest.approx(expected, abs=1e-11)


@settings(max_examples=200, deadline=None)
@given(score_matrices)
@example(np.array([[1.0, 0, 0, 2], [2, 2, 1, 1], [0, 1, 2, 0]]))  # with sums that only rounding tells apart
def test_select_equals_its_steps(scores):
    expected = [-value for value in select_oracle(scores)]
    assert losses_of("select", evaluations_of(scores)) == pytest.approx(expected, abs=1e-11)


@settings(max_examples=150, deadline=None)
@given(score_matrices, st.sampled_from(["descending", "ascending"]))
def test_hits_equals_the_leading_singular_vector(scores, rank_order):
    expected = -hits_oracle(scores, descending=rank_order == "descending")
    found = losses_of("hits", evaluations_of(scores), rank_order=rank_order)
    assert found == pytest.approx(list(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "oracle"), [("mc", centrality_oracle), ("select", select_oracle), ("hits", hits_oracle)]
)
def test_score_selectors_at_the_size_of_a_study(name, oracle):
    generator = np.random.default_rng(1)
    truth = generator.normal(size=(90, 1))
    scores = truth + generator.normal(size=(90, 17)) * np.linspace(0.3, 3, 17)
    assert losses_of(name, evaluations_of(scores)) == pytest.approx([-float(v) for v in oracle(scores)], abs=1e-9)


def test_hits_equals_the_iteration_it_is_defined_by():
    scores = np.random.default_rng(2).normal(size=(60, 5))
    evidence = 1 / np.array([[float(r) for r in exact_ranks(column, descending=True)] for column in scores.T]).T
    hub = np.full(5, 1 / 5)
    change = 1.0
    while change >= 1e-10:
        authority = evidence @ hub
        authority /= np.linalg.norm(authority)
        updated = evidence.T @ authority
        updated /= np.linalg.norm(updated)
        change, hub = np.abs(updated - hub).max(), updated
    assert losses_of("hits", evaluations_of(scores)) == pytest.approx(list(-hub), abs=1e-9)


def test_hits_ranks_the_most_anomalous_first_by_default():
    scores = np.random.default_rng(3).normal(size=(30, 4))
    assert losses_of("hits", evaluations_of(scores)) == losses_of(
        "hits", evaluations_of(-scores), rank_order="ascending"
    )


@pytest.mark.parametrize("name", ["mc", "select"])
def test_constant_scores_rank_last_and_leave_the_others_as_they_are(name):
    scores = np.random.default_rng(4).normal(size=(20, 4))
    expected = losses_of(name, evaluations_of(scores))
    with_constant = np.insert(scores, 2, 7.0, axis=1)
    losses = losses_of(name, evaluations_of(with_constant))
    assert losses[2] == math.inf
    assert losses[:2] + losses[3:] == pytest.approx(expected, abs=1e-11)
    assert choose(losses) != 2


def test_hits_takes_constant_scores_as_ranks_that_are_all_tied():
    scores = np.insert(np.random.default_rng(4).normal(size=(20, 4)), 2, 7.0, axis=1)
    losses = losses_of("hits", evaluations_of(scores))
    assert losses == pytest.approx(list(-hits_oracle(scores)), abs=1e-9)
    assert rank(losses)[-1] == 2


@pytest.mark.parametrize("name", SCORE_SELECTORS)
def test_only_constant_scores(name):
    losses = losses_of(name, evaluations_of(np.ones((5, 3))))
    if name == "hits":
        assert losses[0] == losses[1] == losses[2]
    else:
        assert losses == [math.inf] * 3


@pytest.mark.parametrize("name", SCORE_SELECTORS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_candidate_with_broken_scores_is_named_and_the_others_are_as_without_it(name, value):
    scores = np.random.default_rng(5).normal(size=(20, 4))
    expected = losses_of(name, evaluations_of(np.delete(scores, 1, axis=1)))
    scores[3, 1] = value
    with pytest.warns(UserWarning, match=r"cutpaste\(patch_size=2\) is left out of the selection") as caught:
        losses = losses_of(name, evaluations_of(scores))
    assert len(caught) == 1
    assert caught[0].filename == __file__, "the warning points at the caller"
    assert math.isnan(losses[1])
    assert [losses[0], *losses[2:]] == expected


@pytest.mark.parametrize("name", SCORE_SELECTORS)
def test_only_broken_scores(name):
    with pytest.warns(UserWarning, match="left out") as caught:
        losses = losses_of(name, evaluations_of(np.full((4, 2), math.nan)))
    assert len(caught) == 2
    assert all(math.isnan(loss) for loss in losses)
    with pytest.raises(ScoreError, match="none of the 2 losses is finite"):
        choose(losses)


def test_model_centrality_of_one_candidate_is_an_error_that_says_why():
    scores = np.random.default_rng(6).normal(size=(20, 1))
    with pytest.raises(ScoreError, match="needs two or more"):
        losses_of("mc", evaluations_of(scores))
    one_left = np.hstack([scores, np.full((20, 1), math.nan)])
    with pytest.raises(ScoreError, match="needs two or more"), pytest.warns(UserWarning, match="left out"):
        losses_of("mc", evaluations_of(one_left))


@pytest.mark.parametrize(("name", "expected"), [("select", -1.0), ("hits", -1.0)])
def test_the_other_score_selectors_take_one_candidate(name, expected):
    scores = np.random.default_rng(6).normal(size=(20, 1))
    assert losses_of(name, evaluations_of(scores)) == pytest.approx([expected])
    assert losses_of(name, []) == []


@settings(max_examples=60, deadline=None)
@given(score_matrices, st.data())
@pytest.mark.parametrize("name", SCORE_SELECTORS)
def test_equal_columns_tie_and_the_first_wins(name, scores, data):
    place = data.draw(st.integers(0, scores.shape[1] - 1))
    losses = losses_of(name, evaluations_of(np.hstack([scores, scores[:, [place]]])))
    assert losses[-1] == losses[place]
    if any(math.isfinite(loss) for loss in losses):
        assert choose(losses) != len(losses) - 1


@settings(max_examples=60, deadline=None)
@given(score_matrices)
@pytest.mark.parametrize("name", SCORE_SELECTORS)
def test_only_the_order_of_scores_counts(name, scores):
    stretched = np.exp(scores / 4) * 100 - 7
    assume(all(len(set(a)) == len(set(b)) for a, b in zip(scores.T, stretched.T, strict=True)))
    assert losses_of(name, evaluations_of(stretched)) == losses_of(name, evaluations_of(scores))


@pytest.mark.parametrize("name", SCORE_SELECTORS)
def test_scores_of_different_lengths_or_of_no_image_are_an_error(name):
    ragged = [evaluation(0, scores=torch.rand(5)), evaluation(1, scores=torch.rand(6))]
    with pytest.raises(ScoreError, match=r"\(5,\).*\(6,\).*same images"):
        losses_of(name, ragged)
    with pytest.raises(ScoreError, match=r"\(0,\)"):
        losses_of(name, [evaluation(0, scores=torch.rand(0)), evaluation(1, scores=torch.rand(0))])


# ---------------------------------------------------------------------------
# All of them
# ---------------------------------------------------------------------------


def test_every_selector_of_the_paper_is_there():
    names = [record.name for record in REGISTRY.of_kind(SelectorPlugin)]
    assert [name for name in names if name in EMBEDDING_SELECTORS + SCORE_SELECTORS] == [
        *EMBEDDING_SELECTORS,
        *SCORE_SELECTORS,
    ]
    alone = {record.name for record in REGISTRY.of_kind(SelectorPlugin) if record.judges_alone}
    assert alone & set(EMBEDDING_SELECTORS + SCORE_SELECTORS) == set(EMBEDDING_SELECTORS)


@pytest.mark.parametrize("name", EMBEDDING_SELECTORS)
def test_a_selector_that_judges_alone_gives_the_same_loss_in_any_company(name):
    evaluations = [
        evaluation(i, train=a, augmented=b, test=c)
        for i, (a, b, c) in enumerate(embedding_sets(seed, (5, 5, 7), 4) for seed in range(4))
    ]
    assert losses_of(name, evaluations) == [losses_of(name, [each])[0] for each in evaluations]


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("dsv", {"variant": "code"}, "variant is 'code'; give one of paper, reference"),
        ("mmd", {"kernel": "cubic"}, "kernel is 'cubic'; give one of linear, rbf"),
        ("hits", {"rank_order": "up"}, "rank_order is 'up'; give one of descending, ascending"),
        ("separability", {"cap": 0.0}, "cap is 0.0; give a number above 0"),
        ("separability", {"cap": "high"}, "refused"),
        ("base", {"power": 2}, "does not take 'power'"),
    ],
)
def test_wrong_settings_are_refused_when_the_selector_is_made(name, params, message):
    with pytest.raises(PluginSettingsError, match=message):
        REGISTRY.create(SelectorPlugin, name, params)


# ---------------------------------------------------------------------------
# From losses to a choice
# ---------------------------------------------------------------------------

any_losses = st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.integers(-2, 2).map(float), max_size=12)


@given(any_losses)
def test_rank_puts_finite_losses_in_order_and_the_rest_last(losses):
    places = rank(losses)
    assert sorted(places) == list(range(len(losses)))
    finite = [place for place in places if math.isfinite(losses[place])]
    assert places[: len(finite)] == finite, "NaN, +inf and -inf come last"
    for first, second in itertools.pairwise(finite):
        assert losses[first] < losses[second] or (losses[first] == losses[second] and first < second)
    rest = places[len(finite) :]
    assert rest == sorted(rest), "those without a finite loss keep their order"


@given(any_losses)
def test_choose_takes_the_first_of_the_smallest(losses):
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        with pytest.raises(ScoreError, match="nothing to choose by"):
            choose(losses)
    else:
        assert choose(losses) == losses.index(min(finite))


def test_rank_of_every_kind_of_loss():
    assert rank([math.nan, 2.0, -math.inf, 1.0, math.inf, 1.0]) == [3, 5, 1, 0, 2, 4]
