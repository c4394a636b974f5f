"""What a plugin's object must be able to do, with a complete working plugin for each kind.

`DetectorEncoder` and `Executor` are base classes: what is optional has a default there. `Augmentation` and `Selector`
are protocols: any object with that method will do.

Images are tensors of shape (images, channels, height, width): either uint8 from 0 to 255 or floating point from 0 to 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from dsv_plugins.types import Evaluation

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["Augmentation", "DetectorEncoder", "Executor", "Outcome", "Progress", "ResamplingSelector", "Selector"]

Job = TypeVar("Job")
Value = TypeVar("Value")

Progress = Callable[[int, int, float], None]
"""Called by a training after an update, with the updates made, the updates planned and the loss."""


@runtime_checkable
class Augmentation(Protocol):
    """Makes pseudo-anomalies out of normal images.

    A complete plugin:

    ```python
    import torch
    from dsv_plugins import AugmentationPlugin, hookimpl


    class Stripe:
        \"\"\"Blackens some rows of each image, at a random height.\"\"\"

        def __init__(self, thickness):
            self.thickness = thickness

        def __call__(self, images, *, generator):
            count, _, height, _ = images.shape
            tops = torch.randint(height, (count, 1), generator=generator, device=images.device)
            rows = torch.arange(height, device=images.device)
            striped = (rows >= tops) & (rows < tops + self.thickness)
            return images.masked_fill(striped[:, None, :, None], 0.0)


    @hookimpl
    def augmentation():
        return AugmentationPlugin(
            name="stripe", factory=Stripe, space={"thickness": [1, 2, 4]}, summary="A black stripe in each image"
        )
    ```
    """

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return augmented copies of the images.

        Args:
            images: Floating point in [0, 1], of shape (images, channels, height, width). Not to be modified.
            generator: The only source of randomness, on the images' device. Each image draws its own.

        Returns:
            A tensor of the same shape, type and device, in [0, 1].
        """
        ...


