"""Whether the images have changed: sequential tests of scores and of the light, with a stated rate of false alarms.

Anomalies among the images are no change. So each test counts the images beyond limits that at least half of all good
images lie within, and bets that these are more than the good ones and a usual share of anomalies explain. What a bet
has won exceeds 1 / α with a probability of at most α (Ville's inequality), however often one looks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsv_plugins.calibration import check_rate

__all__ = ["FALSE_ALARM_RATE", "HORIZON", "USUAL_ANOMALIES", "Drift", "ShiftTest"]

FALSE_ALARM_RATE = 0.01
"""Of streams of `HORIZON` images that have not changed, at most so many are said to have changed."""
HORIZON = 10_000
"""After so many images a test begins anew, or old images would make it slow."""
USUAL_ANOMALIES = 0.3
"""The share of the images that may be anomalous without a change."""
WITHIN = 0.5
"""The share of good images that lie within the limits, at least."""
BETS = 50
LARGEST = 1e100
"""What a bet can win: a stream that has changed may go on for long."""


class ShiftTest:
    """A sequential test whether more values lie beyond those of good images than a usual share of anomalies explains.

    The limits are order statistics of the good values: at least half of all good values lie within them, but for a
    chance of half the rate. Then a value lies beyond with a probability of at most 0.3 + 0.7 · 0.5 as long as nothing
    has changed, and bets on more win nothing but by chance. Half of what is bet is put on a change before the first
    image, the rest in equal parts on a change before each of the next 10,000.

    Args:
        good: The values of good images; with fewer than about a dozen the test is silent.
        rate: The probability of a false alarm among `HORIZON` values, at most.
        two_sided: Whether smaller values count, too.
    """

    def __init__(self, good: ArrayLike, rate: float, *, two_sided: bool = False) -> None:
        from scipy.stats import binom

        check_rate("rate", rate)
        values = np.sort(np.asarray(good, dtype=np.float64))
        # What lies between order statistics that are `gaps` apart follows Beta(gaps, n + 1 - gaps).
        gaps = 1 + int(binom.isf(rate / 2, len(values), WITHIN))
        first = (len(values) + 1 - gaps) // 2 if two_sided else 0
        possible = gaps + first <= len(values) and first >= two_sided
        self.lowest = float(values[first - 1]) if possible and two_sided else -math.inf
        self.highest = float(values[first + gaps - 1]) if possible else math.inf
        usual = USUAL_ANOMALIES + (1 - USUAL_ANOMALIES) * (1 - WITHIN)
        bets = usual + (1 - usual) * (np.arange(BETS) + 0.5) / BETS
        self._factors = (1 - bets) / (1 - usual), bets / usual
        self._needed = 2 / rate
        self._begin()

    def _begin(self) -> None:
        self._count, self._won = 0, np.zeros(BETS)

    def add(self, value: float) -> bool:
        """Take the value of the next image, and return whether it shows that the images have changed."""
        if self._count == HORIZON:
            self._begin()
        stake = 0.5 / HORIZON + (0.5 if self._count == 0 else 0.0)
        beyond = not self.lowest <= value <= self.highest
        self._won = ((self._won + stake) * self._factors[beyond]).clip(max=LARGEST)
        self._count += 1
        return bool(self._won.mean() >= self._needed)


class Drift:
    """Tells once if the images of a stream have changed, such as by other light, another camera or other parts.

    Up to 30 % of the images may be anomalous. One is made for each stream, by `Model.drift`, and gets its images in the
    order in which they were taken.

    Args:
        scores: The scores of good images that the detector was not trained on.
        light: The brightness of these images; empty if that is not known.
        rate: The probability of a false alarm among 10,000 images, at most.

    Attributes:
        changed: What has changed, in one line; None if nothing has.
        images: How many images were looked at.
    """

    def __init__(self, scores: ArrayLike, light: ArrayLike = (), rate: float = FALSE_ALARM_RATE) -> None:
        self._scores, self._light = ShiftTest(scores, rate / 2), ShiftTest(light, rate / 2, two_sided=True)
        self.changed: str | None = None
        self.images = 0

    def add(self, scores: ArrayLike, light: ArrayLike) -> str | None:
        """Take the next images, and return what has changed if that shows now for the first time; None otherwise.

        Args:
            scores: Their scores.
            light: Their brightness, from 0 to 1.
        """
        known = self.changed
        rows: NDArray[np.float64] = np.column_stack([scores, light]).astype(np.float64)
        for score, brightness in rows.tolist():
            self.images += 1
            found = {"brightness": self._light.add(brightness), "scores": self._scores.add(score)}
            if self.changed is None and any(found.values()):
                what = " and ".join(name for name, has_changed in found.items() if has_changed)
                self.changed = (
                    f"the images have changed, or more than {USUAL_ANOMALIES:.0%} of them are anomalous: their {what} "
                    "are unlike those of the good images that decide; check light and camera, or recalibrate with new "
                    "good images"
                )
        return self.changed if known is None else None
