"""Hyperparameters that count under a condition, and combinations that a factory refuses, in studies."""

from __future__ import annotations

import pytest
import torch
from brightness import SETTINGS, Brightness, grey_images

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    InputError,
    Observer,
    PluginSettingsError,
    Range,
    SelectorPlugin,
    When,
    build_registry,
    select,
)
from dsv_plugins.study.plan import plan_study
from dsv_plugins.study.study import Study


class Shade:
    """Darkens a part of the image or takes bits from it. The two settings exclude each other, and 0.3 is too much."""

    def __init__(self, mode, size=None):
        if size == 0.3:
            raise ValueError("a size of 0.3 is too much")
        if mode == "posterize" and size is not None:
            raise TypeError("posterize takes no size")
        self.mode, self.size = mode, size

    def __call__(self, images, *, generator):
        return images * (1 - self.size) if self.mode == "drop" else (images * 4).floor() / 4


class Bright(Brightness):
    image_size, updates = 16, 9


class Brightest:
    """Prefers the candidate without a size, so that the answer is known."""

    def losses(self, evaluations):
        return [evaluation.candidate.params.get("size", 0.0) for evaluation in evaluations]


SPACE = {"mode": ["drop", "posterize"], "size": When("mode", "drop", Range(0.1, 0.2))}
FREE = {"mode": ["drop", "posterize"], "size": [0.1, 0.2, 0.3]}


def settings(out, space, **others):
    return {
        **SETTINGS,
        "augmentation": AugmentationPlugin("shade", Shade, space=space),
        "detector": DetectorEncoderPlugin("brightness", Bright),
        "selector": SelectorPlugin("brightest", Brightest, judges_alone=True),
        "confidence": False,
        "out": out / "run",
        **others,
    }


class Started(Observer):
    def started(self, run, candidates):
        self.candidates = [str(candidate) for candidate in candidates]


@pytest.mark.parametrize("search", ["grid", "halving"])
def test_a_candidate_in_which_a_hyperparameter_does_not_count_is_trained_once(tmp_path, search):
    observer = Started()
    result = select(grey_images(8, 0), grey_images(4, 1), observer=observer, **settings(tmp_path, SPACE, search=search))
    found = [str(entry.candidate) for entry in result.candidates]
    assert found == observer.candidates
    assert found.count("shade(mode=posterize)") == 1
    assert len(found) == 9 + 1
    assert result.choice.candidate.params == {"mode": "posterize"}


def test_values_of_a_study_keep_the_plugins_condition(tmp_path):
    for grid, expected in (
        ({"size": [0.1, 0.2]}, [("drop", 0.1), ("drop", 0.2), ("posterize", None)]),
        ({"mode": ["posterize"]}, [("posterize", None)]),
        ({"mode": ["drop"], "size": [0.1]}, [("drop", 0.1)]),
    ):
        study = Study(grey_images(8, 0), grey_images(4, 1), **settings(tmp_path, SPACE, grid=grid))
        candidates = plan_study(study, build_registry(study.plugins)).candidates()
        assert [(each.params["mode"], each.params.get("size")) for each in candidates] == expected


def test_a_study_can_give_a_condition_of_its_own(tmp_path):
    class Wide(Bright):
        def __init__(self, kind="small", width=1):
            self.kind, self.width = kind, width

    def candidates(grid):
        detector = DetectorEncoderPlugin("wide", Wide)
        study = Study(grey_images(8, 0), grey_images(4, 1), **settings(tmp_path, SPACE, grid=grid, detector=detector))
        return plan_study(study, build_registry(study.plugins)).candidates()

    given = {"mode": ["posterize"], "wide.kind": ["small", "large"], "wide.width": When("wide.kind", "large", [2, 3])}
    assert [dict(each.detector_params) for each in candidates(given)] == [
        {"kind": "small"},
        {"kind": "large", "width": 2},
        {"kind": "large", "width": 3},
    ]
    with pytest.raises(InputError, match="grid: 'detector.width' counts by the value of 'detector.kind', which"):
        candidates({"detector.width": When("detector.kind", "large", [2, 3])})


def test_combinations_that_a_factory_refuses_are_left_out_with_one_note(tmp_path):
    observer = Started()
    result = select(grey_images(8, 0), grey_images(4, 1), observer=observer, **settings(tmp_path, FREE))
    kept = [{"mode": "drop", "size": 0.1}, {"mode": "drop", "size": 0.2}]
    assert [entry.candidate.params for entry in result.candidates] == kept
    assert len(observer.candidates) == 2
    (note,) = [note for note in result.notes if "left out" in note]
    assert note.startswith("4 candidates are left out, the first: augmentation 'shade'")
    assert note.endswith(": a size of 0.3 is too much")


def test_settings_that_a_detector_refuses_are_left_out(tmp_path):
    class Choosy(Bright):
        def __init__(self, width=1):
            if width == 2:
                raise ValueError("a width of 2 is no good")

    given = {"detector": DetectorEncoderPlugin("choosy", Choosy), "grid": {"detector.width": [2, 1], "size": [0.1]}}
    result = select(
        grey_images(8, 0), grey_images(4, 1), **settings(tmp_path, {"mode": ["drop"], "size": [0.1]}, **given)
    )
    assert [entry.candidate.detector_params for entry in result.candidates] == [{"width": 1}]
    assert any("a width of 2 is no good" in note for note in result.notes)


def test_a_study_of_which_everything_is_refused_says_so_before_any_training(tmp_path):
    given = settings(tmp_path, {"mode": ["posterize"], "size": [0.1, 0.2]})
    with pytest.raises(PluginSettingsError, match="TypeError: posterize takes no size"):
        select(grey_images(8, 0), grey_images(4, 1), **given)
    assert not (tmp_path / "run").exists()


def test_what_a_search_proposes_and_a_factory_refuses_is_no_error(tmp_path):
    from dsv_plugins import Search, SearchPlugin

    class Anything(Search):
        def run(self, problem):
            asked = [problem.propose("shade", lambda name, values, place=place: values[place]) for place in (0, 1)]
            assert all(torch.is_tensor(each.scores.test) for each in problem.evaluate(asked, 9, None).values())
            return problem.evaluate(asked, problem.budget, None)

    search = SearchPlugin("anything", Anything, proposes=True)
    result = select(grey_images(8, 0), grey_images(4, 1), **settings(tmp_path, FREE, search=search))
    assert [entry.candidate.params for entry in result.candidates] == [{"mode": "drop", "size": 0.1}]
    (note,) = [note for note in result.notes if "left out" in note]
    assert note.startswith("shade(mode=posterize, size=0.2) is left out: augmentation 'shade'")