class DetectorEncoder(ABC):
    """A detector that learns from pseudo-anomalies and exposes the embedding it learned.

    Derive from this class and write `fit`, `encode`, `score`, `save` and `load`. The rest has defaults.

    Attributes:
        image_size: The pixels per side at which to load images; None if any size will do.
        keeps_aspect: Whether images that are not square are loaded as they are, with the area of a square of that size.
        updates: The whole training budget. A search can spend a part of it only if it is known.
        shared_updates: How many updates `fit_shared_start` makes; 0 if the detector has no shared start.
        has_frozen_part: Whether `frozen_features` says what a part that is never trained makes of images.
        frozen_settings: The settings that the frozen part depends on; None for all. Candidates that differ in others
            share its features.
        learns_from_augmentation: Whether training looks at pseudo-anomalies. If not, a study has one candidate for each
            of its settings.
        merges: Whether detectors that learned from different augmentations can become one, by `merge`.

    A complete plugin:

    ```python
    import torch
    from safetensors.torch import load_file, save_file
    from torch import nn
    from dsv_plugins import DetectorEncoder, DetectorEncoderPlugin, hookimpl


    class LinearDetector(DetectorEncoder):
        \"\"\"One linear layer on a small version of the image, trained to tell normal from augmented.\"\"\"

        def __init__(self, width=8):
            self.width = width

        def fit(self, images, augmentation, *, updates=None, seed=0, progress=None):
            generator = torch.Generator().manual_seed(seed)
            normal = pixels(images)
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.encoder = nn.Linear(192, self.width)
                head = nn.Linear(self.width, 1)
            optimizer = torch.optim.Adam([*self.encoder.parameters(), *head.parameters()], lr=0.01)
            updates = updates or 50
            for update in range(updates):
                augmented = pixels(augmentation(as_float(images), generator=generator))
                logits = head(self.encoder(torch.cat([normal, augmented]))).squeeze(1)
                target = torch.cat([torch.zeros(len(normal)), torch.ones(len(augmented))])
                loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if progress:
                    progress(update + 1, updates, loss.item())
            self.centre = self.encode(images).mean(dim=0)

        @torch.no_grad()
        def encode(self, images):
            return self.encoder(pixels(images))

        def score(self, images):
            return (self.encode(images) - self.centre).norm(dim=1)

        def save(self, folder):
            save_file({**self.encoder.state_dict(), "centre": self.centre}, folder / "linear.safetensors")

        def load(self, folder):
            tensors = load_file(folder / "linear.safetensors")
            self.centre = tensors.pop("centre")
            self.encoder = nn.Linear(192, self.width)
            self.encoder.load_state_dict(tensors)


    def as_float(images):
        return images if images.is_floating_point() else images.float() / 255


    def pixels(images):
        rgb = as_float(images).expand(-1, 3, -1, -1)
        return nn.functional.adaptive_avg_pool2d(rgb, 8).flatten(1)


    @hookimpl
    def detector_encoder():
        return DetectorEncoderPlugin(
            name="linear", factory=LinearDetector, summary="One linear layer", check_params={"width": 4}
        )
    ```
    """

    image_size: int | None = None
    keeps_aspect: bool = False
    updates: int | None = None
    shared_updates: int = 0
    has_frozen_part: bool = False
    frozen_settings: Sequence[str] | None = None
    learns_from_augmentation: bool = True
    merges: bool = False

    @property
    def training_accuracy(self) -> float | None:
        """The share of the last training images told apart correctly; None if the detector does not count them."""
        return None

    @abstractmethod
    def fit(
        self,
        images: Tensor,
        augmentation: Augmentation,
        *,
        updates: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Train on normal images against their augmented copies.

        Args:
            images: The normal images, uint8; may be memory-mapped and larger than memory.
            augmentation: Makes the pseudo-anomalies.
            updates: Train until this many updates have been made in all, resuming from those made before; a detector
                that cannot resume starts again. None for the detector's whole budget.
            seed: Fixes the initial weights, the batches and every draw of the augmentation.
            progress: Called after updates.
        """

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Embed images with the part that training shaped: (images, width), each row independent of the others."""

    def encode_augmented(self, images: Tensor, augmentation: Augmentation, *, generator: torch.Generator) -> Tensor:
        """Embed one augmented copy of each image. A detector that augments in feature space overrides this."""
        if not images.is_floating_point():
            images = images.float() / 255
        return self.encode(augmentation(images, generator=generator))

    @abstractmethod
    def score(self, images: Tensor) -> Tensor:
        """One anomaly score per image, higher for more anomalous."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the trained detector into an existing folder: safetensors and JSON, no pickle."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read what `save` wrote, into a detector made with the same settings."""

    def heatmap(self, images: Tensor) -> Tensor | None:
        """How unusual each place of each image is: (images, height, width), of any size; None if it cannot say."""
        return None

    def as_module(self) -> nn.Module | None:
        """The trained detector as one module that can be exported; None if there is none.

        It takes floating-point images in [0, 1] of shape (images, 3, height, width) at the detector's image size. It
        returns a tuple: the scores, and the heatmaps behind them if the detector has any. `dsv export` traces it.
        """
        return None

    def frozen_features(self, images: Tensor) -> Mapping[str, Tensor]:
        """What the part that is never trained makes of images: tensors by name, a row for each image.

        A study computes them once for its train and test images, and hands them to `reuse_features` of each candidate.
        It gives some images at a time: a row must depend on nothing but its image and the detector's settings.
        """
        raise NotImplementedError(f"{type(self).__name__} has a frozen part and no frozen_features")

    def reuse_features(self, images: Tensor, features: Mapping[str, Tensor]) -> None:
        """Take the frozen features of exactly these images (this very object) from there, from now on."""
        raise NotImplementedError(f"{type(self).__name__} has a frozen part and no reuse_features")

    def prepare(self, images: Tensor) -> None:
        """Let the frozen part, if there is one, see these very images once for all calls that follow."""
        if self.has_frozen_part:
            self.reuse_features(images, self.frozen_features(images))

    def prepare_copies(self, augmented: Tensor, images: Tensor, rows: Tensor) -> None:
        """Let the frozen part, if there is one, see augmented copies of `images[rows]` once for all calls that follow.

        A detector that remembers images overrides this, to judge a copy without the image that it is a copy of.
        """
        self.prepare(augmented)

    def learned_copies(self) -> tuple[Tensor, Tensor] | None:
        """The embeddings and scores of the augmented copies that `fit` learned from, if there is one of each image.

        None to have new copies made, which shows what was learned on copies that were not learned from. A detector
        whose embedding does not depend on what it learns returns them: a study then computes each copy once.
        """
        return None

    def merge(self, folders: Sequence[Path], shares: Sequence[float], scales: Sequence[tuple[float, float]]) -> None:
        """Become one detector of several with the same settings, images and seed, if `merges`.

        Its score is the sum of share · (score - mean) / deviation over them, its heatmap the sum of share · heatmap.

        Args:
            folders: What `save` wrote of each.
            shares: How much each counts; they add up to 1.
            scales: The mean and the deviation of the scores of each.
        """
        raise NotImplementedError(f"{type(self).__name__} merges and has no merge")

    def remember(self, images: Tensor) -> None:
        """Add good images to what it knows, without training, for `dsv update`."""
        raise NotImplementedError(f"{type(self).__name__} has no remember")

    def parts(self) -> Mapping[str, float]:
        """What the score is made of, in words, with the share of each part; empty if that cannot be said."""
        return {}

    def warm_up(self) -> None:  # noqa: B027 — optional
        """Import what a training needs, and no more: workers may be forked after it, and lose threads and GPUs then."""

    def fit_shared_start(self, images: Tensor, *, seed: int = 0, progress: Progress | None = None) -> None:
        """Make the first `shared_updates` updates, which must not depend on the augmentation.

        A study makes them once. Each candidate's `fit` then resumes from what `save` wrote after them.
        """
        raise NotImplementedError(f"{type(self).__name__} has shared_updates and no fit_shared_start")


@runtime_checkable
class Selector(Protocol):
    """Ranks candidates without labels.

    A complete plugin:

    ```python
    from dsv_plugins import SelectorPlugin, hookimpl


    class ScoreSpread:
        \"\"\"Prefers the detector whose test scores are spread the most, relative to its train scores.\"\"\"

        def losses(self, evaluations):
            return [-float(e.scores.test.std() / (e.scores.train.std() + 1e-12)) for e in evaluations]


    @hookimpl
    def selector():
        return SelectorPlugin(
            name="score-spread", factory=ScoreSpread, judges_alone=True, summary="Largest spread of the test scores"
        )
    ```
    """

    def losses(self, evaluations: Sequence[Evaluation]) -> Sequence[float]:
        """One loss for each candidate, lower is better. NaN and infinite losses rank last."""
        ...


@runtime_checkable
class ResamplingSelector(Selector, Protocol):
    """A selector that is faster on many resamples of the test images at once than on one after the other.

    A study resamples them to measure how clear a choice is. Only a selector that judges each candidate alone, and does
    not look at held-out images, can be one.
    """

    def resampled_losses(self, evaluations: Sequence[Evaluation], test_rows: Tensor) -> Tensor:
        """What `losses` would return for each resample, as a tensor of shape (resamples, candidates).

        Args:
            evaluations: The candidates.
            test_rows: The rows of the test set that each resample draws, of shape (resamples, rows).
        """
        ...


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Value]):
    """How one job ended: with a value or with an error.

    Attributes:
        index: Place of the job in the sequence that was given to the executor.
        value: What the work returned, if it did.
        error: What it raised, if it did.
        note: What the user should know of how it came about, such as that a worker died and another took over.
    """

    index: int
    value: Value | None = None
    error: BaseException | None = None
    note: str = ""


