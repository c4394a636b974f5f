"""What a detector encoder must do."""

from __future__ import annotations

import importlib.util
import math
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor

from dsv_plugins.errors import PluginError
from dsv_plugins.plugins.interfaces import Augmentation, DetectorEncoder, Progress
from dsv_plugins.run.export import ONNX_PACKAGES, Judge, export_judge
from dsv_plugins.testing._randomness import untouched_global_randomness
from dsv_plugins.testing._suite import Suite, demand
from dsv_plugins.transforms import global_randomness, resized

__all__ = ["Checks", "refused_network"]

TIME_LIMIT = 60.0
"""Seconds that a training on a handful of tiny images may take, on a busy machine."""

TRAIN, SIDE = 12, 32
UPDATES, FEW_UPDATES = 20, 2
SAVED_SUFFIXES = (".safetensors", ".json")
TOLERANCE = 1e-3
"""Of equal embeddings and scores, relative to the largest: another batch size adds up in another order."""


class _BlackBands:
    """Blackens a third of the rows, anywhere. Takes any size, as detectors resize their images."""

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        rows = torch.arange(images.shape[2], device=images.device) / images.shape[2]
        starts = torch.rand(len(images), 1, generator=generator, device=images.device) * 2 / 3
        bands = (rows >= starts) & (rows < starts + 1 / 3)
        return images.masked_fill(bands[:, None, :, None], 0.0)


class _Negatives:
    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        return 1 - images


