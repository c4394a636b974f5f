"""The progress of a study, shown where no terminal is."""

from __future__ import annotations

from types import SimpleNamespace

from brightness import SETTINGS, BrightnessPlugins, grey_images

import dsv_plugins.study.display
from dsv_plugins import Candidate, Display, select


def test_lines_tell_what_is_done_and_go_to_the_standard_error(tmp_path, capfd):
    with Display() as display:
        select(
            grey_images(12, 0),
            grey_images(8, 1),
            **SETTINGS,
            grid={"strength": [0.1, 0.2]},
            plugins=(BrightnessPlugins(),),
            observer=display,
            out=tmp_path / "run",
        )
    printed = capfd.readouterr()
    lines = [line for line in printed.err.splitlines() if not line.startswith("note:")]
    assert lines[0] == "training 2 candidates"
    assert [line.rpartition(" s, ")[2] for line in lines[1:]] == ["1 of 2", "2 of 2"]
    assert all(f"brighten(strength={strength}) done in" in printed.err for strength in (0.1, 0.2))
    assert not printed.out


def test_a_long_training_says_how_far_it_is(monkeypatch, capfd):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(dsv_plugins.study.display, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    candidate = Candidate("cutout", {"patch_size": 0.02})
    with Display() as display:
        display.dispatching("run", [candidate], 100)
        for update in range(1, 21):
            display.updated(candidate, update, 100, 0.5)
    said = capfd.readouterr().err.splitlines()[1:]
    assert said[0].startswith("cutout(patch_size=0.02): ")
    assert said[0].endswith("/100 loss 0.500, 0 of 1 done")
    assert 3 <= len(said) <= 10  # every half minute, and no more often