class Executor(ABC):
    """Runs independent jobs: one after the other, in processes, on a cluster.

    Derive from this class and write `run`. A complete plugin:

    ```python
    from concurrent.futures import ThreadPoolExecutor, as_completed
    from dsv_plugins import Executor, ExecutorPlugin, Outcome, hookimpl


    class Threads(Executor):
        def __init__(self, workers=2):
            self.workers = workers

        def run(self, work, jobs):
            with ThreadPoolExecutor(self.workers) as pool:
                futures = {pool.submit(work, job): index for index, job in enumerate(jobs)}
                for future in as_completed(futures):
                    error = future.exception()
                    yield Outcome(futures[future], None if error else future.result(), error)


    @hookimpl
    def executor():
        return ExecutorPlugin(name="threads", factory=Threads, summary="Threads of this process")
    ```
    """

    @property
    def parallelism(self) -> int:
        """How many jobs run at once; used to estimate times."""
        return 1

    def limited(self, *, jobs: int | None = None, seconds: float | None = None) -> Executor:
        """This executor for at most so many jobs at once, each of which may take so many seconds.

        A study asks for it before it starts. An executor without such limits returns itself. A training that reports
        its progress keeps to the seconds by itself; stopping one that does not is up to the executor.
        """
        return self

    def warmed_up(self, prepare: Callable[[], None]) -> AbstractContextManager[None]:
        """A context manager around a whole study, entered before its jobs are known.

        On entering, the executor may start its workers and let each call `prepare()`, without waiting for them. If the
        block ends with an exception, it must end them.
        """
        return nullcontext()

    @abstractmethod
    def run(self, work: Callable[[Job], Value], jobs: Sequence[Job]) -> Iterator[Outcome[Value]]:
        """Yield one outcome for each job as it ends, in any order.

        Args:
            work: A top-level function, so that it can be pickled.
            jobs: Its arguments, one for each call.
        """
