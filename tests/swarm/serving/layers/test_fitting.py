"""How many layers a machine takes, and how fast it is."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.manifest import describe_folder
from dedloc_kit.errors import UserError
from dedloc_kit.serving.config import WeightFormat
from dedloc_kit.swarm.serving.layers.fitting import Sizes, guessed_speed, layers_that_fit, measured
from tests.blocks import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny.model("Llama").save_pretrained(folder)
    return folder


def test_a_layer_takes_its_numbers_and_a_cache_that_follows_from_the_configuration(folder: Path) -> None:
    config, manifest = tiny.config("Llama"), describe_folder(folder)
    numbers = sum(tensor.numel() for name, tensor in tiny.model("Llama").state_dict().items() if ".layers.0." in name)
    sizes = Sizes.of(config, manifest, "float32")
    assert sizes.held == sizes.stored == 4 * numbers
    assert sizes.cache == 2 * 2 * 8 * 4  # keys and values of two heads of eight numbers
    held = {form: Sizes.of(config, manifest, form).held / sizes.held for form in FORMS}
    assert held["bfloat16"] == 0.5
    assert held["int8"] <= 0.3
    assert held["int4"] <= 0.2


def test_experts_are_counted_as_they_are_held(tmp_path: Path) -> None:
    """All of a layer's are one tensor and no linear layer, so they stay in float32."""
    whole = tiny.model("Mixtral")
    whole.save_pretrained(tmp_path)
    layer = {name: tensor for name, tensor in whole.state_dict().items() if ".layers.0." in name}
    experts = sum(tensor.nbytes for name, tensor in layer.items() if "experts" in name)
    held = Sizes.of(whole.config, describe_folder(tmp_path), "int8").held
    assert experts < held < experts + 0.3 * (sum(tensor.nbytes for tensor in layer.values()) - experts) + 1000


FORMS: tuple[WeightFormat, ...] = ("float32", "bfloat16", "int8", "int4")


@pytest.mark.parametrize(("free", "fit"), [(1_000, 7), (150, 1)])
def test_as_many_layers_are_taken_as_fit_with_their_caches(
    monkeypatch: pytest.MonkeyPatch, free: int, fit: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    assert layers_that_fit(Sizes(90, 90, 1), 10) == fit


def test_who_has_no_room_for_one_layer_is_told_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100))
    with pytest.raises(UserError, match="lower --weights or --cache-tokens"):
        layers_that_fit(Sizes(90, 90, 1), 10)


def test_speeds_are_measured_and_guessed_as_positive_numbers() -> None:
    span = Span.of(tiny.model("Llama"), 0, 2)
    speeds = measured(span, torch.float32)
    assert min(speeds.decoding, speeds.prompts, speeds.passes) > 1
    assert guessed_speed(Sizes(10**6, 10**6, 1), 4) < guessed_speed(Sizes(10**6, 10**6, 1), 1)
