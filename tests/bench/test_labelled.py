"""What labels say of verdicts, against counting by hand, scipy's beta distribution and every pair of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from dsv_plugins import InputError
from dsv_plugins.bench.labelled import Rate, labelled, labels_from


@pytest.mark.parametrize(("flagged", "count"), [(0, 7), (3, 7), (7, 7), (11, 40)])
def test_the_interval_is_that_of_clopper_and_pearson(flagged: int, count: int):
    rate = Rate.of([True] * flagged + [False] * (count - flagged))
    lowest = beta.ppf(0.025, flagged, count - flagged + 1) if flagged else 0
    highest = beta.ppf(0.975, flagged + 1, count - flagged) if flagged < count else 1
    assert (rate.lowest, rate.highest) == pytest.approx((lowest, highest))


def test_recall_false_alarms_types_and_auc_are_those_of_counting():
    generator = np.random.default_rng(0)
    labels = generator.choice(np.array(["good", "OK", "hole", "scratch", None]), 60).tolist()
    scores = generator.normal(size=60).round(1)
    flagged = (scores > 0.5).tolist()
    found = labelled(scores.tolist(), flagged, labels)
    good = [place for place, label in enumerate(labels) if label in ("good", "OK")]
    bad = [place for place, label in enumerate(labels) if label in ("hole", "scratch")]
    assert (found.recall.flagged, found.recall.images) == (sum(flagged[place] for place in bad), len(bad))
    assert (found.false_alarms.flagged, found.false_alarms.images) == (sum(flagged[place] for place in good), len(good))
    assert set(found.types) == {"hole", "scratch"}
    assert sum(each.images for each in found.types.values()) == len(bad)
    pairs = [np.sign(scores[one] - scores[other]) / 2 + 0.5 for one in bad for other in good]
    assert found.auc == pytest.approx(np.mean(pairs))
    assert found.without_label == labels.count(None)
    assert any(line.split() == ["hole", *map(str, _table(found.types["hole"]))] for line in found.lines())


def _table(rate: Rate) -> tuple[int, int]:
    return rate.flagged, rate.images - rate.flagged


def test_without_verdicts_there_is_an_auc_and_with_one_class_there_is_none():
    found = labelled([1.0, 2.0], None, ["good", "hole"])
    assert (found.auc, found.recall, found.false_alarms) == (1.0, None, None)
    assert labelled([1.0, 2.0], [False, True], ["good", "good"]).auc is None


def test_labels_are_found_by_path_by_name_and_by_folder(tmp_path: Path):
    images = [tmp_path / "new" / name for name in ("a.png", "b.png", "c.png")]
    file = tmp_path / "labels.csv"
    file.write_text("path,label\nnew/a.png,good\nelsewhere/b.png,hole\nc.png,\n")
    assert labels_from(str(file), images) == {images[0]: "good", images[1]: "hole"}
    assert set(labels_from("folders", images).values()) == {"new"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("path,label\nz.png,good\n", "names none of the images"),
        ("image,kind\na.png,good\n", "has the columns image, kind"),
    ],
)
def test_labels_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, text: str, told: str):
    file = tmp_path / "labels.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=told):
        labels_from(str(file), [tmp_path / "a.png"])
    with pytest.raises(InputError, match="cannot be read"):
        labels_from(str(tmp_path / "missing.csv"), [tmp_path / "a.png"])
