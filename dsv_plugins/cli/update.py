"""Give the model of a finished study more good images. Nothing is trained."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.cli.options import add_false_alarms, add_plugins, check_rates
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.errors import InputError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run", type=str, help="the run folder of `dsv select`")
    parser.add_argument("images", type=str, help="new good images: a folder, a pattern, or a txt or csv file of paths")
    add_false_alarms(parser)
    add_plugins(parser)
    parser.add_argument("--skip-bad", action="store_true", help="leave out files that cannot be read")


def run(arguments: Namespace) -> int:
    """Let the detector remember one half of the images, and let the other half decide with those that did before."""
    import numpy as np
    import torch

    from dsv_plugins.data.images import BadFile, decode_all, survey
    from dsv_plugins.data.listing import grouped, image_files, stop_at
    from dsv_plugins.data.near_copies import near_copies
    from dsv_plugins.run.model import load
    from dsv_plugins.run.update import update

    check_rates(arguments, "false_alarms")
    terminal = Terminal()

    def note(line: str) -> None:
        terminal.print(literal(f"note: {line}"), soft_wrap=True)

    model = load(arguments.run, plugins=arguments.plugins)
    known = set(model.record.trained_on)
    found, bad = survey(image_files(arguments.images, note))
    new = [file for file in found if file.short_digest not in known]
    outcomes = decode_all([file.path for file in new], model.record.image_size, note, levels=model.record.levels)
    decoded = [(file, outcome) for file, (_, outcome) in zip(new, outcomes, strict=True)]
    good = [(file, pixels) for file, pixels in decoded if not isinstance(pixels, InputError)]
    bad += [BadFile(file.path, str(reason)) for file, reason in decoded if isinstance(reason, InputError)]
    if bad and not arguments.skip_bad:
        raise InputError(stop_at(bad))
    if len(new) < len(found):
        note(f"{len(found) - len(new)} of the {len(found)} images were trained on, and are left out")
    if len(good) < 2:
        raise InputError(f"{arguments.images} holds {len(good)} new good images; give two or more")
    pixels = np.stack([each for _, each in good])
    groups = grouped([file for file, _ in good], near_copies(pixels).tolist())  # in the order of hashes: at random
    remembered = [place for group in groups[::2] for place in group]
    deciding = [group[0] for group in groups[1::2]]  # copies count once
    updated = update(
        model,
        torch.from_numpy(pixels[remembered]),
        torch.from_numpy(pixels[deciding]),
        source=Path(arguments.images),
        digests=[good[place][0].short_digest for place in remembered],
        false_alarms=arguments.false_alarms,
    )
    entry = updated.record.history[-1]
    before = "there was none before" if entry.threshold_before is None else f"before {entry.threshold_before:.4g}"
    terminal.print(
        literal(
            f"{entry.remembered} more good images are remembered, and {entry.deciding} decide, {len(deciding)} of them "
            f"new; the threshold is {entry.threshold:.4g} ({before}) for a false-alarm rate of "
            f"{updated.false_alarms:.3g}; update {len(updated.record.history)} of {arguments.run}"
        ),
        soft_wrap=True,
    )
    return 0
