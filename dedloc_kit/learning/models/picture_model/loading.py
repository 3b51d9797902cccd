"""A picture model from its files, and into them."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import torch as safetensors
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.learning.data.sources.patience import one_line
from dedloc_kit.learning.models.picture_model.autoencoder import Architecture, Autoencoder
from dedloc_kit.learning.models.picture_model.files import OWN_CONFIG, OWN_WEIGHTS, Found, Kind, find
from dedloc_kit.learning.models.picture_model.published import Published, from_diffusers, from_janus
from dedloc_kit.validation import describe

_PIXELS_AT_ONCE = 2**18
"""The first layers of a large model keep some 500 bytes for each."""


class PictureModel:
    """A trained picture model. Both ways work through a few pictures at a time, however many there are.

    :ivar codes: how many different ones there are
    :ivar side: codes along each side of a picture
    :ivar size: pixels along each side of a picture
    """

    def __init__(self, network: Autoencoder | Published, pictures: PictureCodes, device: str = "cpu") -> None:
        self.codes, self.side, self.size = pictures.codes, pictures.side, pictures.size
        self.network = network
        self._device = device
        self._at_once = max(1, _PIXELS_AT_ONCE // self.size**2)

    @torch.inference_mode()
    def encode(self, pictures: Tensor) -> Tensor:
        """The codes, int64 [n, side, side], of pictures, uint8 [n, 3, size, size]."""
        some = pictures.split(self._at_once)
        return torch.cat([self.network.codes_of(as_floats(each.to(self._device))).cpu() for each in some])

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """The pictures, uint8 [n, 3, size, size], of codes, int64 [n, side, side]."""
        some = codes.split(self._at_once)
        return torch.cat([as_pixels(self.network.picture_of(each.to(self._device))).cpu() for each in some])


def as_floats(pictures: Tensor) -> Tensor:
    """Bytes as numbers from -1 to 1."""
    return pictures.float() / 127.5 - 1


def as_pixels(pictures: Tensor) -> Tensor:
    """And back."""
    return ((pictures.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def load_picture_model(pictures: PictureCodes, device: str = "cpu") -> PictureModel:
    """The picture model that a run names, from its folder or from the Hub.

    Raises UserError with the fix if it is not there, holds no weights in safetensors, or is another one than the run's
    file says.
    """
    found = find(pictures.model)
    found.check(pictures)
    try:
        network = _LOADERS[found.kind](found)
    except UserError:
        raise
    except Exception as error:  # whatever a wrong configuration makes its class raise
        raise UserError(f"{found.name} cannot be loaded ({one_line(error)}); name another picture model") from None
    network.eval().requires_grad_(False).to(device)
    return PictureModel(network, pictures, device)


def save(network: Autoencoder, architecture: Architecture, folder: Path) -> None:
    """Write a model of the kit's own kind to an existing folder."""
    config = {"kind": "dedloc_kit", **architecture.model_dump()}
    (folder / OWN_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {name: value.contiguous().cpu() for name, value in network.state_dict().items()}
    (folder / OWN_WEIGHTS).write_bytes(safetensors.save(weights))  # `save_file` keeps everyone else out


def _own(found: Found) -> Autoencoder:
    values = {key: value for key, value in found.config.items() if key != "kind"}
    try:
        network = Autoencoder(Architecture.model_validate(values))
    except ValidationError as error:
        raise UserError(f"the {OWN_CONFIG} of {found.name}: {describe(error, Architecture)}") from None
    (path,) = found.weights
    network.load_state_dict(safetensors.load_file(path))
    return network


_LOADERS: dict[Kind, Callable[[Found], Autoencoder | Published]] = {
    "own": _own,
    "diffusers": from_diffusers,
    "janus": from_janus,
}
