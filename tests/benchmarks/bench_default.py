"""Which selector is the default: the rule of docs/benchmarks.md, applied to finished benchmarks.

    python tests/benchmarks/bench_default.py OUT [OUT ...]

Each OUT is the folder of a `dsv bench`. A pool is an augmentation of one of them. Of pools with the same augmentation
the first folder's counts. Seeds are averaged first, then pools; a task is the unit of every test. Rank averages of
several selectors take part, too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from dsv_plugins import SelectorPlugin, build_registry
from dsv_plugins.bench.methods import AVERAGE, RANDOM
from dsv_plugins.bench.statistics import DECIMALS, signed_rank_p
from dsv_plugins.plugins.discovery import DISTRIBUTION

BEST = "best"
SIGNIFICANT, LARGEST_REGRET, TIE = 0.05, 0.15, 0.003
AVERAGED = (("cosine", "energy"), ("cosine", "mmd"), ("cosine", "dsv"), ("energy", "mmd"), ("cosine", "energy", "mmd"))
LEFT_OUT = (RANDOM, "worst", "dsv-reference", "discordance")
"""No method that a user can choose by, or a part of another."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="+")
    options = parser.parse_args()
    aucs = pd.concat([frame(out) for out in options.out])
    aucs = aucs[~aucs.index.duplicated()].drop(columns=[name for name in aucs if name in LEFT_OUT]).dropna(axis=1)
    pools = aucs.groupby(["augmentation", "task"]).mean()
    tasks = pools.groupby("task").mean()
    regrets = pools.rsub(pools[BEST], axis=0).max()
    table = pd.DataFrame(
        {
            "AUC": tasks.mean(),
            "better": (tasks.sub(tasks[AVERAGE], axis=0).round(DECIMALS) > 0).sum(),
            "worse": (tasks.sub(tasks[AVERAGE], axis=0).round(DECIMALS) < 0).sum(),
            "p": [signed_rank_p(tasks[name], tasks[AVERAGE]) for name in tasks],
            "largest regret": regrets,
        }
    ).sort_values("AUC", ascending=False)
    candidates = table.drop(index=[BEST, AVERAGE])
    table["passes"] = ((table["p"] < SIGNIFICANT) & (table["AUC"] > table["AUC"][AVERAGE])) & (
        table["largest regret"] <= LARGEST_REGRET
    )
    print(f"{len(tasks)} tasks, pools: {', '.join(pools.index.unique('augmentation'))}\n")
    print(table.round(4).to_string())
    print()
    print(pools.groupby("augmentation").mean().T.round(4).loc[table.index].to_string())
    passing = candidates[table["passes"].reindex(candidates.index)]
    if passing.empty:
        print("\nnobody passes")
    else:
        tied = passing[passing["AUC"] > passing["AUC"].max() - TIE]
        print(f"\npass, within {TIE} of the best: {', '.join(tied.index)}")


def frame(out: Path) -> pd.DataFrame:
    """A row for each pool, task and seed: the AUC of the choice of each method."""
    registry = build_registry()
    own = {each.record.name for each in registry.plugins if each.provider.name == DISTRIBUTION}
    outside = {record.name for record in registry.of_kind(SelectorPlugin) if record.needs_holdout} | {
        record.name for record in registry.of_kind(SelectorPlugin) if record.name not in own
    }
    rows = {}
    for cell in json.loads((out / "bench.json").read_text())["cells"]:
        aucs = {name: auc for name, auc in cell["auc"].items() if name not in outside}
        pool = np.array([candidate["auc"] for candidate in cell["candidates"]])
        ranks = {name: stats.rankdata([np.inf if x is None else x for x in xs]) for name, xs in cell["losses"].items()}
        for names in AVERAGED:
            aucs[" + ".join(names)] = pool[np.argmin(sum(ranks[name] for name in names))]
        rows[cell["augmentation"], cell["task"], cell["seed"]] = aucs
    return pd.DataFrame(rows).T.rename_axis(["augmentation", "task", "seed"])


if __name__ == "__main__":
    main()
