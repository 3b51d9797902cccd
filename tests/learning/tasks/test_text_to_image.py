"""Learning pictures from text, on captions that tell the codes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import JanusVQVAE, JanusVQVAEConfig

from dedloc_kit.errors import UserError
from dedloc_kit.events import Left
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.drawing.draw import Drawer
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer
from dedloc_kit.learning.tasks.text_to_image import TextToImage
from dedloc_kit.learning.train.optim.build import build_optimizer
from tests.batches import batches_from
from tests.learning.tasks.text_to_image_run import PICTURES, run_of, write_codes, write_picture_model
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.swarm.harness import Swarm, assert_ledger_sums, difference


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pictures from text")
    write_codes(found)
    write_picture_model(found)
    return found


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def task_of(folder: Path, **options: Any) -> TextToImage:
    task = create_task(run_of(folder, **options))
    assert isinstance(task, TextToImage)
    return task


def trained(task: TextToImage, steps: int = 60) -> DrawingTransformer:
    model = task.model()
    optimizer = build_optimizer(task.run.optimizer, task.groups(model))
    for step, batch in enumerate(islice(batches_from(task, 32, 0, lambda _: None), steps)):
        task.loss(model, task.prepare(batch), step).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert isinstance(model, DrawingTransformer)
    return model


def test_captions_are_learned_and_drawn(folder: Path) -> None:
    task = task_of(folder, drawing={"top_k": 1})
    before = task.evaluate(task.model())
    after = task.evaluate(trained(task))
    told = after.metrics
    assert after.loss < 0.5 < before.loss
    assert after.loss < told["code loss without caption"] - 0.1
    assert after.loss < told["code loss with another caption"] - 0.3
    for one, other in zip(before.samples, after.samples, strict=True):
        assert one.kind == other.kind == "drawing"
        assert (one.caption, one.real) == (other.caption, other.real), "the same ones each time"
        digests = {picture.digest for picture in after.pictures}
        assert {other.picture, other.real} <= digests
    assert len({sample.caption for sample in after.samples}) == 6  # type: ignore[union-attr]
    assert {picture.side for picture in after.pictures} == {12}
    assert task.evaluate(task.model()) == before, "the same model gives the same evaluation"


def test_a_share_of_the_samples_has_no_caption(folder: Path) -> None:
    task = task_of(folder, caption_dropout=0.25)
    captions = torch.cat([batch["captions"] for batch in islice(batches_from(task, 50, 0, print), 20)])
    nothing = (captions == task.shape.padded([[]])).all(1)
    assert 0.2 < nothing.float().mean() < 0.3
    told = next(batches_from(task_of(folder, caption_dropout=0.0), 50, 0, print))["captions"]
    assert (told[:, :2] < task.shape.tokens).all()
    assert (told[:, 2:] == torch.tensor([task.shape.tokens + 2, task.shape.tokens + 3])).all()


def test_the_loss_weighs_codes_and_text(folder: Path) -> None:
    batch = next(batches_from(task_of(folder), 8, 0, print))
    model = task_of(folder).model()
    assert isinstance(model, DrawingTransformer)
    captions, codes = batch["captions"], batch["codes"]
    with torch.no_grad():
        of_text = of_codes = 0.0
        for caption, picture in zip(captions, codes, strict=True):
            after_tokens, after_codes = model(caption[None], picture[None, :-1])
            scores = model.text_output(after_tokens)[0].log_softmax(-1)
            of_text -= sum(scores[place, caption[place + 1]].item() for place in range(3)) / 3 / 8
            scores = model.code_output(after_codes)[0].log_softmax(-1)
            of_codes -= sum(scores[place, picture[place]].item() for place in range(9)) / 9 / 8
        for weight in (7.0, 0.5):
            found = task_of(folder, image_loss_weight=weight).loss(model, batch, 0).mean.item()
            assert found == pytest.approx((of_text + weight * of_codes) / (1 + weight), abs=1e-5)


def test_what_decays_are_the_matrices(folder: Path) -> None:
    task = task_of(folder)
    model = task.model()
    decaying, rest = task.groups(model)
    assert (decaying["weight_decay"], rest["weight_decay"]) == (0.01, 0.0)
    names = {id(each): name for name, each in model.named_parameters()}
    found = [{names[id(each)] for each in group["params"]} for group in (decaying, rest)]
    assert found[0] | found[1] == set(names.values())
    assert not found[0] & found[1]
    assert {"of_text.weight", "blocks.0.wide.weight"} <= found[0]
    assert {"scales", "blocks.0.wide.bias", "norm.weight"} <= found[1]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"model": {"num_hidden_layers": 4, "num_shared_blocks": 4}},
            "model.num_shared_blocks is 4 and model.num_hidden_layers is 4: set it to at most one less",
        ),
        (
            {"model": {"hidden_size": 30, "num_attention_heads": 4}},
            "model.hidden_size is 30: set it to a multiple of 4 and of model.num_attention_heads (4)",
        ),
        ({"model": {"hidden_size": 16, "num_attention_heads": 4}}, "with at least 6 for each head"),
        ({"model": {"kernel_size": 4}}, "model.kernel_size is 4; set it to an odd number, such as 5"),
        ({"model": {"attention": ["rows"]}}, "task.model.attention[0]: input should be 'full', 'row', 'column' or"),
        ({"model": {"hiden_size": 8}}, "task.model.hiden_size is not a known key; did you mean 'hidden_size'?"),
        ({"caption_dropuot": 0.1}, "task.caption_dropuot is not a known key; did you mean 'caption_dropout'?"),
        ({"caption_dropout": 1.0}, "task.caption_dropout: input should be less than 1, not 1.0"),
        ({"image_loss_weight": 0}, "task.image_loss_weight: input should be greater than 0"),
        ({"drawing": {"top_k": 0}}, "task.drawing.top_k: input should be greater than or equal to 1"),
        ({"tokenizer": "/nowhere"}, "the tokenizer /nowhere does not exist or has no tokenizer.json; make one with"),
        ({"pictures": {**PICTURES, "size": 13}}, "pictures.size must be a multiple of pictures.side"),
    ],
)
def test_options_that_cannot_be_are_refused_in_a_line(folder: Path, options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as refused:
        task_of(folder, **options)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pictures_that_are_no_such_codes_are_refused_in_a_line(folder: Path) -> None:
    wrong = [
        ({"pictures": {**PICTURES, "side": 2, "size": 8}}, "another picture model"),
        ({"pictures": {**PICTURES, "codes": 5}}, "another picture model"),
    ]
    for options, line in wrong:
        with pytest.raises(UserError, match=line):
            next(batches_from(task_of(folder, **options), 4, 0, lambda _: None))
    run = run_of(folder)
    untokenized = run.data.train[0].model_copy(update={"tokenized": False})
    data = run.data.model_copy(update={"train": (untokenized,), "evaluation": None})
    task = create_task(run.model_copy(update={"data": data}))
    with pytest.raises(UserError, match=r"dedloc prepare images RUN\.toml --shards, and name those with tokenized"):
        next(batches_from(task, 4, 0, lambda _: None))
    with pytest.raises(UserError, match=r"add \[data.evaluation\]"):
        task.evaluate(task.model())


USE = """if True:
    import json, sys
    sys.modules["dedloc_kit"] = None  # importing it fails
    told = json.load(sys.stdin)
    exec(told["code"])
    found = Drawer(folder).codes(told["captions"], seed=5).tolist()
    print(json.dumps([found, picture.size, list(picture.tobytes())]))
