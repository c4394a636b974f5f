"""The models of anomalib that learn from pseudo-anomalies, and why the others are refused.

Free of torch and anomalib, as `entries` is.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from dsv_anomalib.entries import PREFIX, QUANTISED, Entry, FeatureSpace, ImageSpace
from dsv_anomalib.weights import OUR_BACKBONE, Backbone, check_dsr
from dsv_plugins import DetectorEncoderPlugin, InputError, build_registry
from dsv_plugins.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anomalib.models.components import AnomalibModule
    from torch import Tensor

__all__ = ["ENTRIES", "RIVALS", "find", "plain_detectors"]

FEATURE_NOISE = f"{PREFIX}feature-noise"
LATENT_STRENGTH = f"{PREFIX}latent-strength"
NATIVE = "cutpaste"
"""The model of this package, which dsv-plugins itself trains."""
LAYERS = ["blocks.2", "blocks.4"]
"""Of our backbone: strides 8 and 16."""


def find(model: str | type | Entry, *, trained_on_pseudo_anomalies: bool = True) -> Entry:
    """Return the entry of a model, given by its name or its class.

    Args:
        model: The model.
        trained_on_pseudo_anomalies: Whether it must be such a model; others have arguments to select only.

    Raises:
        InputError: There is nothing to select in it, or nothing is known of it.
    """
    if isinstance(model, Entry):
        return model
    names = [model] if isinstance(model, str) else [base.__name__ for base in model.__mro__]
    for name in names:
        key = _key(name)
        for entry in ENTRIES if trained_on_pseudo_anomalies else (*ENTRIES, *RIVALS):
            if key in (_key(entry.name), _key(entry.path)):
                return entry
        for refused, reason in REFUSED.items():
            if key == _key(refused):
                raise InputError(f"{refused} has no augmentation to select: {reason}")
    known = [*plain_detectors(), NATIVE, *(entry.name for entry in ENTRIES)]
    meant = did_you_mean(names[0], known)
    raise InputError(
        f"nothing is known of the model {names[0]}{f' ({meant})' if meant else ''}; known are {', '.join(known)}; or "
        "give a dsv_anomalib.Entry for it"
    )


def plain_detectors() -> list[str]:
    """The detectors that have nothing to do with anomalib."""
    names = [record.name for record in build_registry().of_kind(DetectorEncoderPlugin)]
    return [name for name in names if not name.startswith(PREFIX)]


def _key(name: str) -> str:
    return name.rpartition(".")[2].removeprefix(PREFIX).replace("_", "").replace("-", "").lower()


def _draem(module: Any, images: Tensor) -> Tensor:
    import torch

    network = module.model
    both = torch.cat([images, network.reconstructive_subnetwork(images)], dim=1)
    deepest: Tensor = network.discriminative_subnetwork.encoder_segment(both)[-1]
    return deepest


def _build_draem(
    *, reconstructive_width: int = 128, discriminative_width: int = 64, **arguments: Any
) -> AnomalibModule:
    """Draem, which can be made narrower; without textures, since an augmentation takes the place of its generator."""
    from anomalib.models.image.draem import Draem
    from anomalib.models.image.draem.torch_model import DiscriminativeSubNetwork, ReconstructiveSubNetwork
    from lightning.fabric import Fabric

    narrow = (reconstructive_width, discriminative_width) != (128, 64)
    # Initialising weights that are then replaced would waste seconds.
    weights = Fabric(accelerator="cpu").init_module(empty_init=narrow)
    # It downloads textures unless their folder exists, be it empty.
    with tempfile.TemporaryDirectory() as no_textures, weights:
        module = Draem(dtd_dir=no_textures, **arguments)
    if narrow:
        module.model.reconstructive_subnetwork = ReconstructiveSubNetwork(base_width=reconstructive_width)
        module.model.discriminative_subnetwork = DiscriminativeSubNetwork(6, 2, base_width=discriminative_width)
    return module


def _glass(module: Any, images: Tensor) -> Tensor:
    network = module.model
    projected = network.projection(network.generate_embeddings(images, evaluation=True)[0])
    patches: Tensor = projected[0] if isinstance(projected, (tuple, list)) else projected
    return patches.reshape(len(images), -1, patches.shape[-1])


def _glass_with_noise(module: Any, images: Tensor) -> Tensor:
    return _noisy(_glass(module, images), module.model.gaussian_noise_std)


def _build_glass(*, pre_processor: Any, **arguments: Any) -> AnomalibModule:
    """Glass at the size of its pre-processor, which must be given a second time."""
    from anomalib.models.image.glass import Glass
    from torchvision.transforms.v2 import Resize

    resize = next(step for step in pre_processor.transform.transforms if isinstance(step, Resize))
    module: Any = Glass(input_shape=tuple(resize.size), pre_processor=pre_processor, **arguments)
    # Without pre-trained weights it tries to train its backbone, and fails to find it; the backbone stays as it is.
    module.pre_trained = True
    module.model.pre_trained = True
    glass: AnomalibModule = module
    return glass


def _supersimplenet(module: Any, images: Tensor) -> Tensor:
    network = module.model
    adapted: Tensor = network.adaptor(network.feature_extractor(images))
    return adapted


def _supersimplenet_with_noise(module: Any, images: Tensor) -> Tensor:
    import torch

    adapted, generator = _supersimplenet(module, images), module.model.anomaly_generator
    masks: list[Tensor] = []
    while len(masks) < len(adapted):
        mask = generator.generate_perlin(1, *adapted.shape[-2:])
        if mask.any():  # it leaves half of them empty
            masks.append(mask)
    return torch.where(torch.cat(masks).to(adapted.device) > 0, _noisy(adapted, generator.noise_std), adapted)


def _foundad(module: Any, images: Tensor) -> Tensor:
    projected: Tensor = module.model.projector(module.model.extract_features(images))
    return projected


def _foundad_encoder(name: str) -> str:
    from anomalib.models.image.foundad.components.encoder_loader import TIMM_MODEL_NAMES

    return str(TIMM_MODEL_NAMES.get(name, name))


def _generalad(module: Any, images: Tensor) -> Tensor:
    return _discriminated(module, module.model.extract_features(images)[0])


def _generalad_with_noise(module: Any, images: Tensor) -> Tensor:
    return _discriminated(module, _noisy(module.model.extract_features(images)[0], module.model.noise_std))


def _discriminated(module: Any, features: Tensor) -> Tensor:
    discriminator = module.model.discriminator
    encoded: Tensor = discriminator.transformer_encoder(features + discriminator.positional_encodings)
    return encoded


def _dsr(module: Any, images: Tensor) -> Sequence[Tensor]:
    latent = module.model.discrete_latent_model(images)
    return _restricted(module, latent["quantized_b"], latent["quantized_t"])


def _dsr_with_anomalies(module: Any, images: Tensor) -> Sequence[Tensor]:
    import torch

    weakest = module.model.latent_anomaly_strength
    generator = module.quantized_anomaly_generator
    before, generator.p_anomalous = generator.p_anomalous, 1.0
    try:
        masks = generator.augment_batch(images)
    finally:
        generator.p_anomalous = before
    strengths = [(torch.rand(len(images)) * (1 - weakest) + weakest).to(images) for _ in range(2)]
    latent = module.model.discrete_latent_model(images, masks, *strengths)
    return _restricted(module, latent["anomaly_embedding_hi"], latent["anomaly_embedding_lo"])


def _restricted(module: Any, fine: Tensor, coarse: Tensor) -> Sequence[Tensor]:
    network = module.model
    return network.subspace_restriction_module_hi.unet(fine), network.subspace_restriction_module_lo.unet(coarse)


def _build_dsr(**arguments: Any) -> AnomalibModule:
    """DSR, with its weights fetched now: it would fetch them in the middle of the training."""
    from anomalib.models.image.dsr import Dsr

    Dsr.prepare_pretrained_model()
    return Dsr(**arguments)


def _noisy(features: Tensor, spread: float) -> Tensor:
    import torch

    return features + torch.randn_like(features) * spread


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="draem",
        model="anomalib.models.image.draem.Draem",
        tap=_draem,
        summary="Draem: reconstructs augmented images and segments what was changed",
        experimental=False,
        image=ImageSpace("augmenter", probability=0.5, masked=True),
        own_augmentation=f"{PREFIX}perlin",
        build=_build_draem,
        check_params={
            "image_size": 32,
            "batch_size": 4,
            "updates": 20,
            "model_params": {"reconstructive_width": 8, "discriminative_width": 8},
        },
    ),
    Entry(
        name="glass",
        model="anomalib.models.image.glass.Glass",
        tap=_glass,
        summary="Glass: tells patches from augmented and from noisy ones",
        experimental=False,
        image_size=288,
        image=ImageSpace("model.augmentor", masked=True),
        features=FeatureSpace(
            FEATURE_NOISE,
            {"noise_std": "model.gaussian_noise_std", "radius_quantile": "model.radius_quantile"},
            _glass_with_noise,
        ),
        own_augmentation=f"{PREFIX}perlin",  # its noise on features makes no difference
        build=_build_glass,
        backbone=Backbone(
            "backbone",
            "wide_resnet50_2",
            # Its own 1536 dimensions are for a network with ten times as many channels.
            {"layers": LAYERS, "pretrain_embed_dim": 256, "target_embed_dim": 256, "discriminator_hidden": 256},
        ),
        weights_off={"pre_trained": False},
        check_params={
            "image_size": 32,
            "batch_size": 4,
            "updates": 20,
            "model_params": {
                "pre_trained": False,
                "backbone": "resnet18",
                "pretrain_embed_dim": 32,
                "target_embed_dim": 32,
                "discriminator_hidden": 32,
                "step": 2,
            },
        },
    ),
    Entry(
        name="foundad",
        model="anomalib.models.image.foundad.FoundAD",
        tap=_foundad,
        summary="FoundAD: projects features of augmented images back to normal ones",
        image_size=518,
        image=ImageSpace("cutpaste", normalised=True, masked=False),
        own_augmentation=f"{PREFIX}foundad-cutpaste",
        backbone=Backbone("encoder_name", "dinov2_vit_base_14", timm_name=_foundad_encoder),
    ),
    Entry(
        name="supersimplenet",
        model="anomalib.models.image.supersimplenet.Supersimplenet",
        tap=_supersimplenet,
        summary="SuperSimpleNet: segments noise in adapted features",
        experimental=False,
        least_image_size=128,
        features=FeatureSpace(
            FEATURE_NOISE,
            {
                "noise_std": "model.anomaly_generator.noise_std",
                "perlin_threshold": "model.anomaly_generator.threshold",
            },
            _supersimplenet_with_noise,
        ),
        backbone=Backbone("backbone", "wide_resnet50_2.tv_in1k", {"layers": LAYERS}),
    ),
    Entry(
        name="generalad",
        model="anomalib.models.image.general_ad.GeneralAD",
        tap=_generalad,
        summary="GeneralAD: tells patches of a vision transformer from noisy ones",
        image_size=518,
        features=FeatureSpace(FEATURE_NOISE, {"noise_std": "model.noise_std"}, _generalad_with_noise),
        backbone=Backbone("backbone", "vit_large_patch14_dinov2.lvd142m"),
        weights_off={"pre_trained": False},
        check_params={
            "image_size": 32,
            "batch_size": 4,
            "updates": 20,
            "model_params": {
                "pre_trained": False,
                "backbone": "vit_tiny_patch16_224",
                "layers": [2],
                "hidden_dim": 64,
                "epochs": 10,
            },
        },
    ),
    Entry(
        name="dsr",
        model="anomalib.models.image.dsr.Dsr",
        tap=_dsr,
        summary="DSR: restores quantised features in which anomalies were drawn",
        features=FeatureSpace(
            LATENT_STRENGTH, {"strength": "model.latent_anomaly_strength"}, _dsr_with_anomalies, QUANTISED
        ),
        build=_build_dsr,
        preflight=check_dsr,
    ),
)


def _remembered(module: Any, images: Tensor) -> list[Tensor]:
    features = module.model.feature_extractor(images)
    return [features[layer] for layer in module.model.layers]


RIVALS: tuple[Entry, ...] = (
    Entry(
        name="patchcore",
        model="anomalib.models.image.patchcore.Patchcore",
        tap=_remembered,
        summary="Patchcore with 1 % of the patches, to compare with: it learns from no augmentation",
        backbone=Backbone("backbone", OUR_BACKBONE, {"layers": LAYERS, "coreset_sampling_ratio": 0.01}),
        weights_off={"pre_trained": False},
        check_params={"image_size": 64, "batch_size": 4},
        experimental=False,
        remembers=True,
    ),
    Entry(
        name="padim",
        model="anomalib.models.image.padim.Padim",
        tap=_remembered,
        summary="Padim, to compare with: it learns from no augmentation",
        backbone=Backbone("backbone", OUR_BACKBONE, {"layers": ["blocks.1", *LAYERS], "n_features": 100}),
        weights_off={"pre_trained": False},
        check_params={"image_size": 64, "batch_size": 4},
        experimental=False,
        remembers=True,
    ),
    Entry(
        name="mh-patchcore",
        model="anomalib.models.image.mh_patchcore.MHPatchcore",
        tap=_remembered,
        summary="MH-PatchCore: 1,000 whitened patches, to compare with; it learns from no augmentation",
        least_image_size=224,
        backbone=Backbone("backbone", OUR_BACKBONE, {"layers": LAYERS}),
        weights_off={"pre_trained": False},
        check_params={"image_size": 224, "batch_size": 4},
        experimental=False,
        remembers=True,
        passes=3,
    ),
)
"""Models that learn from normal images alone, to compare with; on the backbone of `patch-fusion`."""

_MEMORY = "it compares with stored features of normal images and makes no pseudo-anomalies"
_FLOW = "it models the density of normal features and makes no pseudo-anomalies"
_STUDENT = "its student learns from normal images only, without pseudo-anomalies"
_PROMPTED = "it does not learn from your images"

REFUSED: dict[str, str] = {
    "Patchcore": _MEMORY,
    "MHPatchcore": _MEMORY,
    "AnomalyDINO": _MEMORY,
    "Cfa": _MEMORY,
    "Padim": "it fits a Gaussian to features of normal images and makes no pseudo-anomalies",
    "Dfm": _FLOW,
    "Dfkde": _FLOW,
    "Cflow": _FLOW,
    "Csflow": _FLOW,
    "Fastflow": _FLOW,
    "Uflow": _FLOW,
    "PatchFlow": _FLOW,
    "Stfpm": _STUDENT,
    "ReverseDistillation": _STUDENT,
    "EfficientAd": _STUDENT,
    "Dinomaly": _STUDENT,
    "Ganomaly": "it learns to reconstruct normal images only, without pseudo-anomalies",
    "WinClip": _PROMPTED,
    "VlmAd": _PROMPTED,
}
"""Models that have no augmentation, by the names of their classes."""
