"""The `dsv` command: what it prints, how it ends, and that no plugin can spoil either."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv_plugins import InputError, build_registry, errors
from dsv_plugins.cli import main, plugins
from dsv_plugins.plugins.discovery import DISABLE_VARIABLE
from dsv_plugins.plugins.records import RECORDS
from dsv_plugins.study.settings import StudySettings
from dsv_plugins.testing import CheckResult

numbers = itertools.count()

DSV = str(Path(sys.executable).parent / "dsv")


@pytest.fixture(autouse=True)
def _ordinary_terminal(monkeypatch):
    monkeypatch.delenv(DISABLE_VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def run(capsys) -> Callable[..., tuple[int, str, str]]:
    """Call the command in this process: its exit code, what it printed, and its errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as exit_:  # as argparse ends
            code = exit_.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def install(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Install a plugin package, as pip leaves it, for this test and the processes that it starts."""

    def write(code: str) -> None:
        name = f"dsv_{next(numbers)}"  # its own for each test, as an imported module stays
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dsv_plugins]\nhostile = {name}\n")
        (tmp_path / f"{name}.py").write_text(
            f"from dsv_plugins import AugmentationPlugin, Range, SelectorPlugin, hookimpl\n{code}\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return write


def hook(name: str, summary: str = "", space: str = "{}") -> str:
    """The code of an augmentation hook; `space` is code, too."""
    record = f"AugmentationPlugin({name!r}, lambda **settings: None, {summary!r}, {space})"
    return f"@hookimpl\ndef augmentation():\n    return {record}"


# ---------------------------------------------------------------------------
# dsv plugins
# ---------------------------------------------------------------------------


def test_json_has_exactly_the_promised_schema(run, install):
    install(hook("mine", "Says hello", "{'size': [1, 'x', None]}") + "\n@hookimpl\ndef selctor():\n    pass")
    code, out, err = run("plugins", "--json")
    assert (code, err) == (0, "")
    listing = json.loads(out)
    assert list(listing) == ["plugins", "failures", "advice"]
    for plugin in listing["plugins"]:
        assert list(plugin) == ["kind", "name", "provider", "version", "summary", "space", "settings"]
        assert plugin["kind"] in RECORDS
        assert all(isinstance(plugin[key], str) for key in ("name", "provider", "version", "summary"))
        for values in plugin["space"].values():
            assert isinstance(values, list) or set(values) == {"low", "high", "log"}
    for failure in listing["failures"]:
        assert list(failure) == ["provider", "entry_point", "reason"]
        assert all(isinstance(value, str) for value in failure.values())
    (mine,) = (plugin for plugin in listing["plugins"] if plugin["name"] == "mine")
    assert (mine["version"], mine["summary"], mine["space"]) == ("1.0", "Says hello", {"size": [1, "x", None]})
    assert [failure["reason"] for failure in listing["failures"] if failure["entry_point"] == "hostile"] == [
        "there is no hook named 'selctor'; did you mean 'selector'?"
    ]


def test_json_is_one_document_whatever_the_width(run, monkeypatch, install):
    install(hook("mine", "long " * 100))
    monkeypatch.setenv("COLUMNS", "20")
    _, out, _ = run("plugins", "--json")
    assert ("long " * 100) in {plugin["summary"] for plugin in json.loads(out)["plugins"]}


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_keeps_names_whole(run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("DSV_DISABLE_PLUGINS", "*")  # the names of other providers may be too long for one line
    code, out, err = run("plugins")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    kind, shown = "", []
    for line in lines:
        if line.rstrip() in RECORDS:
            kind = line.rstrip()
        elif line.startswith("  ") and line[2] != " ":
            shown.append((kind, line.split()[0], " ".join(line.split()[1:3])))
    expected = [(each.record.kind, each.record.name, str(each.provider)) for each in build_registry().plugins]
    assert sorted(shown) == sorted(expected)
    # With its indented continuation lines, a text column holds every word of every summary.
    words = set(out.split())
    for each in build_registry().plugins:
        assert set(each.record.summary.split()) <= words


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ("[1, 2.0, 'x', None]", "size: 1, 2, x, None"),
        ("(0.00001, 1, 2, 3, 0.64)", "size: 1e-05 … 0.64, 5 values"),
        ("Range(0.001, 10)", "size: 0.001 … 10"),
        ("Range(0.001, 10, log=True)", "size: 0.001 … 10, logarithmic"),
        ("Range(1, 10, integer=True)", "size: 1 … 10, whole"),
    ],
    ids=str,
)
def test_the_table_describes_hyperparameters(run, install, values, shown):
    install(hook("mine", "Sound", f"{{'size': {values}}}"))
    _, out, _ = run("plugins")
    assert shown in map(str.strip, out.splitlines())


# ---------------------------------------------------------------------------
# Hostile plugins
# ---------------------------------------------------------------------------

MARKUP = r"[red]stop[/red] :warning: [link=x]y[/link] [/] \[bold] back\\"


def test_markup_is_printed_literally(run, install, monkeypatch):
    install(hook("mine", MARKUP) + f"\n@hookimpl\ndef selector():\n    raise ValueError({MARKUP!r})")
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = run("plugins")
    assert (code, err) == (0, "")
    assert out.count(MARKUP) == 2


def test_no_text_of_a_plugin_can_steer_the_terminal(run, install):
    escape = "\x1b]0;title\x07\x1b[2J\r\x9b31m"
    install(
        hook("mine", space=f"{{'mode': [{escape!r}]}}")
        + f"\n@hookimpl\ndef selector():\n    raise ValueError({escape!r})\n"
        f"@hookimpl\ndef detector_encoder():\n    return {escape!r}"
    )
    for arguments in (["plugins"], ["plugins", "--json"], ["check", "nobody"]):
        _, out, err = run(*arguments)
        assert all(character == "\n" or character.isprintable() for character in out + err)
    assert r"\x1b]0;title\x07\x1b[2J" in err


@settings(deadline=None)
@given(st.text())
def test_one_line_is_one_line_that_can_be_printed(text):
    line = errors.one_line(text)
    assert line.isprintable()
    assert len(line.splitlines()) <= 1
    line.encode("utf-8")
    if text.isprintable() and " ".join(text.split()) == text:
        assert line == text


@settings(deadline=None)
@given(st.text())
def test_printable_text_has_the_very_characters_but_for_those_that_steer(text):
    shown = errors.printable(text)
    assert not {*shown} & {*map(chr, [*range(32), *range(127, 160)]), "\u202e", "\u2028", "\u2029"}
    spelled = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[tnr])")
    assert spelled.sub("", shown) == spelled.sub("", "".join(filter(lambda each: errors.printable(each) == each, text)))


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from("=+-@\udcff\t \x1b")))
def test_no_path_in_a_csv_file_is_a_formula(text):
    assert errors.cell(text).removeprefix("./") == errors.printable(text).removeprefix("./")
    assert not errors.cell(text).startswith(("=", "+", "-", "@", "\t", "\r", "＝", "＋"))


def test_a_shell_finds_the_file_of_a_quoted_path():
    paths = [
        "two  spaces",
        "a\nline",
        "it's",
        "$(id)",
        "\x1b[31m",
        "\udcff",
        "ä\t",
        "\\n\n",
        "plain",
        "~",
        "-1",
        "\u202ex'",
    ]
    given = " ".join(map(errors.quoted, paths))
    assert len(given.splitlines()) == 1
    assert errors.printable(given) == given
    found = subprocess.run(["bash", "-c", f"printf '%s\\0' {given}"], capture_output=True, check=True).stdout
    assert found.split(b"\0")[:-1] == [os.fsencode(path) for path in paths]


def test_what_a_plugin_prints_does_not_get_into_the_output(run, install):
    install(
        "print('hello from import')\n" + hook("mine") + "\n@hookimpl\ndef selector():\n    print('hello'); return []"
    )
    code, out, err = run("plugins", "--json")
    assert code == 0
    assert "mine" in {plugin["name"] for plugin in json.loads(out)["plugins"]}
    assert err == "hello from import\nhello\n"


def test_values_that_json_cannot_hold_are_a_failure_of_their_plugin_only(run, install):
    install(hook("mine", space="{'size': [object]}"))
    code, out, _ = run("plugins", "--json")
    assert code == 0
    (failure,) = (each for each in json.loads(out)["failures"] if each["entry_point"] == "hostile")
    assert failure["reason"] == (
        "augmentation 'mine': the values of 'size' include <class 'object'> of type type; "
        "give finite numbers, text, booleans or lists"
    )


def test_a_terminal_that_lacks_a_character_does_not_end_the_command(install):
    install(hook("mine", "Größe → ∞"))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    outcome = subprocess.run([DSV, "plugins"], env=environment, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert r"Gr\xf6\xdfe \u2192 \u221e" in outcome.stdout


# ---------------------------------------------------------------------------
# Quick to start
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "--json"], ["--help"]], ids=" ".join)
def test_nothing_heavy_is_imported(arguments):
    script = (
        "import sys\nfrom dsv_plugins.cli import main\n"
        f"try:\n    assert main({arguments!r}) == 0\n"
        "except SystemExit as exit_:\n    assert exit_.code == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(outcome.stderr.split())
    assert "dsv_plugins.cli.main" in loaded
    assert not loaded & {"torch", "torchvision", "numpy", "scipy", "sklearn", "lightning", "ray", "optuna"}
    assert outcome.stdout


# ---------------------------------------------------------------------------
# How it ends
# ---------------------------------------------------------------------------


def test_help_explains_every_command(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    for command in ("select", "score", "report", "demo", "bench", "plugins", "check"):
        assert re.search(rf"^ +{command} +\w", out, re.MULTILINE)
        code, own, err = run(command, "--help")
        assert (code, err) == (0, "")
        assert "--debug" in own
        assert ("--json" in own) == (command != "report")


GROUPS = {
    "candidates": ["augmentation", "grid", "search", "search-params", "trials", "rungs", "rung-factor"],
    "detector": ["detector", "detector-params", "preset", "updates", "image-size"],
    "selection": ["holdout", "selector", "selector-params", "keep", "seed"],
    "execution": [
        *("executor", "executor-params", "workers", "timeout", "threads", "observers", "observer-params"),
        *("skip-bad", "out", "plugins"),
    ],
}
"""The flags of a study, by the group under which the help shows them."""
DECIDED_BY_BENCH = {
    *(
        "augmentation",
        "keep",
        "search",
        "search-params",
        "trials",
        "rungs",
        "rung-factor",
        "selector",
        "selector-params",
        "seed",
        "skip-bad",
        "out",
    ),
}


def test_every_setting_with_a_group_is_listed_here():
    grouped = {setting.name.replace("_", "-"): setting.metadata.get("group") for setting in fields(StudySettings)}
    shortcuts = {"preset", "updates", "image-size", "trials"}
    for group, flags in GROUPS.items():
        assert {name for name, its in grouped.items() if its == group} == {*flags} - shortcuts


@pytest.mark.parametrize("command", ["select", "bench"])
def test_help_fits_the_terminal_and_shows_every_setting_in_its_group(run, command):
    _, out, _ = run(command, "--help")
    assert max(map(len, out.splitlines())) <= 80
    assert "<function" not in out
    assert "<class" not in out
    sections = dict(re.findall(r"^(\w+):\n((?:(?:  .*)?\n)+)", out, re.MULTILINE))
    for group, flags in GROUPS.items():
        expected = [flag for flag in flags if command == "select" or flag not in DECIDED_BY_BENCH]
        shown = re.findall(r"^  --([a-z-]+)", sections.get(group, ""), re.MULTILINE)
        assert sorted(shown) == sorted(expected)
        for flag in expected:  # each with a text, beside it or below it
            assert re.search(rf"^  --{flag}\b[^\n]*(\n {{3,}}| {{2,}})\w", sections[group], re.MULTILINE), flag


def test_version(run):
    from importlib import metadata

    assert run("--version") == (0, f"dsv-plugins {metadata.version('dsv-plugins')}\n", "")


@pytest.mark.parametrize(
    ("arguments", "start", "parts"),
    [
        ([], "dsv: ", ["select", "plugins", "see 'dsv --help'"]),
        (["plugin"], "dsv: ", ["'plugin'", "'plugins'", "see 'dsv --help'"]),
        (["plugins", "--jsn"], "dsv plugins: ", ["--jsn", "see 'dsv plugins --help'"]),
        (["plugins", "dsv", "extra"], "dsv plugins: ", ["extra", "see 'dsv plugins --help'"]),
        (["check"], "dsv check: ", ["required: name", "see 'dsv check --help'"]),
        (["check", "dsv", "--kind", "sorter"], "dsv check: ", ["'sorter'", "selector", "see 'dsv check --help'"]),
        (["check", "cutpast"], "dsv check: ", ["'cutpast'", "did you mean 'cutpaste'?", "known: ", "cutout"]),
        (
            ["check", "dsv", "--kind", "augmentation"],
            "dsv check: ",
            ["no augmentation is named 'dsv'", "kind selector"],
        ),
    ],
    ids=" ".join,
)
def test_a_wrong_call_ends_with_2_and_one_line(run, arguments, start, parts):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(start)
    for part in parts:
        assert part in line


@pytest.mark.parametrize("content", ["grid: 3", "a: &a [*a]"])
def test_a_configuration_that_upsets_the_parser_is_one_line(run, tmp_path, content):
    (tmp_path / "bad.yaml").write_text(content)
    code, out, err = run("select", str(tmp_path), "--config", str(tmp_path / "bad.yaml"))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("dsv")


def raising(error: BaseException) -> Callable[[object], int]:
    def command(_: object) -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("the folder\n  x is empty"), 2, r"dsv plugins: the folder\n  x is empty"),
        (errors.TrainingError("the loss is NaN"), 1, "dsv plugins: the loss is NaN"),
        (
            KeyError("patch\nsize"),
            1,
            r"dsv plugins: unexpected KeyError: 'patch\nsize'; add --debug to see where",
        ),
        (
            RuntimeError("can't start new thread"),
            1,
            "dsv plugins: unexpected RuntimeError: can't start new thread (no more threads may be started: raise the "
            "limit, `ulimit -u`, or that of memory, `ulimit -v`); add --debug to see where",
        ),
        (
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            1,
            "dsv plugins: unexpected ImportError: libtorch_cpu.so: failed to map segment from shared object (there is "
            "not enough memory: free some, or raise the limit, `ulimit -v`); add --debug to see where",
        ),
        (OSError(errno.ENAMETOOLONG, "", "ooo"), 2, "dsv plugins: 'ooo' is too long for a path; give a shorter one"),
        # Not our output's reader: an executor's pipe, say. That must not pass for a success.
        (SystemExit(3), 1, "dsv plugins: a plugin called sys.exit(3); add --debug to see where"),
        (KeyboardInterrupt(), 1, "dsv plugins: a plugin raised KeyboardInterrupt; add --debug to see where"),
        (BrokenPipeError("worker"), 1, "dsv plugins: unexpected BrokenPipeError: worker; add --debug to see where"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_line_and_a_traceback_only_on_demand(run, monkeypatch, error, code, line):
    monkeypatch.setattr(plugins, "run", raising(error))
    assert run("plugins") == (code, "", f"{line}\n")
    debugged, out, err = run("plugins", "--debug")
    assert (debugged, out) == (code, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.splitlines()[-1] == line


def test_an_interrupt_ends_with_130_and_no_traceback(run, monkeypatch):
    monkeypatch.setattr(plugins, "run", lambda arguments: signal.raise_signal(signal.SIGINT))
    assert run("plugins") == (130, "", "dsv plugins: interrupted; run the same command again\n")


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),  # the pipe breaks while Python shuts down, or at the first character
    [(["plugins"], ""), (["plugins"], "1"), (["plugins", "--json"], ""), (["--help"], "")],
    ids=str,
)
def test_a_reader_that_has_gone_is_no_error(arguments, unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        outcome = subprocess.run(
            [DSV, *arguments], stdout=writing, stderr=subprocess.PIPE, env=environment, text=True, check=False
        )
    finally:
        os.close(writing)
    assert (outcome.returncode, outcome.stderr) == (0, "")


# ---------------------------------------------------------------------------
# dsv check
# ---------------------------------------------------------------------------


def test_check_runs_the_kit_on_a_plugin_that_conforms(run):
    code, out, err = run("check", "std", "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert (report["kind"], report["name"]) == ("selector", "std")
    assert len(report["checks"]) >= 5
    assert {tuple(row) for row in report["checks"]} == {("check", "status", "reason")}
    assert {row["status"] for row in report["checks"]} == {"passed"}


def test_check_ends_with_1_when_a_check_fails(run, install):
    install(
        "class Broken:\n    def losses(self, evaluations):\n        print('noise')\n        return []\n"
        "@hookimpl\ndef selector():\n    return SelectorPlugin('broken', Broken)"
    )
    code, out, _ = run("check", "broken", "--json")
    assert code == 1
    assert "failed" in {row["status"] for row in json.loads(out)["checks"]}
    code, out, _ = run("check", "broken")
    assert code == 1
    assert "noise" not in out
    assert any(line.split()[1] == "failed" for line in out.splitlines())


def test_check_takes_failures_that_are_expected(run, install):
    install(
        "class Ends:\n    def losses(self, evaluations):\n        return [float('nan') for _ in evaluations]\n"
        "@hookimpl\ndef selector():\n    return SelectorPlugin('ends', Ends)"
    )
    code, out, _ = run("check", "ends", "--json")
    failed = [row["check"] for row in json.loads(out)["checks"] if row["status"] == "failed"]
    assert (code, failed) == (1, ["ranks_ordinary_candidates", "survives_nan_in_one_candidate"])
    code, out, _ = run("check", "ends", "--expect-failed", ",".join(failed))
    assert (code, out.count("expected failure")) == (0, 2)
    code, out, _ = run("check", "ends", "--expect-failed", ",".join([*failed, "repeats_itself"]))
    assert code == 1
    assert "repeats_itself" in next(line for line in out.splitlines() if " failed " in line)
    assert run("check", "ends", "--expect-failed", "repeats_itselves")[0] == 2


def test_check_shows_reasons_literally(run, monkeypatch):
    results = [CheckResult("sound", "passed"), CheckResult("odd", "expected failure", "[red]known[/red] :warning:")]
    monkeypatch.setattr("dsv_plugins.testing.run_checks", lambda record, expected: iter(results))
    code, out, _ = run("check", "dsv")
    assert code == 0
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "check status reason",
        "sound passed",
        "odd expected failure [red]known[/red] :warning:",
    ]


def test_check_asks_which_kind_is_meant(run, install):
    install(
        hook("both") + "\nclass Last:\n    def losses(self, evaluations):\n        return [0.0 for _ in evaluations]\n"
        "@hookimpl\ndef selector():\n    return SelectorPlugin('both', Last)"
    )
    code, out, err = run("check", "both")
    assert (code, out) == (2, "")
    assert err == "dsv check: 'both' is the name of a plugin of kind augmentation and selector; say which with --kind\n"
    _, out, _ = run("check", "both", "--kind", "selector", "--json")
    assert json.loads(out)["kind"] == "selector"
