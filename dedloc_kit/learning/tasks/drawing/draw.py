"""Draws pictures for captions with a model and all that belongs to it in one folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.models.picture_model.autoencoder import Autoencoder
from dedloc_kit.learning.models.picture_model.loading import as_pixels
from dedloc_kit.learning.models.picture_model.published import Published
from dedloc_kit.learning.tasks.drawing.generation import Drawn, generate
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer, Shape

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PICTURE_CONFIG, PICTURE_WEIGHTS = "picture_model.json", "picture_model.safetensors"


class Drawer:
    """A model that draws, from its folder.

    :param device: to compute with, such as `cuda`
    """

    def __init__(self, folder: str | Path, device: str = "cpu") -> None:
        folder = Path(folder)
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        self.shape = Shape(**{**config["shape"], "attention": tuple(config["shape"]["attention"])})
        self.usually = config["drawing"]
        """How codes are drawn if nothing else is said; see `Drawn`."""
        weights = load_file(folder / WEIGHTS)
        if self.shape.tied:
            weights |= {
                "text_output.weight": weights["of_text.weight"],
                "code_output.weight": weights["of_codes.weight"],
            }
        self.model = DrawingTransformer(self.shape).to(device).eval()
        self.model.load_state_dict(weights)
        self.tokenizer = PlainTokenizer(Tokenizer.from_file(str(folder / TOKENIZER)))
        pictures = _picture_model(json.loads((folder / PICTURE_CONFIG).read_text(encoding="utf-8")))
        pictures.load_state_dict(load_file(folder / PICTURE_WEIGHTS))
        self.pictures = pictures.to(device).eval()
        self.device = device

    def codes(self, captions: Sequence[str], seed: int = 0, **how: float) -> Tensor:
        """The codes of a picture for each caption, int64 [captions, codes].

        :param how: `top_k`, `temperature` or `guidance_scale`, where they are not to be as usual
        """
        tokens = self.shape.padded([self.tokenizer.ids(caption) for caption in captions])
        return generate(self.model, tokens, Drawn(**{**self.usually, **how}), seed)

    @torch.inference_mode()
    def draw(self, captions: Sequence[str], seed: int = 0, **how: float) -> list[Image.Image]:
        """A picture for each caption; the same seed gives the same ones again."""
        grids = self.codes(captions, seed, **how).unflatten(1, (self.shape.side, self.shape.side))
        pictures = [as_pixels(self.pictures.picture_of(codes[None].to(self.device)))[0] for codes in grids]
        return [Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy()) for pixels in pictures]


def _picture_model(config: dict[str, Any]) -> Any:
    """What makes pictures of codes, untrained."""
    values = dict(config)
    match values.pop("kind"):
        case "diffusers":
            from diffusers import VQModel  # type: ignore[import-not-found, unused-ignore]

            return Published(VQModel.from_config(values), from_zero=bool(values.get("lookup_from_codebook")))
        case "janus":
            from transformers import JanusVQVAE, JanusVQVAEConfig

            return Published(JanusVQVAE(JanusVQVAEConfig(**values)), normalized=True)
    architecture: Any = SimpleNamespace(**values)
    return Autoencoder(architecture)
