"""Picture models that others have trained: diffusers' `VQModel` and the one inside transformers' Janus."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.errors import UserError
from dedloc_kit.learning.models.picture_model.files import Found


class Published(nn.Module):
    """Both are a VQGAN (Esser et al. 2021) with parts of the same names, so they are used alike.

    :param normalized: codes are compared and drawn as directions, as Janus learned them (transformers' own `encode`
        forgets that, and then finds other codes than the nearest)
    :param from_zero: colours go from 0 to 1, not from -1 to 1
    """

    def __init__(self, model: Any, *, normalized: bool = False, from_zero: bool = False) -> None:
        super().__init__()
        self.model = model
        self._normalized, self._from_zero = normalized, from_zero
        self._spatial = getattr(model.config, "norm_type", "") == "spatial"

    def codes_of(self, pictures: Tensor) -> Tensor:
        features = self.model.quant_conv(self.model.encoder(pictures / 2 + 0.5 if self._from_zero else pictures))
        features = features.movedim(1, -1)
        if self._normalized:
            features = functional.normalize(features, dim=-1)
        nearest = torch.cdist(features.flatten(0, 2), self._words()).argmin(-1)
        return nearest.view(features.shape[:3])

    def picture_of(self, codes: Tensor) -> Tensor:
        features = self._words()[codes].movedim(-1, 1).contiguous()
        inner = self.model.post_quant_conv(features)
        pictures: Tensor = self.model.decoder(inner, features) if self._spatial else self.model.decoder(inner)
        return pictures * 2 - 1 if self._from_zero else pictures

    def _words(self) -> Tensor:
        words: Tensor = self.model.quantize.embedding.weight
        return functional.normalize(words, dim=-1) if self._normalized else words


def from_diffusers(found: Found) -> Published:
    """Raises UserError if diffusers is not installed, or that is no model of it."""
    try:
        from diffusers import VQModel  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UserError(
            f"{found.name} is a model of diffusers, which is not installed; run pip install 'dedloc_kit[pictures]'"
        ) from None
    # Nothing else in its configuration tells: those of aMUSEd, which alone look codes up, were trained from 0 to 1.
    from_zero = bool(found.config.get("lookup_from_codebook"))
    return Published(_filled(VQModel.from_config(found.config), found), from_zero=from_zero)


def from_janus(found: Found) -> Published:
    """Raises UserError if that is no model of this kind."""
    from transformers import JanusVQVAE, JanusVQVAEConfig

    return Published(_filled(JanusVQVAE(JanusVQVAEConfig(**found.config)), found), normalized=True)


def _filled(model: nn.Module, found: Found) -> nn.Module:
    """The model with its weights, which may stand in a file among those of a larger model."""
    from safetensors import safe_open

    wanted = model.state_dict().keys()
    weights = {}
    for path in found.weights:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no dictionary)
                inner = name.removeprefix("model.").removeprefix("vqmodel.")
                if inner in wanted:
                    weights[inner] = file.get_tensor(name).float()
    if missing := wanted - weights.keys():
        raise UserError(f"{found.name} lacks weights such as {min(missing)}; name another picture model")
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise UserError(f"the weights of {found.name} are not of its configuration; name another one") from None
    return model
