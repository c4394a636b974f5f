"""A model of anomalib as a detector encoder: trained by anomalib's Engine, embedded by its trained part."""

from __future__ import annotations

import copy
import inspect
import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from anomalib.models.components import AnomalibModule
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.transforms.v2 import Compose, Normalize

from dsv_anomalib.augmentations import FeatureSynthesis, Synthesiser
from dsv_anomalib.data import preprocessed
from dsv_anomalib.entries import Entry, Pooling, Tap
from dsv_anomalib.training import train
from dsv_plugins import Augmentation, DetectorEncoder, InputError, Progress
from dsv_plugins.errors import describe_error, did_you_mean
from dsv_plugins.toolkit.saved_files import fitted
from dsv_plugins.transforms import best_device, global_randomness, resized

__all__ = ["AnomalibDetector", "pooled"]

ENCODE_BATCH = 32
TOP_SHARE = 0.1
"""Of the patches, how many count for the pooling "topk"."""
TENSORS_FILE, SETTINGS_FILE = "network.safetensors", "network.json"
COMPONENTS_OFF = {"post_processor": False, "evaluator": False, "visualizer": False}
"""Without these, nothing in a training needs a label."""


class AnomalibDetector(DetectorEncoder):
    """Any model that has an entry.

    Args:
        entry: What is known of the model.
        image_size: Height and width to which images are resized.
        updates: The whole training budget, in batches.
        batch_size: Images in a batch.
        pooling: How features of patches become one vector: their "mean", their "max", or the mean of the largest tenth
            of each feature, "topk".
        model_params: Arguments of the model.
        engine_args: Arguments of anomalib's Engine, which go to Lightning's Trainer.

    Raises:
        ValueError: A setting is wrong.
    """

    image_size: int
    updates: int

    def __init__(
        self,
        entry: Entry,
        *,
        image_size: int,
        updates: int,
        batch_size: int,
        pooling: Pooling,
        model_params: Mapping[str, Any],
        engine_args: Mapping[str, Any],
    ) -> None:
        for name, value in (("image_size", image_size), ("updates", updates), ("batch_size", batch_size)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number of at least 1")
        if image_size < entry.least_image_size:
            raise ValueError(f"image_size is {image_size}; {entry.name} needs {entry.least_image_size} at least")
        if pooling not in get_args(Pooling):
            raise ValueError(f"pooling is {pooling!r}; give one of {', '.join(get_args(Pooling))}")
        _check_model_params(entry, model_params)
        self.entry = entry
        self.learns_from_augmentation = not entry.remembers
        self.image_size = image_size
        self.updates = 1 if entry.remembers else updates
        self.batch_size = batch_size
        self.pooling = pooling
        self.model_params = dict(model_params)
        self.engine_args = dict(engine_args)
        self._module: AnomalibModule | None = None

    def fit(
        self,
        images: Tensor,
        augmentation: Augmentation,
        *,
        updates: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Train a new module; a training of anomalib cannot resume an earlier one."""
        device = best_device()
        with global_randomness(device) as seed_all:
            seed_all(seed)
            module = self.build(**COMPONENTS_OFF)
            self.install(module, augmentation)
            train(
                module,
                images,
                prepare=self._sized,
                batch_size=self.batch_size,
                updates=self._planned(len(images), updates),
                every_image=self.entry.remembers,
                seed=seed,
                progress=progress,
                engine_args=self.engine_args,
            )
        self._module = module.to(device).eval()

    def _planned(self, images: int, updates: int | None) -> int:
        if self.entry.remembers:
            return math.ceil(images / self.batch_size) * self.entry.passes  # whatever the budget
        return min(self.updates, updates or self.updates)

    def encode(self, images: Tensor) -> Tensor:
        """Embed images, of any size, by the part that training shaped, on the CPU."""
        return self._tapped(images, self.entry.tap)

    def encode_augmented(self, images: Tensor, augmentation: Augmentation, *, generator: torch.Generator) -> Tensor:
        """Embed one pseudo-anomaly of each image, made where the model makes them."""
        if isinstance(augmentation, FeatureSynthesis):
            self.install(self.module, augmentation)
            assert self.entry.features is not None  # or it could not have been installed
            with global_randomness(self.module.device) as seed_all:
                seed_all(int(torch.randint(2**31, (), generator=generator, device=generator.device)))
                return self._tapped(images, self.entry.features.tap)
        batches = torch.split(images, ENCODE_BATCH)
        return torch.cat([self.encode(augmentation(self._sized(batch), generator=generator)) for batch in batches])

    @torch.no_grad()
    def score(self, images: Tensor) -> Tensor:
        """The model's own scores, as they are before any post-processing."""
        module = self.module
        scores = [module.model(batch).pred_score.reshape(-1).cpu() for batch in self._batches(images, module)]
        return torch.cat(scores)

    @torch.no_grad()
    def heatmap(self, images: Tensor) -> Tensor | None:
        """The model's own anomaly maps, of its image size; None if it makes none."""
        module = self.module
        maps = [module.model(batch).anomaly_map for batch in self._batches(images, module)]
        return None if maps[0] is None else torch.cat([_flat(each).cpu() for each in maps])

    def as_module(self) -> nn.Module:
        """A copy of the model with its pre-processing before it, and without post-processing behind it."""
        return copy.deepcopy(_Whole(self.module)).cpu().eval().requires_grad_(False)

    def save(self, folder: Path) -> None:
        """Write the network's weights and settings: a checkpoint of anomalib has the optimiser's, too, and pickle."""
        settings_file = folder / SETTINGS_FILE
        settings_file.unlink(missing_ok=True)  # a save that is cut short must not pass for a whole one
        state = self.module.model.state_dict()
        # Clones, since safetensors refuses tensors that share memory.
        save_file(
            {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}, folder / TENSORS_FILE
        )
        settings_file.write_text(json.dumps(self._identity(), indent=2))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; no weights are downloaded if the model allows that.

        Raises:
            InputError: A file is missing or broken, or the model in the folder has other settings.
        """
        try:
            settings = json.loads((folder / SETTINGS_FILE).read_text())
            tensors = load_file(folder / TENSORS_FILE)
        except (OSError, ValueError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{folder} cannot be read as a saved model; save it again ({reason:.200})") from error
        if settings != json.loads(json.dumps(self._identity())):
            raise InputError(f"{folder} holds a model of other settings; make this one with {settings} to load it")
        with global_randomness():
            module = self.build(**COMPONENTS_OFF, **self.entry.weights_off)
        module.model.load_state_dict(tensors)
        self._module = module.to(best_device()).eval()

    @property
    def module(self) -> AnomalibModule:
        """The trained module.

        Raises:
            InputError: Nothing is trained yet.
        """
        return fitted(self._module)

    def build(self, **overrides: Any) -> AnomalibModule:
        """A new module, with arguments beside and above `model_params`.

        Raises:
            InputError: It could not be made, for example because its weights cannot be downloaded.
        """
        entry = self.entry
        size = (self.image_size, self.image_size)
        make = entry.build or entry.model_class()
        pre_processor = entry.model_class().configure_pre_processor(image_size=size)
        params = self.model_params
        if entry.backbone is not None:
            params = entry.backbone.completed(params, pre_processor)
        try:
            module: AnomalibModule = make(**{"pre_processor": pre_processor, **params, **overrides})
        except Exception as error:
            raise InputError(f"{entry.name} could not be made ({describe_error(error)})") from error
        if module.input_size not in (None, size):  # what a user's function makes has a size of its own
            module.pre_processor = pre_processor
        return module

    def install(self, module: AnomalibModule, augmentation: Augmentation) -> None:
        """Have a module make its pseudo-anomalies by an augmentation.

        Raises:
            InputError: The model makes them in another way.
        """
        if self.entry.remembers:
            return
        image, features = self.entry.image, self.entry.features
        if isinstance(augmentation, FeatureSynthesis):
            settings = features.settings if features is not None else {}
            for name, value in augmentation.settings.items():
                if name not in settings:
                    known = f"features by {', '.join(settings)}" if settings else "images: choose cutpaste or the like"
                    raise InputError(f"{self.entry.name} has no {name}; it makes pseudo-anomalies out of {known}")
                _set(module, settings[name], value)
        elif image is None:
            assert features is not None
            raise InputError(
                f"{self.entry.name} makes pseudo-anomalies out of features, not of images; "
                f"choose the augmentation {features.augmentation}"
            )
        else:
            own = _attribute(module, image.place)
            synthesiser = Synthesiser(
                augmentation,
                probability=image.probability,
                normalisation=_normalisation(module) if image.normalised else None,
                masked=self._returns_masks(own) if image.masked is None else image.masked,
            )
            _set(module, image.place, synthesiser)

    def _returns_masks(self, own: object) -> bool:
        """Whether a model's own generator returns masks beside the images: it is asked with two images.

        Raises:
            InputError: It cannot be asked so.
        """
        if isinstance(own, Synthesiser):
            return own.masked
        try:
            with global_randomness(), torch.no_grad():
                returned = own(torch.rand(2, 3, self.image_size, self.image_size))  # type: ignore[operator]
        except Exception as error:
            raise InputError(
                f"{self.entry.name}: its generator of anomalies failed on two images ({describe_error(error)}); say in "
                "ImageSpace whether it returns masks, with masked=True or masked=False"
            ) from error
        return isinstance(returned, (tuple, list))

    def _identity(self) -> dict[str, object]:
        return {"model": self.entry.path, "image_size": self.image_size, "model_params": self.model_params}

    @torch.no_grad()
    def _tapped(self, images: Tensor, tap: Tap) -> Tensor:
        module = self.module
        embeddings = []
        for batch in self._batches(images, module):
            try:
                features = tap(module, batch)
            except Exception as error:
                raise InputError(
                    f"the tap of {self.entry.name} failed ({describe_error(error)}); it takes the module and a batch, "
                    "and returns features"
                ) from error
            embeddings.append(pooled(features, self.pooling).cpu())
        return torch.cat(embeddings)

    def _batches(self, images: Tensor, module: AnomalibModule) -> Iterator[Tensor]:
        """One at a time: all images at the model's size may need more memory than there is."""
        return (preprocessed(module, self._sized(batch)) for batch in torch.split(images, ENCODE_BATCH))

    def _sized(self, images: Tensor) -> Tensor:
        """The images in [0, 1], in colour and of the model's size, so that augmentations see what the model sees."""
        return resized(images, self.image_size).expand(-1, 3, -1, -1)


class _Whole(nn.Module):
    """From images in [0, 1] of the model's size to scores, and to maps if it makes any."""

    def __init__(self, module: AnomalibModule) -> None:
        super().__init__()
        self.normalisation = _normalisation(module) or nn.Identity()
        self.network = module.model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        predicted = self.network(self.normalisation(images))
        scores = predicted.pred_score.reshape(-1)
        return (scores,) if predicted.anomaly_map is None else (scores, _flat(predicted.anomaly_map))


def _flat(maps: Tensor) -> Tensor:
    """Maps as (images, height, width): some models add a dimension."""
    return maps.squeeze(1) if maps.ndim == 4 else maps


def pooled(features: Tensor | Sequence[Tensor], pooling: Pooling) -> Tensor:
    """One vector for each image, from the features of its patches."""
    if not isinstance(features, Tensor):
        return torch.cat([pooled(part, pooling) for part in features], dim=1)
    if features.ndim == 2:
        return features
    patches = features.flatten(2).transpose(1, 2) if features.ndim == 4 else features
    if pooling == "mean":
        return patches.mean(dim=1)
    count = 1 if pooling == "max" else max(1, round(TOP_SHARE * patches.shape[1]))
    return patches.topk(count, dim=1).values.mean(dim=1)


def _check_model_params(entry: Entry, params: Mapping[str, Any]) -> None:
    """See that the model takes its arguments, which would show only in the training."""
    accepted: dict[str, inspect.Parameter] = {}
    makers: list[Callable[..., AnomalibModule]] = [entry.model_class()]
    for maker in makers if entry.build is None else [*makers, entry.build]:
        accepted |= inspect.signature(maker).parameters
    unknown = [name for name in params if name not in accepted]
    if unknown:
        known = [name for name, p in accepted.items() if p.kind is not p.VAR_KEYWORD]
        meant = did_you_mean(unknown[0], known)
        raise ValueError(
            f"{entry.name} takes no {', '.join(unknown)} in model_params{f' ({meant})' if meant else ''}; it takes "
            f"{', '.join(known)}"
        )


def _normalisation(module: AnomalibModule) -> Normalize | None:
    transform = getattr(module.pre_processor, "transform", None)
    steps = transform.transforms if isinstance(transform, Compose) else [transform]
    return next((step for step in steps if isinstance(step, Normalize)), None)


def _set(module: AnomalibModule, path: str, value: object) -> None:
    """Set an attribute given with dots, which is there already."""
    _attribute(module, path)
    owner, _, name = path.rpartition(".")
    setattr(operator.attrgetter(owner)(module) if owner else module, name, value)


def _attribute(module: AnomalibModule, path: str) -> object:
    """An attribute given with dots."""
    try:
        return operator.attrgetter(path)(module)
    except AttributeError:
        if type(module).__module__.startswith("anomalib."):
            cause = "is this version of anomalib supported?"
        else:
            children = [name for name, _ in module.named_modules() if name and not name.startswith("model.")]
            cause = did_you_mean(path, children) or f"its parts are {', '.join(children[:10])}"
        raise InputError(
            f"{type(module).__name__} has no attribute {path}, where its entry says that it makes anomalies; {cause}"
        ) from None