"""


@pytest.mark.child
def test_what_is_published_draws_the_same_where_there_is_no_dedloc_kit(
    folder: Path, hub: LoopbackHub, tmp_path: Path
) -> None:
    task = task_of(folder, drawing={"guidance_scale": 2.0, "top_k": 4})
    model = task.model().eval()
    assert isinstance(model, DrawingTransformer)
    published = tmp_path / "published"
    published.mkdir()
    usage = task.export(model, published, "me/drawer")
    assert (usage.library, usage.pipeline) == ("pytorch", "text-to-image")
    hub.commits["me/drawer"] = [{path.name: path.read_bytes() for path in published.iterdir()}]

    captions = ["a red", "the blue", "dark green a red the"]
    done = subprocess.run(
        [sys.executable, "-c", USE],
        input=json.dumps({"code": usage.code, "captions": captions}),
        env={**os.environ, "PYTHONPATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    codes, size, pixels = json.loads(done.stdout.splitlines()[-1])
    assert torch.equal(torch.tensor(codes), task.draw_codes(model, captions, seed=5))
    assert size == [12, 12]
    drawn = task.decode(task.draw_codes(model, ["Put a caption here"], seed=0))
    assert np.array_equal(np.array(pixels, np.uint8).reshape(12, 12, 3), drawn[0].permute(1, 2, 0).numpy())
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_a_caption_that_spells_a_control_token_is_drawn_as_text(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    tokenizer.add_special_tokens(["[END]"])
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    task = task_of(folder, tokenizer=str(tmp_path / "tokenizer"))
    model = task.model().eval()
    assert isinstance(model, DrawingTransformer)
    (tmp_path / "published").mkdir()
    task.export(model, tmp_path / "published", "me/drawer")
    unknown, spelled = "red a red a", "red [END] red [END]"  # to this tokenizer what is unknown is `a`
    drawer = Drawer(tmp_path / "published")
    assert torch.equal(task.draw_codes(model, [spelled], seed=5), task.draw_codes(model, [unknown], seed=5))
    assert torch.equal(drawer.codes([spelled], seed=5), drawer.codes([unknown], seed=5))


def test_with_a_picture_model_of_transformers_it_is_published_too(folder: Path, tmp_path: Path) -> None:
    config = {
        **{"embed_dim": 4, "num_embeddings": 6, "latent_channels": 8, "base_channels": 32},
        **{"channel_multiplier": [1, 1, 1], "num_res_blocks": 1, "num_patches": 3},
    }
    torch.manual_seed(0)
    JanusVQVAE(JanusVQVAEConfig(**config)).save_pretrained(tmp_path / "janus")
    task = task_of(folder, pictures={**PICTURES, "model": str(tmp_path / "janus")})
    model = task.model()
    assert isinstance(model, DrawingTransformer)
    (tmp_path / "published").mkdir()
    task.export(model, tmp_path / "published", "me/drawer")
    drawn = Drawer(tmp_path / "published").draw(["a red", "the blue"], seed=2)
    expected = task.decode(task.draw_codes(model, ["a red", "the blue"], seed=2))
    found = np.stack([np.asarray(each) for each in drawn]).astype(int)
    # One picture at a time or several at once: float32 differs in its last bits, and rounding by 1 in some values.
    assert np.abs(found - expected.permute(0, 2, 3, 1).numpy()).max() <= 1
    assert expected.float().std() > 1


@pytest.mark.real
def test_two_volunteers_learn_to_draw_and_all_samples_are_in_the_ledger(folder: Path, tmp_path: Path) -> None:
    run = run_of(folder)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=4, task_module=None)
        volunteers = [swarm.volunteer(name, microbatch=4, until_step=4, task_module=None) for name in ("one", "two")]
        for peer in volunteers:
            peer.wait_for(Left)
        coordinator.wait_for_step(4)
        assert coordinator.worker.stop() == 0
    for peer in volunteers:
        assert difference(peer.parameters(), coordinator.parameters()) == 0.0
    assert_ledger_sums(coordinator, run.global_batch)
