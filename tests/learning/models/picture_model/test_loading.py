"""Picture models as files: of our own, of diffusers, and of transformers, in a folder and on the Hub."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors
from torch.nn import functional

from dedloc_kit.config.loading import parse_run
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable
from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.learning.models.picture_model.autoencoder import Architecture, Autoencoder
from dedloc_kit.learning.models.picture_model.files import OWN_CONFIG, OWN_WEIGHTS, completed, find, pictures_of
from dedloc_kit.learning.models.picture_model.loading import load_picture_model, save
from tests.loopback_hub import LoopbackHub, loopback_hub

ARCHITECTURE = Architecture(codes=32, scale=4, width=8, code_width=4)
JANUS = {
    "embed_dim": 4,
    "num_embeddings": 32,
    "latent_channels": 8,
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "num_res_blocks": 1,
    "num_patches": 4,
}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    torch.manual_seed(0)
    save(Autoencoder(ARCHITECTURE), ARCHITECTURE, folder)
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def of(model: object, **changed: Any) -> PictureCodes:
    return PictureCodes.model_validate({"model": str(model), "codes": 32, "side": 4, "size": 16} | changed)


def noise(number: int, size: int = 16) -> torch.Tensor:
    return torch.randint(256, (number, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def publish(hub: LoopbackHub, folder: Path, repository: str) -> str:
    """`OWNER/NAME@COMMIT` of a repository with the folder's files."""
    hub.commits[repository] = [files_of(folder)]
    return f"{repository}@{hub.revision(repository)}"


def test_a_model_makes_the_same_codes_and_pictures_whatever_is_beside_them(own: Path) -> None:
    model = load_picture_model(of(own))
    pictures = noise(1100)  # more than are encoded at once
    codes = model.encode(pictures)
    assert (model.codes, model.side, model.size) == (32, 4, 16)
    assert codes.shape == (1100, 4, 4)
    assert codes.dtype == torch.int64
    assert 0 <= codes.min() < codes.max() < 32
    drawn = model.decode(codes)
    assert drawn.shape == pictures.shape
    assert drawn.dtype == torch.uint8
    assert torch.equal(model.encode(pictures[1050:1051]), codes[1050:1051])
    assert torch.equal(model.decode(codes[1050:1051]), drawn[1050:1051])


def test_a_run_takes_the_hash_of_its_picture_model_and_no_other_model(own: Path) -> None:
    task = {"name": "text-to-image", "pictures": {"model": str(own), "codes": 32, "side": 4, "size": 16}}
    run = completed(parse_run({"name": "a", "global_batch": 8, "task": task, "data": {"train": [{"dataset": "x"}]}}))
    pictures = pictures_of(run)
    assert pictures.sha256 == find(str(own)).sha256
    assert completed(run) == run
    load_picture_model(pictures)
    torch.manual_seed(1)
    save(Autoencoder(ARCHITECTURE), ARCHITECTURE, own)
    with pytest.raises(UserError, match=rf"task\.pictures\.sha256 must be {find(str(own)).sha256}"):
        load_picture_model(pictures)


def test_a_model_of_another_kind_than_the_run_says_is_refused_with_the_fix(own: Path) -> None:
    with pytest.raises(UserError, match=r"pictures has 32 codes; set task\.pictures\.codes to 32"):
        load_picture_model(of(own, codes=64))
    with pytest.raises(UserError, match=r"of 32 pixels have 8 x 8; set task\.pictures\.size to 16"):
        load_picture_model(of(own, size=32))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / OWN_WEIGHTS).rename(folder / "weights.bin"), "no weights in safetensors"),
        (lambda folder: (folder / OWN_CONFIG).unlink(), "holds no picture model; name a published one"),
        (lambda folder: (folder / OWN_CONFIG).write_text("[1]"), "it is no object"),
        (lambda folder: (folder / OWN_CONFIG).write_text('{"model_type": "gpt2"}'), "is 'gpt2'; name a folder"),
        (lambda folder: (folder / OWN_CONFIG).write_text('{"kind": "dedloc_kit"}'), "cannot be used; name another"),
        (lambda folder: (folder / OWN_WEIGHTS).write_bytes(b"x" * 100), "cannot be loaded"),
        (lambda folder: (folder / OWN_WEIGHTS).write_bytes(safetensors.save({"a": torch.ones(1)})), "cannot be loaded"),
    ],
)
def test_a_folder_that_is_no_picture_model_is_refused_in_a_line(spoil: Any, said: str, own: Path) -> None:
    spoil(own)
    with pytest.raises(UserError, match=said) as raised:
        load_picture_model(of(own))
    assert "\n" not in str(raised.value)


