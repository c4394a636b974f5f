"""The types that flow to selectors: no place for a label, and an id that is the same everywhere."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv_plugins import types
from dsv_plugins.errors import InputError
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores, candidate_label

# Adding a field is a decision: whatever a selector can see, it can select by.
FIELDS = {
    Candidate: ("augmentation", "params", "detector", "detector_params", "seed", "context"),
    Embeddings: ("train", "augmented", "test", "holdout"),
    Scores: ("train", "test", "holdout", "augmented", "pseudo"),
    Health: ("training_accuracy", "concentration"),
    Evaluation: ("candidate", "embeddings", "scores", "health", "timings"),
}


def example(kind: type) -> object:
    candidate = Candidate("cutout", {"patch_size": 0.1})
    embeddings, scores = Embeddings(1, 2, 3), Scores(1, 2)  # type: ignore[arg-type]
    return {
        Candidate: candidate,
        Embeddings: embeddings,
        Scores: scores,
        Health: Health(0.9, 0.1),
        Evaluation: Evaluation(candidate, embeddings, scores),
    }[kind]


def test_every_class_of_the_module_is_on_the_list():
    classes = {value for _, value in inspect.getmembers(types, inspect.isclass) if value.__module__ == types.__name__}
    assert classes == set(FIELDS)
    assert {kind.__name__ for kind in FIELDS} == {
        name for name in types.__all__ if isinstance(getattr(types, name), type)
    }


@pytest.mark.parametrize("kind", FIELDS)
def test_fields_are_exactly_those_allowed(kind):
    assert tuple(field.name for field in dataclasses.fields(kind)) == FIELDS[kind]


@pytest.mark.parametrize("kind", FIELDS)
def test_nothing_can_be_attached_or_changed(kind):
    value = example(kind)
    assert not hasattr(value, "__dict__")
    for name in ("labels", "label", "y", FIELDS[kind][0]):
        # Python 3.10 and 3.11 raise TypeError for a name that is no field of a frozen class with slots.
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, 1)
    with pytest.raises(AttributeError):
        object.__setattr__(value, "labels", 1)  # slots hold even against what `frozen` does not
    with pytest.raises((AttributeError, TypeError)):
        delattr(value, FIELDS[kind][0])


@pytest.mark.parametrize("kind", FIELDS)
def test_values_survive_the_way_to_another_process(kind):
    value = example(kind)
    copy = pickle.loads(pickle.dumps(value))
    assert type(copy) is kind
    assert dataclasses.asdict(copy) == dataclasses.asdict(value)


GOLDEN = Candidate(
    augmentation="cutpaste",
    params={"patch_size": 0.02, "angle": 15, "aspect": [0.3, 1.0]},
    detector="cutpaste-resnet18",
    detector_params={"preset": "quick"},
    seed=7,
    context={"dsv-plugins": "0.1.0", "data": "Größe"},
)
GOLDEN_JSON = (
    '{"augmentation":"cutpaste","context":{"data":"Gr\\u00f6\\u00dfe","dsv-plugins":"0.1.0"},'
    '"detector":"cutpaste-resnet18","detector_params":{"preset":"quick"},'
    '"params":{"angle":15,"aspect":[0.3,1.0],"patch_size":0.02},"seed":7}'
)


def test_id_is_the_hash_of_the_canonical_json():
    assert GOLDEN.id == hashlib.sha256(GOLDEN_JSON.encode("ascii")).hexdigest()[:16]
    # Run folders of earlier versions are found by this value: a change of it makes every one of them unusable.
    assert GOLDEN.id == "79a1bb1425f5768c"


@pytest.mark.parametrize(
    "change",
    [
        {"augmentation": "cutout"},
        {"params": {**GOLDEN.params, "angle": 15.0}},
        {"params": {**GOLDEN.params, "angle": "15"}},
        {"params": {**GOLDEN.params, "aspect": [1.0, 0.3]}},
        {"params": {"patch_size": 0.02, "angle": 15}},
        {"params": {**GOLDEN.params, "patch_size": 0.020000000000000004}},
        {"detector": "another"},
        {"detector_params": {}},
        {"detector_params": {"preset": "quick", "seed": 7}},
        {"seed": 8},
        {"context": {}},
        {"context": {**GOLDEN.context, "data": "Grosse"}},
    ],
    ids=str,
)
def test_id_differs_when_anything_differs(change):
    assert dataclasses.replace(GOLDEN, **change).id != GOLDEN.id


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
params = st.dictionaries(st.text(max_size=5), plain, max_size=4)


def reordered(value: object) -> object:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(list(value))}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def structure(value: object) -> object:
    """What JSON distinguishes, found without JSON: the order of keys does not count, the type of a number does."""
    if isinstance(value, dict):
        return frozenset((key, structure(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(structure(item) for item in value)
    return type(value), repr(value)


@settings(deadline=None)
@given(params, params)
def test_id_depends_on_content_and_not_on_the_order_of_keys(first, second):
    def candidate(content: dict[str, object], settings: dict[str, object]) -> Candidate:
        return Candidate("a", content, detector_params=settings)

    original = candidate(first, second)
    assert candidate(reordered(first), reordered(second)).id == original.id
    assert (candidate(second, first).id == original.id) == (structure(first) == structure(second))


def test_id_is_the_same_in_another_process():
    script = (
        "import json, sys; from dsv_plugins.types import Candidate; "
        "print(Candidate(**dict(reversed(json.load(sys.stdin).items()))).id)"
    )
    fields = {field.name: reordered(getattr(GOLDEN, field.name)) for field in dataclasses.fields(GOLDEN)}
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "LC_ALL": "C"}
    outcome = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(fields),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert outcome.stdout.strip() == GOLDEN.id


@pytest.mark.parametrize(
    ("params", "label"),
    [
        ({}, "fog"),
        ({"size": 0.08}, "fog(size=0.08)"),
        ({"kind": "soft", "size": 3}, "fog(kind=soft, size=3)"),
        ({"wide": True, "mask": None, "aspect": [0.3, 1]}, "fog(wide=true, mask=null, aspect=[0.3, 1])"),
    ],
)
def test_a_candidate_has_one_name(params, label):
    assert str(Candidate("fog", params)) == candidate_label("fog", params) == label


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", float("nan"), float("inf"), 1j])
def test_a_candidate_without_canonical_form_is_refused_by_name(value):
    with pytest.raises(InputError, match=r"^cutout\(patch_size=.*\) has no id: .*; give finite numbers"):
        _ = Candidate("cutout", {"patch_size": value}).id


def test_a_candidate_is_shown_with_rounded_numbers() -> None:
    params = {
        "sigma": 0.016304347826,
        "count": 12345678,
        "size": 3.0,
        "large": 123456.789,
        "pair": [0.5, 1],
        "kind": "a",
    }
    assert str(Candidate("fog", params)) == (
        "fog(sigma=0.0163, count=12345678, size=3.0, large=123456.789, pair=[0.5, 1], kind=a)"
    )
