"""How far pu-auc strays from (1 - γ) / 2 + γ · AUC with finitely many images, by simulation.

    python tests/benchmarks/bench_pu_auc.py [--draws N]

Normal scores are standard normal, anomalous ones shifted to an AUC of 0.8. There are as many held-out normals as normal
test images, and anomalies make up the share γ of the test set, one at the least. Prints the standard deviation of
pu-auc, and that divided by γ, which is the spread in units of the AUC. Candidates are compared on the same images:
where two rank them alike, much of the error is common to both. The last table has the spread of the difference of two
whose scores of an image correlate at 0.9, in units of the AUC.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from scipy.stats import norm, percentileofscore

NORMALS = (20, 50, 100, 200, 500)
SHARES = (0.02, 0.05, 0.1, 0.3, 0.7)
AUC = 0.8
CORRELATION = 0.9
DISTANCE = math.sqrt(2) * norm.ppf(AUC)


def anomalies_for(normals: int, share: float) -> int:
    return max(1, round(share / (1 - share) * normals))


def pu_aucs(normals: int, share: float, generator: np.random.Generator) -> list[float]:
    """Those of two candidates on one draw of images."""
    anomalies = anomalies_for(normals, share)
    common, own = (
        generator.normal(size=(1, 2 * normals + anomalies)),
        generator.normal(size=(2, 2 * normals + anomalies)),
    )
    scores = math.sqrt(CORRELATION) * common + math.sqrt(1 - CORRELATION) * own
    scores[:, 2 * normals :] += DISTANCE
    return [float(percentileofscore(row[:normals], row[normals:], "mean").mean()) / 100 for row in scores]


def print_table(title: str, cell: Callable[[int, float], float]) -> None:
    print(f"\n{title}\n\n| normals | " + " | ".join(f"γ = {share:.0%}" for share in SHARES) + " |")
    print("|---:|" + "---:|" * len(SHARES))
    for normals in NORMALS:
        print(f"| {normals} | " + " | ".join(f"{cell(normals, share):.3f}" for share in SHARES) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    draws = parser.parse_args().draws
    generator = np.random.default_rng(0)
    drawn = {
        (normals, share): np.array([pu_aucs(normals, share, generator) for _ in range(draws)])
        for normals in NORMALS
        for share in SHARES
    }

    def inverse_share(normals: int, share: float) -> float:
        """Of the anomalies that there really are, since they come in whole numbers."""
        return 1 + normals / anomalies_for(normals, share)

    def spread(normals: int, share: float) -> float:
        return float(drawn[normals, share][:, 0].std())

    def spread_of_difference(normals: int, share: float) -> float:
        return float(np.diff(drawn[normals, share], axis=1).std())

    print_table("Standard deviation of pu-auc", spread)
    print_table("The same in units of the AUC", lambda *case: spread(*case) * inverse_share(*case))
    print_table(
        "Standard deviation of the difference between two candidates, in units of the AUC",
        lambda *case: spread_of_difference(*case) * inverse_share(*case),
    )


if __name__ == "__main__":
    main()