def test_a_model_that_is_nowhere_is_said_to_be(
    tmp_path: Path, own: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nothing; name a published one, OWNER/NAME@COMMIT"):
        load_picture_model(of(tmp_path / "nothing"))
    named = publish(hub, own, "me/pictures")
    with pytest.raises(UserError, match='must name a commit, so that it stays the same: "me/pictures@"'):
        load_picture_model(of("me/pictures"))
    assert torch.equal(load_picture_model(of(named)).encode(noise(2)), load_picture_model(of(own)).encode(noise(2)))

    def unavailable(*_: object) -> Path:
        raise HubUnavailable("the Hub does not answer")

    monkeypatch.setattr("dedloc_kit.learning.models.pinned.model_files", unavailable)
    with pytest.raises(UserError, match=r"me/pictures cannot be read now \(.*\); try again later"):
        load_picture_model(of(named))


def test_the_picture_model_of_janus_is_taken_out_of_a_model_that_it_is_a_part_of(
    tmp_path: Path, hub: LoopbackHub
) -> None:
    from transformers import JanusVQVAE, JanusVQVAEConfig

    torch.manual_seed(0)
    theirs = JanusVQVAE(JanusVQVAEConfig(**JANUS)).eval()
    torch.nn.init.normal_(theirs.quantize.embedding.weight)
    theirs.save_pretrained(tmp_path / "alone")
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps({"model_type": "janus", "vq_config": JANUS}))
    # Of two files, as large models are; one holds nothing of it.
    inner = {f"model.vqmodel.{name}": value.contiguous() for name, value in theirs.state_dict().items()}
    (whole / "model-00001-of-00002.safetensors").write_bytes(safetensors.save(inner))
    (whole / "model-00002-of-00002.safetensors").write_bytes(safetensors.save({"lm_head.weight": torch.ones(2)}))
    pictures = noise(3, 8)
    with torch.no_grad():
        features = theirs.quant_conv(theirs.encoder(pictures.float() / 127.5 - 1)).movedim(1, -1)
        words = functional.normalize(theirs.quantize.embedding.weight, dim=-1)
        nearest = (functional.normalize(features, dim=-1) @ words.T).argmax(-1)
        drawn = theirs.decode(nearest.flatten(1))
    assert len(nearest.unique()) > 3
    for name in (str(tmp_path / "alone"), publish(hub, whole, "they/janus")):
        model = load_picture_model(of(name, size=8))
        assert torch.equal(model.encode(pictures), nearest)
        shades = (drawn.clamp(-1, 1) + 1) * 127.5
        assert (model.decode(nearest).float() - shades).abs().max() <= 1


@pytest.mark.parametrize("from_zero", [False, True])
def test_a_model_of_diffusers_makes_the_pictures_that_diffusers_makes(tmp_path: Path, from_zero: bool) -> None:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    theirs = diffusers.VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(32, 32),
        num_vq_embeddings=32,
        lookup_from_codebook=from_zero,
    ).eval()
    torch.nn.init.normal_(theirs.quantize.embedding.weight)
    theirs.save_pretrained(tmp_path / "model" / "vqvae")  # where a pipeline keeps it
    model, pictures = load_picture_model(of(tmp_path / "model", side=8)), noise(3)
    with torch.no_grad():
        latents = theirs.encode(pictures.float() / 255 if from_zero else pictures.float() / 127.5 - 1).latents
        codes = theirs.quantize(latents)[2][2].view(3, 8, 8)
        drawn = theirs.decode(latents).sample
    shades = drawn.clamp(0, 1) * 255 if from_zero else (drawn.clamp(-1, 1) + 1) * 127.5
    assert torch.equal(model.encode(pictures), codes)
    assert (model.decode(codes).float() - shades).abs().max() <= 1


def test_without_diffusers_it_is_said_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"_class_name": "VQModel", "num_vq_embeddings": 32, "block_out_channels": [32, 32, 32]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "diffusion_pytorch_model.safetensors").write_bytes(safetensors.save({"a": torch.ones(1)}))
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(UserError, match=r"not installed; run pip install 'dedloc_kit\[pictures\]'"):
        load_picture_model(of(tmp_path))
