"""What a model needs to have its augmentation selected, as one declarative entry for each model.

Free of torch and anomalib, so that plugins can be listed quickly; functions of an entry import what they need.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsv_anomalib.importing import import_anomalib
from dsv_anomalib.weights import Backbone
from dsv_plugins import DetectorEncoderPlugin, PluginError

if TYPE_CHECKING:
    from anomalib.models.components import AnomalibModule
    from torch import Tensor

    from dsv_anomalib.detector import AnomalibDetector

__all__ = ["DEFAULT_UPDATES", "PREFIX", "Entry", "FeatureSpace", "ImageSpace", "Pooling", "Tap"]

PREFIX = "anomalib-"
IMAGES, FEATURES, QUANTISED = "images", "features", "quantised features"
"""What augmentations change."""
DEFAULT_UPDATES = 1000

Pooling = Literal["mean", "max", "topk"]

Tap = Callable[[Any, "Tensor"], "Tensor | Sequence[Tensor]"]
"""From a module and pre-processed images to features of the trained part: (images, width), (images, patches, width),
(images, width, height, width), or several of these."""


@dataclass(frozen=True)
class ImageSpace:
    """Where a model makes pseudo-anomalies out of images; any augmentation plugin can take that place.

    Attributes:
        place: Attribute of the module that holds its own generator, with dots, such as "model.augmentor".
        probability: Share of the training images that the model wants changed.
        normalised: Whether the images that arrive there were normalised by the pre-processor.
        masked: Whether the generator returns the mask of what it changed beside the images; None to ask it once.
    """

    place: str
    probability: float = 1.0
    normalised: bool = False
    masked: bool | None = None


@dataclass(frozen=True)
class FeatureSpace:
    """How a model makes pseudo-anomalies out of features.

    Attributes:
        augmentation: Name of the augmentation plugin that carries the hyperparameters.
        kind: What that augmentation changes.
        settings: The module's attribute, with dots, behind each hyperparameter.
        tap: Like `Entry.tap`, for one pseudo-anomaly of each image; draws on the global generators.
    """

    augmentation: str
    settings: Mapping[str, str]
    tap: Tap
    kind: str = FEATURES


@dataclass(frozen=True)
class Entry:
    """A model whose augmentation can be selected.

    ```python
    entry = Entry(
        name="mine",
        model=MyModel,
        tap=lambda module, images: module.model.encoder(images),
        image=ImageSpace("augmenter"),
    )
    selected = dsv_anomalib.select(model=entry, datamodule=datamodule)
    ```

    Attributes:
        name: Its detector plugin is called "anomalib-" and this.
        model: Its class, or the path to it, such as "anomalib.models.image.draem.Draem".
        tap: The features of the part that training shapes.
        summary: One line for the table of plugins.
        image_size: Height and width at which it works by default.
        least_image_size: The smallest with which it can be trained.
        image: How it makes pseudo-anomalies out of images, if it does.
        features: How it makes them out of features, if it does.
        pooling: How features of patches become one vector.
        build: Makes the module from keyword arguments, if calling the class is not enough.
        backbone: The network of timm on which it is built, if it is.
        preflight: Called with the model's arguments before any training, if it fetches other weights than those of its
            backbone; raises `InputError` if they cannot be had.
        weights_off: Arguments with which it fetches none.
        check_params: Settings with which the conformance kit can train it in seconds.
        experimental: Whether it was never measured what a selector's choice is worth for it.
        remembers: Whether it stores features of normal images, and makes no pseudo-anomalies. Then there is nothing to
            select; it is a rival of the others.
        passes: How often a model that remembers has to see each image.
        own_augmentation: Name of the augmentation plugin that is its own synthesis, which is selected by default; if
            None, that of its features, or "cutpaste" if it works on images.
    """

    name: str
    model: str | type[AnomalibModule]
    tap: Tap
    summary: str = ""
    image_size: int = 256
    least_image_size: int = 1
    image: ImageSpace | None = None
    features: FeatureSpace | None = None
    pooling: Pooling = "mean"
    build: Callable[..., AnomalibModule] | None = None
    backbone: Backbone | None = None
    preflight: Callable[[Mapping[str, object]], None] | None = None
    weights_off: Mapping[str, object] = field(default_factory=dict)
    check_params: Mapping[str, object] = field(default_factory=dict)
    experimental: bool = True
    remembers: bool = False
    passes: int = 1
    own_augmentation: str | None = None

    def __post_init__(self) -> None:
        if self.image is None and self.features is None and not self.remembers:
            raise ValueError(f"the entry {self.name} makes no pseudo-anomalies; give it `image` or `features`")

    @property
    def default_augmentation(self) -> str:
        """Name of the augmentation plugin whose hyperparameters are selected if nobody names another."""
        if self.own_augmentation is None and self.features is not None:
            return self.features.augmentation
        return self.own_augmentation or "cutpaste"

    @property
    def path(self) -> str:
        """Where the model's class is found."""
        return self.model if isinstance(self.model, str) else f"{self.model.__module__}.{self.model.__qualname__}"

    def model_class(self) -> type[AnomalibModule]:
        """The model's class; imports it."""
        if not isinstance(self.model, str):
            return self.model
        module, _, name = self.model.rpartition(".")
        found: type[AnomalibModule] = getattr(importlib.import_module(module), name)
        return found

    def is_installed(self) -> bool:
        """Whether the installed packages have the model, judged from their files: importing anomalib takes seconds."""
        if not isinstance(self.model, str):
            return True
        package, *path = self.model.split(".")[:-1]
        found = importlib.util.find_spec(package)
        if found is None or not path:
            return found is not None
        folders = list(found.submodule_search_locations or ())
        places = [Path(folder, *path) for folder in folders]
        return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)

    @property
    def learns_from(self) -> tuple[str, ...] | None:
        """What an augmentation may change; None if the model looks at none."""
        if self.remembers:
            return None
        of_images = () if self.image is None else (IMAGES,)
        return of_images if self.features is None else (*of_images, self.features.kind)

    def record(self) -> DetectorEncoderPlugin:
        """The detector plugin."""
        name = f"{PREFIX}{self.name}"
        if not self.is_installed():
            reason = f"the installed version of {self.path.partition('.')[0]} has no {self.path}; install a newer one"
            return DetectorEncoderPlugin(name, partial(_refuse, f"{name}: {reason}"), f"not available: {reason}")
        summary = f"{self.summary} (experimental: no choice was measured)" if self.experimental else self.summary
        return DetectorEncoderPlugin(
            name,
            partial(_make, self),
            summary,
            check_params=self.check_params,
            preflight=partial(_check_weights, self),
            learns_from=self.learns_from,
        )


