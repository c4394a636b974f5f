"""`--config`: whatever the file holds, the answer is the options in it or one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv_plugins.cli import main


def refused(capsys, *arguments: object) -> str:
    """The one line of a call that is wrong."""
    try:
        code = main([*map(str, arguments)])
    except SystemExit as ended:  # as argparse ends
        code = ended.code
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    return line


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join([*lines, "grid: {patch_size: *a11}"])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("grid: {patch_size: 3}", 'Parser key "grid": the values of patch_size are 3; give a list, or a range'),
        ("grid: {patch_size: {a: 1}}", "the values of patch_size are {'a': 1}; give a list"),
        ("grid: {patch_size: 'a:2'}", "'a:2' is not of the form low:high"),
        (bomb(), "config.yaml has the alias *a0; write the value out"),
        ("seed: " + "[" * 3000 + "]" * 3000, "config.yaml has values nested more than 20 deep"),
        (b"seed: \xff", "config.yaml is not text in UTF-8"),
        ("seed: [", "Problems parsing config"),
        ("seed: x", 'Parser key "seed"'),
        ("seed: -1", "seed is -1; give a whole number from 0 to 4294967295"),
        ("threads: 100000", "threads is 100000; give a whole number from 1 to 256"),
        ("- 1", "Unexpected config"),
        ("config: {}", "config.yaml cannot be read as options (AttributeError"),
        ("colour: red", "does not accept option 'colour'"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_a_wrong_file_is_one_line(task, tmp_path, capsys, content, reason):
    file = tmp_path / "config.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert reason in refused(capsys, "select", task, "--config", file, "--out", tmp_path / "run")


def test_options_may_stand_in_place_of_a_file(task, tmp_path, capsys):
    assert "seed is -4" in refused(capsys, "select", task, "--config", "{seed: -4}", "--out", tmp_path / "run")
    assert "File does not exist" in refused(capsys, "select", task, "--config", tmp_path / "none.yaml")
    assert "--config /dev/zero is a device" in refused(capsys, "select", task, "--config", "/dev/zero")


@pytest.mark.parametrize("option", ["--seed=-1", "--seed=99999999999999999999", "--threads=100000", "--workers=0"])
def test_numbers_out_of_range_are_refused_at_once(task, tmp_path, capsys, option):
    name, _, value = option[2:].partition("=")
    for command in (["select", task], ["demo"]):
        if command == ["demo"] and name == "threads":
            continue
        line = refused(capsys, *command, option, "--out", tmp_path / "run")
        assert line.startswith(f"dsv {command[0]}: {name} is {value}; give a whole number ")
    assert not (tmp_path / "run").exists()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OPTIONS = ["grid", "seed", "threads", "workers", "detector_params", "augmentation", "holdout", "skip_bad", "config"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=60)
    | st.text(max_size=60).map(str.encode)
    | st.dictionaries(st.sampled_from(OPTIONS), values, max_size=3).map(lambda content: json.dumps(content).encode())
)
def test_any_file_is_one_line(tmp_path_factory, capsys, content):
    file: Path = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    refused(capsys, "select", "/nowhere", "--config", file)