class Checks(Suite[DetectorEncoder]):
    """The checks of a detector encoder."""

    def uses_no_network(self) -> None:
        """Making, training, embedding and scoring work offline and do not even try to connect."""
        with refused_network() as attempts, suppress(Exception):  # whether it can be trained at all is told by others
            self._try_out(_normal_images(), _normal_images() / 255)
        demand(not attempts, f"tries to connect to {', '.join(attempts)}")

    has_all_methods = Suite.has_all_methods  # not before: what making a detector fetches may then be on disk

    def can_be_trained(self) -> None:
        """A training on a handful of tiny images ends without an error."""
        self._detector  # noqa: B018 — it trains

    def fits_in_seconds(self) -> None:
        """A training on a handful of tiny images ends soon; `check_params` may make the detector small."""
        *_, seconds = self._training
        demand(seconds < TIME_LIMIT, f"took {seconds:.0f} s for {UPDATES} updates; make it smaller by check_params")

    def reports_progress(self) -> None:
        """The training calls `progress` with the updates made, the updates planned and the loss."""
        _, calls, _ = self._training
        demand(len(calls) > 0, "never called progress")
        for call in calls:
            sound = len(call) == 3 and 1 <= call[0] <= call[1]
            demand(sound, f"called progress with {call}; give made, planned and loss")

    def encodes_to_one_row_for_each_image(self) -> None:
        """`encode` returns a tensor of shape (images, width)."""
        embeddings: object = self._detector.encode(_normal_images())
        sound = isinstance(embeddings, Tensor) and embeddings.ndim == 2 and len(embeddings) == TRAIN
        demand(sound, f"encode returned {_described(embeddings)} for {TRAIN} images; return one row for each")

    def encodes_to_finite_values(self) -> None:
        """`encode` returns no NaN and no infinity, also for anomalies."""
        for images in (_normal_images(), _anomalous_images()):
            demand(bool(self._detector.encode(images).isfinite().all()), "encode returned NaN or infinite values")

    def encodes_each_image_on_its_own(self) -> None:
        """An embedding does not depend on the images that are encoded along with it."""
        images = torch.cat([_normal_images(), _anomalous_images()])
        together = self._detector.encode(images)
        for size in (1, 5):
            apart = torch.cat([self._detector.encode(batch) for batch in torch.split(images, size)])
            same = _same(apart, together)
            demand(same, f"encode gives other embeddings in batches of {size}; is it in training mode?")

    def encodes_augmented_copies(self) -> None:
        """`encode_augmented` returns one finite row for each image, as wide as those of `encode`."""
        images = _normal_images()
        generator = torch.Generator().manual_seed(0)
        augmented = self._detector.encode_augmented(images, _BlackBands(), generator=generator)
        encoded = self._detector.encode(images)
        same = augmented.shape == encoded.shape
        demand(same, f"encode_augmented returned {_described(augmented)}, encode {_described(encoded)}")
        demand(bool(augmented.isfinite().all()), "encode_augmented returned NaN or infinite values")

    def learns_from_the_augmentation(self) -> None:
        """Another augmentation gives other embeddings or scores, unless the detector says that it needs none."""
        images = _normal_images()
        other = self._train(augmentation=_Negatives())
        mine, others = ((each.encode(images), each.score(images)) for each in (self._detector, other))
        same, learns = all(map(torch.equal, mine, others)), self._detector.learns_from_augmentation
        unused = "neither encode nor score depends on the augmentation in training; use the part that is trained"
        demand(not (learns and same), unused)
        used = "learns_from_augmentation is False, but encode or score depends on the augmentation in training"
        demand(learns or same, used)

    def scores_each_image(self) -> None:
        """`score` returns one finite number for each image."""
        scores = self._detector.score(_normal_images())
        sound = isinstance(scores, Tensor) and scores.shape == (TRAIN,)
        demand(sound, f"score returned {_described(scores)} for {TRAIN} images; return one number for each")
        demand(bool(scores.isfinite().all()), "score returned NaN or infinite values")

    def scores_anomalies_higher(self) -> None:
        """An obvious anomaly scores higher than the normal images."""
        normal, anomalous = (float(self._detector.score(i).mean()) for i in (_normal_images(), _anomalous_images()))
        demand(anomalous > normal, f"scores {anomalous:g} for obvious anomalies and {normal:g} for normal images")

    def repeats_itself(self) -> None:
        """The same seed gives the same embeddings, for any state of the global random generators."""
        with global_randomness() as seed_all:
            seed_all(1)
            again = self._train()
        images = _normal_images()
        same = _same(again.encode(images), self._detector.encode(images))
        demand(same, "a second training with the same seed gives other embeddings")

    def takes_integers_and_floats(self) -> None:
        """Images as uint8 and as floats in [0, 1] have the same embeddings and scores."""
        integers = _normal_images()
        floats = integers.float() / 255
        for method in (self._detector.encode, self._detector.score):
            demand(_same(method(floats), method(integers)), f"{method.__name__} tells uint8 from float images")

    def does_not_modify_its_input(self) -> None:
        """Training, embedding and scoring leave the images as they are."""
        integers, floats = _normal_images(), _normal_images() / 255
        self._try_out(integers, floats)
        untouched = torch.equal(integers, _normal_images()) and torch.equal(floats, _normal_images() / 255)
        demand(untouched, "changes the images it is given; work on a copy")

    def loads_what_it_saved(self) -> None:
        """A new object that loads what this one saved has the same embeddings and scores."""
        images = torch.cat([_normal_images(), _anomalous_images()])
        loaded = self._reloaded(self._detector)
        demand(_same(loaded.encode(images), self._detector.encode(images)), "other embeddings after save and load")
        demand(_same(loaded.score(images), self._detector.score(images)), "other scores after save and load")

    def exports_the_same_scores(self) -> None:
        """The module of `as_module`, if there is one, has the scores and heatmaps of the detector itself.

        `dsv export` takes it: for any number of images, and to ONNX if `dsv-plugins[onnx]` is installed.
        """
        detector = self._detector
        module = detector.as_module()
        if module is None:
            return
        size = detector.image_size or SIDE
        images = resized(torch.cat([_normal_images(), _anomalous_images()]), size)
        with torch.no_grad():
            outputs = module(images)
        heatmaps = detector.heatmap(images)
        expected = [detector.score(images)] if heatmaps is None else [detector.score(images), heatmaps]
        sound = isinstance(outputs, tuple) and len(outputs) == len(expected)
        demand(sound, f"the module returned {_described(outputs)}; return a tuple of scores, and of heatmaps if any")
        for name, output, wanted in zip(("scores", "heatmaps"), outputs, expected, strict=False):
            demand(_same(output, wanted), f"the module of as_module has other {name}")
        has_onnx = all(importlib.util.find_spec(package) for package in ONNX_PACKAGES)
        try:
            export_judge(Judge(module, size).eval(), "onnx" if has_onnx else "torch", {})
        except PluginError as error:
            raise AssertionError(f"the module of as_module cannot be exported: {error}") from error

    def starts_alike(self) -> None:
        """A detector with `shared_updates` ends the same, whether it made its shared start itself or loaded it."""
        first = self._build()
        if not first.shared_updates:
            return
        images = _normal_images()
        first.fit_shared_start(images, seed=0)
        second = self._reloaded(first)
        second.fit(images, _BlackBands(), updates=UPDATES, seed=0)
        same = _same(second.encode(images), self._detector.encode(images))
        demand(same, "other embeddings if the shared start was saved and loaded; it may depend on images and seed only")

    def saves_no_pickle(self) -> None:
        """`save` writes safetensors and JSON only: files that are safe to load from strangers."""
        with tempfile.TemporaryDirectory() as folder:
            self._detector.save(Path(folder))
            files = [path.name for path in Path(folder).rglob("*") if path.is_file()]
        demand(len(files) > 0, "save wrote no file")
        others = [name for name in files if not name.endswith(SAVED_SUFFIXES)]
        demand(not others, f"save wrote {', '.join(others)}; write {' and '.join(SAVED_SUFFIXES)} files only")

    def leaves_global_randomness_alone(self) -> None:
        """The global generators of torch, `random` and numpy are the same after training, embedding and scoring."""
        with untouched_global_randomness():
            self._try_out(_normal_images(), _normal_images() / 255)

    @property
    def _detector(self) -> DetectorEncoder:
        return self._training[0]

    @cached_property
    def _training(self) -> tuple[DetectorEncoder, list[tuple[Any, ...]], float]:
        """The one training that most checks look at: the detector, the calls of `progress`, and the seconds."""
        calls: list[tuple[Any, ...]] = []
        begin = time.perf_counter()
        detector = self._train(progress=lambda *numbers: calls.append(numbers))
        return detector, calls, time.perf_counter() - begin

    def _train(
        self,
        images: Tensor | None = None,
        augmentation: Augmentation | None = None,
        updates: int = UPDATES,
        progress: Progress = lambda *_: None,
    ) -> DetectorEncoder:
        detector = self._build()
        images = _normal_images() if images is None else images
        detector.fit(images, augmentation or _BlackBands(), updates=updates, seed=0, progress=progress)
        return detector

    def _reloaded(self, detector: DetectorEncoder) -> DetectorEncoder:
        """A new object that has loaded what another one saved."""
        loaded = self._build()
        with tempfile.TemporaryDirectory() as folder:
            detector.save(Path(folder))
            loaded.load(Path(folder))
        return loaded

    def _try_out(self, integers: Tensor, floats: Tensor) -> None:
        """Make a detector, train it for a moment, embed and score: for checks of what else happens meanwhile."""
        detector = self._train(integers, updates=FEW_UPDATES)
        for images in (integers, floats):
            detector.encode(images)
            detector.score(images)


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


def _same(first: Tensor, second: Tensor) -> bool:
    largest = float(second.abs().max())
    return first.shape == second.shape and torch.allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE * largest)


def _described(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


@contextmanager
def refused_network() -> Iterator[list[str]]:
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
