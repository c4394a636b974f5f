"""Selectors from elsewhere, found by dsv-plugins through the entry point in pyproject.toml."""

import math
from functools import partial

from dsv_plugins import EmbeddingError, SelectorPlugin, hookimpl


class STSSAD:
    """Prefers test embeddings that lie near the mean of train or of augmented, all scaled to unit spread together."""

    def losses(self, evaluations):
        return [self.loss(evaluation.embeddings) for evaluation in evaluations]

    def loss(self, embeddings):
        import torch  # here, since listing plugins must be quick

        sets = [each.double() for each in (embeddings.train, embeddings.augmented, embeddings.test)]
        everything = torch.cat(sets)
        spread = (everything - everything.mean(dim=0)).square().sum(dim=1).mean().sqrt()
        distances = [(sets[2] - seen.mean(dim=0)).norm(dim=1).mean() for seen in sets[:2]]
        return float(sum(distances) / spread)  # NaN where there is no spread


class SlicedWasserstein:
    """Prefers train and augmented together near test: the Wasserstein distance in the place of DSV's distance.

    It is the mean over random directions of the distance between the projections, in units of d(train, augmented).
    """

    def __init__(self, directions=64, seed=0):
        self.directions = directions
        self.seed = seed

    def losses(self, evaluations):
        return [self.loss(evaluation.embeddings) for evaluation in evaluations]

    def loss(self, embeddings):
        import numpy as np
        from scipy.stats import wasserstein_distance

        from dsv_plugins.losses import set_distance

        try:
            scale = float(set_distance(embeddings.train, embeddings.augmented))
        except EmbeddingError:
            return math.nan
        train, augmented, test = (
            each.double().numpy() for each in (embeddings.train, embeddings.augmented, embeddings.test)
        )
        directions = np.random.default_rng(self.seed).normal(size=(self.directions, test.shape[1]))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        seen = np.concatenate([train, augmented]) @ directions.T
        distances = [wasserstein_distance(*pair) for pair in zip(seen.T, (test @ directions.T).T, strict=True)]
        return float(np.mean(distances)) / scale if scale else math.nan


class ScoreSpread:
    """Prefers the detector whose test scores are spread the most, in units of the spread of its train scores."""

    def losses(self, evaluations):
        return [-float(e.scores.test.std() / e.scores.train.std()) for e in evaluations]


class Bimodality:
    """Prefers test scores in two groups: Sarle's coefficient, (skewness² + 1) / kurtosis, at most 1 for two points."""

    def losses(self, evaluations):
        return [-self.coefficient(evaluation.scores.test.double()) for evaluation in evaluations]

    def coefficient(self, scores):
        centred = scores - scores.mean()
        standardised = centred / centred.square().mean().sqrt()  # NaN for constant scores
        return float((standardised.pow(3).mean().square() + 1) / standardised.pow(4).mean())


class RankAverage:
    """The mean of a candidate's ranks by two selectors: two kinds of evidence, whose losses have no common scale."""

    def __init__(self, first, second, registry):
        self.selectors = [registry.create(SelectorPlugin, name) for name in (first, second)]

    def losses(self, evaluations):
        import numpy as np
        from scipy.stats import rankdata

        losses = np.array([selector.losses(evaluations) for selector in self.selectors])
        usable = np.isfinite(losses).all(axis=0)  # a candidate that either cannot judge has no rank, and takes none
        means = np.full(len(evaluations), np.nan)
        means[usable] = rankdata(losses[:, usable], axis=1).mean(axis=0)
        return means.tolist()


@hookimpl
def selector():
    pairs = [("pu-auc", "mc"), ("energy", "mc"), ("cosine", "mc"), ("pu-auc", "cosine")]
    averages = [
        SelectorPlugin(
            f"{first}-{second}",
            partial(RankAverage, first, second),
            f"Mean rank by {first} and by {second}",
            needs_holdout="pu-auc" in (first, second),
        )
        for first, second in pairs
    ]
    return [
        *averages,
        SelectorPlugin("st-ssad", STSSAD, "Test near the means of train and augmented", judges_alone=True),
        SelectorPlugin("wasserstein", SlicedWasserstein, "Sliced Wasserstein distance to test", judges_alone=True),
        SelectorPlugin("spread", ScoreSpread, "Largest spread of the test scores", judges_alone=True),
        SelectorPlugin("bimodality", Bimodality, "Test scores that fall into two groups", judges_alone=True),
    ]
