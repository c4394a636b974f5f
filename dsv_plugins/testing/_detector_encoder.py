"""What a detector encoder must do."""

from __future__ import annotations

import math
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor

from dsv_plugins.plugins.interfaces import Augmentation, DetectorEncoder
from dsv_plugins.testing._randomness import untouched_global_randomness
from dsv_plugins.testing._suite import (
    Subject,
    Suite,
    demand,
    has_all_methods,
    has_sound_record,
)
from dsv_plugins.transforms import global_randomness, resized

__all__ = ["SUITE"]

TIME_LIMIT = 60.0
"""Seconds that a training on a handful of tiny images may take, on a busy machine."""

TRAIN, SIDE = 12, 32
UPDATES, FEW_UPDATES = 20, 2
SAVED_SUFFIXES = (".safetensors", ".json")
TOLERANCE = 1e-3
"""Of equal embeddings and scores, relative to the largest: another batch size adds up in another order."""


class _BlackSquares:
    """Blackens a rectangle of a third of the sides, anywhere. Takes any size, as detectors resize their images."""

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        down, across = torch.rand(2, len(images), 1, generator=generator, device=images.device)
        rows, columns = _third(images.shape[2], down), _third(images.shape[3], across)
        return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


class _Negatives:
    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        return 1 - images


@dataclass(frozen=True)
class _Training:
    """A detector after its training, and what was seen of it."""

    detector: DetectorEncoder
    progress: list[tuple[Any, ...]]
    seconds: float


class _Subject(Subject[DetectorEncoder]):
    @cached_property
    def training(self) -> _Training:
        """The one training that most checks look at."""
        return self.train()

    @property
    def detector(self) -> DetectorEncoder:
        return self.training.detector

    def train(
        self, images: Tensor | None = None, augmentation: Augmentation | None = None, updates: int = UPDATES
    ) -> _Training:
        images = _normal_images() if images is None else images
        progress: list[tuple[Any, ...]] = []
        detector = self.build()
        begin = time.perf_counter()
        detector.fit(
            images,
            augmentation or _BlackSquares(),
            updates=updates,
            seed=0,
            progress=lambda *numbers: progress.append(numbers),
        )
        return _Training(detector, progress, time.perf_counter() - begin)

    def try_out(self, integers: Tensor, floats: Tensor) -> None:
        """Make a detector, train it for a moment, embed and score: for checks of what else happens meanwhile."""
        detector = self.train(integers, updates=FEW_UPDATES).detector
        for images in (integers, floats):
            detector.encode(images)
            detector.score(images)


def can_be_trained(subject: _Subject) -> None:
    """A training on a handful of tiny images ends without an error."""
    subject.training  # noqa: B018 — it trains


def fits_in_seconds(subject: _Subject) -> None:
    """A training on a handful of tiny images ends soon; `check_params` may make the detector small."""
    seconds = subject.training.seconds
    demand(seconds < TIME_LIMIT, f"took {seconds:.0f} s for {UPDATES} updates; make it smaller by check_params")


def reports_progress(subject: _Subject) -> None:
    """The training calls `progress` with the updates made, the updates planned and the loss."""
    calls = subject.training.progress
    demand(len(calls) > 0, "never called progress")
    for call in calls:
        demand(len(call) == 3 and 1 <= call[0] <= call[1], f"called progress with {call}; give made, planned and loss")


def encodes_to_one_row_for_each_image(subject: _Subject) -> None:
    """`encode` returns a tensor of shape (images, width)."""
    embeddings: object = subject.detector.encode(_normal_images())
    sound = isinstance(embeddings, Tensor) and embeddings.ndim == 2 and len(embeddings) == TRAIN
    demand(sound, f"encode returned {_described(embeddings)} for {TRAIN} images; return one row for each")


def encodes_to_finite_values(subject: _Subject) -> None:
    """`encode` returns no NaN and no infinity, also for anomalies."""
    for images in (_normal_images(), _anomalous_images()):
        demand(bool(subject.detector.encode(images).isfinite().all()), "encode returned NaN or infinite values")


def encodes_each_image_on_its_own(subject: _Subject) -> None:
    """An embedding does not depend on the images that are encoded along with it."""
    images = torch.cat([_normal_images(), _anomalous_images()])
    together = subject.detector.encode(images)
    for size in (1, 5):
        apart = torch.cat([subject.detector.encode(batch) for batch in torch.split(images, size)])
        demand(_same(apart, together), f"encode gives other embeddings in batches of {size}; is it in training mode?")