def _make(
    entry: Entry,
    *,
    image_size: int | None = None,
    updates: int = DEFAULT_UPDATES,
    batch_size: int = 8,
    pooling: Pooling | None = None,
    model_params: Mapping[str, Any] | None = None,
    engine_args: Mapping[str, Any] | None = None,
) -> AnomalibDetector:
    """Make the detector of an entry.

    Args:
        entry: The entry.
        image_size: Height and width to which images are resized; the model's own if None.
        updates: The whole training budget, in batches.
        batch_size: Images in a batch.
        pooling: How features of patches become one vector: mean, max or topk.
        model_params: Arguments of the model.
        engine_args: Arguments of anomalib's Engine.
    """
    import_anomalib()
    from dsv_anomalib.detector import AnomalibDetector

    return AnomalibDetector(
        entry,
        image_size=image_size or entry.image_size,
        updates=updates,
        batch_size=batch_size,
        pooling=pooling or entry.pooling,
        model_params=model_params or {},
        engine_args=engine_args or {},
    )


def _check_weights(entry: Entry, *, model_params: Mapping[str, Any] | None = None, **settings: object) -> None:
    """See that what the model fetches can be had: it would be found out once for each candidate, after many retries."""
    params = model_params or {}
    if entry.backbone is not None:
        entry.backbone.check(params)
    if entry.preflight is not None:
        entry.preflight(params)


def _refuse(reason: str, **settings: object) -> AnomalibDetector:
    raise PluginError(reason)