def encodes_augmented_copies(subject: _Subject) -> None:
    """`encode_augmented` returns one finite row for each image, as wide as those of `encode`."""
    images = _normal_images()
    generator = torch.Generator().manual_seed(0)
    augmented = subject.detector.encode_augmented(images, _BlackSquares(), generator=generator)
    expected = subject.detector.encode(images).shape
    demand(augmented.shape == expected, f"encode_augmented returned {_described(augmented)}, encode {tuple(expected)}")
    demand(bool(augmented.isfinite().all()), "encode_augmented returned NaN or infinite values")


def learns_from_the_augmentation(subject: _Subject) -> None:
    """Another augmentation gives other embeddings or scores, unless the detector says that it needs none."""
    images = _normal_images()
    other = subject.train(augmentation=_Negatives()).detector
    is_same = torch.equal(subject.detector.encode(images), other.encode(images))
    scores_same = torch.equal(subject.detector.score(images), other.score(images))
    if subject.detector.learns_from_augmentation:
        message = "neither encode nor score depends on the augmentation in training; use the part that is trained"
        demand(not (is_same and scores_same), message)
    else:
        message = "learns_from_augmentation is False, but encode or score depends on the augmentation in training"
        demand(is_same and scores_same, message)


def scores_each_image(subject: _Subject) -> None:
    """`score` returns one finite number for each image."""
    scores = subject.detector.score(_normal_images())
    sound = isinstance(scores, Tensor) and scores.shape == (TRAIN,)
    demand(sound, f"score returned {_described(scores)} for {TRAIN} images; return one number for each")
    demand(bool(scores.isfinite().all()), "score returned NaN or infinite values")


def scores_anomalies_higher(subject: _Subject) -> None:
    """An obvious anomaly scores higher than the normal images."""
    normal, anomalous = (float(subject.detector.score(i).mean()) for i in (_normal_images(), _anomalous_images()))
    demand(anomalous > normal, f"scores {anomalous:g} for obvious anomalies and {normal:g} for normal images")


def repeats_itself(subject: _Subject) -> None:
    """The same seed gives the same embeddings, for any state of the global random generators."""
    with global_randomness() as seed_all:
        seed_all(1)
        again = subject.train().detector
    images = _normal_images()
    same = _same(again.encode(images), subject.detector.encode(images))
    demand(same, "a second training with the same seed gives other embeddings")


def takes_integers_and_floats(subject: _Subject) -> None:
    """Images as uint8 and as floats in [0, 1] have the same embeddings and scores."""
    integers = _normal_images()
    floats = integers.float() / 255
    for method in (subject.detector.encode, subject.detector.score):
        demand(_same(method(floats), method(integers)), f"{method.__name__} tells uint8 from float images")


def does_not_modify_its_input(subject: _Subject) -> None:
    """Training, embedding and scoring leave the images as they are."""
    integers, floats = _normal_images(), _normal_images() / 255
    subject.try_out(integers, floats)
    untouched = torch.equal(integers, _normal_images()) and torch.equal(floats, _normal_images() / 255)
    demand(untouched, "changes the images it is given; work on a copy")


def loads_what_it_saved(subject: _Subject) -> None:
    """A new object that loads what this one saved has the same embeddings and scores."""
    images = torch.cat([_normal_images(), _anomalous_images()])
    with tempfile.TemporaryDirectory() as folder:
        subject.detector.save(Path(folder))
        loaded = subject.build()
        loaded.load(Path(folder))
    demand(_same(loaded.encode(images), subject.detector.encode(images)), "other embeddings after save and load")
    demand(_same(loaded.score(images), subject.detector.score(images)), "other scores after save and load")


def exports_the_same_scores(subject: _Subject) -> None:
    """The module of `as_module`, if there is one, has the scores and heatmaps of the detector itself."""
    detector = subject.detector
    module = detector.as_module()
    if module is None:
        return
    images = resized(torch.cat([_normal_images(), _anomalous_images()]), detector.image_size or SIDE)
    with torch.no_grad():
        outputs = module(images)
    sound = isinstance(outputs, tuple) and len(outputs) in (1, 2)
    demand(sound, f"the module returned {_described(outputs)}; return a tuple of scores, or of scores and heatmaps")
    scores, *heatmaps = outputs
    demand(_same(scores, detector.score(images)), "the module of as_module has other scores")
    expected = detector.heatmap(images)
    demand((expected is None) == (not heatmaps), "as_module and heatmap do not agree on whether there are heatmaps")
    if expected is not None:
        demand(_same(heatmaps[0], expected), "the module of as_module has other heatmaps")


def starts_alike(subject: _Subject) -> None:
    """A detector with `shared_updates` ends the same, whether it made its shared start itself or loaded it."""
    first = subject.build()
    if not first.shared_updates:
        return
    images = _normal_images()
    first.fit_shared_start(images, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second = subject.build()
        second.load(Path(folder))
    second.fit(images, _BlackSquares(), updates=UPDATES, seed=0)
    same = _same(second.encode(images), subject.detector.encode(images))
    demand(same, "other embeddings if the shared start was saved and loaded; it may depend on images and seed only")


def saves_no_pickle(subject: _Subject) -> None:
    """`save` writes safetensors and JSON only: files that are safe to load from strangers."""
    with tempfile.TemporaryDirectory() as folder:
        subject.detector.save(Path(folder))
        files = [path.name for path in Path(folder).rglob("*") if path.is_file()]
    demand(len(files) > 0, "save wrote no file")
    others = [name for name in files if not name.endswith(SAVED_SUFFIXES)]
    demand(not others, f"save wrote {', '.join(others)}; write {' and '.join(SAVED_SUFFIXES)} files only")


def uses_no_network(subject: _Subject) -> None:
    """Making, training, embedding and scoring work offline and do not even try to connect."""
    with _refused_network() as attempts, suppress(Exception):  # whether it can be trained at all is told by others
        subject.try_out(_normal_images(), _normal_images() / 255)
    demand(not attempts, f"tries to connect to {', '.join(attempts)}")


def leaves_global_randomness_alone(subject: _Subject) -> None:
    """The global generators of torch, `random` and numpy are the same after training, embedding and scoring."""
    with untouched_global_randomness():
        subject.try_out(_normal_images(), _normal_images() / 255)


SUITE = Suite(
    _Subject,
    (
        has_sound_record,
        uses_no_network,  # before another check makes a detector, which may then find what it fetched on disk
        has_all_methods,
        can_be_trained,
        fits_in_seconds,
        reports_progress,
        encodes_to_one_row_for_each_image,
        encodes_to_finite_values,
        encodes_each_image_on_its_own,
        encodes_augmented_copies,
        learns_from_the_augmentation,
        scores_each_image,
        scores_anomalies_higher,
        repeats_itself,
        takes_integers_and_floats,
        does_not_modify_its_input,
        loads_what_it_saved,
        exports_the_same_scores,
        starts_alike,
        saves_no_pickle,
        leaves_global_randomness_alone,
    ),
)


def _normal_images() -> Tensor:
    """Smooth, slightly noisy RGB images as uint8; the same at every call."""
    waves = (torch.arange(SIDE) * (2 * math.pi / SIDE)).sin()
    smooth = 0.5 + 0.15 * waves[:, None] + 0.15 * waves[None, :]
    noise = torch.randn(TRAIN, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return ((smooth + 0.03 * noise).clamp(0, 1) * 255).to(torch.uint8)


def _anomalous_images() -> Tensor:
    """The normal images, each with a large block of black and white."""
    images = _normal_images()
    half, quarter = SIDE // 2, SIDE // 4
    images[:, :, quarter:half, quarter:-quarter] = 0
    images[:, :, half:-quarter, quarter:-quarter] = 255
    return images


def _third(length: int, start: Tensor) -> Tensor:
    """Which of `length` places lie in a third of them that begins at a share `start` of the rest."""
    steps = torch.arange(length, device=start.device) / length - start * 2 / 3
    return (steps >= 0) & (steps < 1 / 3)


def _same(first: Tensor, second: Tensor) -> bool:
    largest = float(second.abs().max())
    return first.shape == second.shape and torch.allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE * largest)


def _described(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


@contextmanager
def _refused_network() -> Iterator[list[str]]:
    """Refuse connections, and list those that were tried: a plugin may continue without what it could not fetch."""
    attempts: list[str] = []
    connect = socket.socket.connect

    def refuse(address: object) -> NoReturn:
        attempts.append(str(address))
        raise ConnectionRefusedError(f"the conformance kit refuses the connection to {address}")

    def refuse_unless_local(self: socket.socket, address: Any) -> None:
        if self.family != getattr(socket, "AF_UNIX", None):  # by which processes of one machine talk
            refuse(address)
        connect(self, address)

    with (
        mock.patch.object(socket.socket, "connect", refuse_unless_local),
        mock.patch.object(socket, "getaddrinfo", lambda host, *_, **__: refuse(host)),
    ):
        yield attempts
