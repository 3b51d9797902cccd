"""Training goes on from a model that exists: in a folder of the organizer's, or on the Hub."""

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.utils.hub import hf_api

from dedloc_kit.config.loading import load_run
from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.config.places import names_local_files
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import TaskConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import Left
from dedloc_kit.hub import described
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, MASKED
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.learning.models.init_from import Undescribed, fingerprint
from dedloc_kit.learning.task import VocabularyTransfer, create_task
from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.learning.tasks.encoder import Encoder
from tests.hang import HANG
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.swarm.harness import Swarm, difference, ledger_of, wait_until
from tests.text_runs import MODEL, text_run, write_text

SHAPE = {**MODEL, "max_position_embeddings": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, and beside it `published`: a decoder with a tokenizer, which has some rows more than tokens."""
    folder = tmp_path_factory.mktemp("run")
    texts = write_text(folder)
    train_tokenizer((text.upper() for text in texts), 360, folder / "new", "bpe", CAUSAL)
    tokenizer = load_tokenizer(str(folder / "causal"))
    torch.manual_seed(7)
    # Values that neither transformers nor the task would take by themselves.
    odd = {"tie_word_embeddings": False, "rms_norm_eps": 1e-4}
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **odd, vocab_size=len(tokenizer) + 4))
    model.save_pretrained(folder / "published")
    tokenizer.save_pretrained(folder / "published")
    return folder


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        files = {path.name: path.read_bytes() for path in (folder / "published").iterdir()}
        hub.commits["us/gated"], hub.gated = [files], {"us/gated"}
        hub.commits["us/model"] = [files, {**files, "config.json": b"{}", "more": b""}]
        yield hub


def run_from(folder: Path, start: str, **options: Any) -> RunConfig:
    """A run with nothing but a start and text, unless `options` say more."""
    run = text_run(folder, "causal")
    chosen = {"sequence_length": 32, "evaluation_samples": 20, "init_from": start, **options}
    return run.model_copy(update={"task": TaskConfig(name="causal", **chosen)})


def causal(run: RunConfig) -> Causal:
    task = create_task(run)
    assert isinstance(task, Causal)
    return task


def lines_of(folder: Path, where: Path) -> dict[str, Any]:
    """What the run's file has to say of a folder, as an organizer would put it there."""
    with pytest.raises(Undescribed, match=r"dedloc check RUN\.toml prints the lines") as raised:
        create_task(run_from(folder, str(where)))
    _, _, rest = raised.value.lines.partition("put into [task]:\n")
    head, _, model = rest.partition("and below it:\n")
    lines: dict[str, Any] = tomllib.loads(head) | tomllib.loads(model)["task"]
    return lines


def the_same(model: Any, published: Path) -> bool:
    """Does it score a text as the published model does?"""
    ids = torch.arange(20)[None]
    expected = AutoModelForCausalLM.from_pretrained(published)(input_ids=ids).logits
    found = model.eval()(input_ids=ids).logits
    return torch.equal(found, expected[..., : found.shape[-1]])


def test_a_model_in_a_folder_is_described_in_the_runs_file_and_begun_with(folder: Path) -> None:
    lines = lines_of(folder, folder / "published")
    assert lines["architecture"] == "llama"
    assert lines["model"]["rms_norm_eps"] == 1e-4
    assert lines["model"]["rope_parameters"] == SHAPE["rope_parameters"]
    run = run_from(folder, str(folder / "published"), **lines)
    task = causal(run)
    assert task.vocabulary_transfer() == VocabularyTransfer(len(task.tokenizer), 0, 0)
    assert the_same(task.first_model(), folder / "published")
    assert not the_same(task.model(), folder / "published")
    # Somebody who has the tokenizer alone builds a model of the same shape.
    elsewhere = causal(run_from(folder, "/nowhere", **lines, tokenizer=str(folder / "causal")))
    shapes = {name: each.shape for name, each in elsewhere.model().named_parameters()}
    assert shapes == {name: each.shape for name, each in task.first_model().named_parameters()}


def test_the_printed_lines_say_what_the_tensors_are_where_config_json_says_something_else(
    folder: Path, tmp_path: Path, hub: LoopbackHub
) -> None:
    shutil.copytree(folder / "published", where := tmp_path / "untied")
    config = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    lines = lines_of(folder, where)
    assert lines["model"]["tie_word_embeddings"] is False
    assert the_same(causal(run_from(folder, str(where), **lines)).first_model(), folder / "published")
    hub.commits["us/untied"] = [{path.name: path.read_bytes() for path in where.iterdir()}]
    start = f"us/untied@{hub.revision('us/untied')}"
    with pytest.raises(UserError, match=r"put into \[task.model\]: tie_word_embeddings = false$"):
        causal(run_from(folder, start)).first_model()
    told = causal(run_from(folder, start, model={"tie_word_embeddings": False}))
    assert the_same(told.first_model(), folder / "published")


def test_the_printed_lines_say_that_something_usual_is_not_there(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "published", where := tmp_path / "wide")
    shape = {**SHAPE, "num_key_value_heads": 2, "sliding_window": None}
    MistralForCausalLM(MistralConfig(**shape, vocab_size=400)).save_pretrained(where)
    lines = lines_of(folder, where)
    assert lines["model"]["sliding_window"] == "null"
    task = causal(run_from(folder, str(where), **lines))
    assert task.config().sliding_window is None
    assert the_same(task.first_model(), where)


def test_a_model_of_the_hub_is_begun_with_as_of_its_commit(folder: Path, hub: LoopbackHub) -> None:
    run = run_from(folder, f"us/model@{hub.revision('us/model', 0)}")
    assert the_same(causal(run).first_model(), folder / "published")
    other = run_from(folder, f"us/model@{hub.revision('us/model', 1)}")
    assert run.fingerprint != other.fingerprint
    with pytest.raises(UserError, match=r"cannot be used \(it names no model_type\)"):
        create_task(other)


def test_each_test_has_a_hub_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch, loopback_hub(patch, tmp_path) as hub:
            assert hf_api().endpoint == hub.url


def test_a_new_vocabulary_begins_far_better_than_chance(folder: Path, hub: LoopbackHub) -> None:
    start = f"us/model@{hub.revision('us/model', 0)}"
    run = run_from(folder, start, tokenizer=str(folder / "new"))
    task = causal(run)
    made = task.vocabulary_transfer()
    assert made is not None
    assert made.copied + made.averaged == len(task.tokenizer) - 1
    assert made.drawn == 1, "the old tokenizer has no padding"
    assert made.averaged > 10
    model: Any = task.first_model()
    old = AutoModelForCausalLM.from_pretrained(folder / "published")
    end, old_end = task.tokenizer.eos_token_id, load_tokenizer(str(folder / "causal")).eos_token_id
    for mine, theirs in ((model.model.embed_tokens, old.model.embed_tokens), (model.lm_head, old.lm_head)):
        assert torch.equal(mine.weight[end], theirs.weight[old_end])
    assert (model.config.vocab_size, model.config.eos_token_id) == (len(task.tokenizer), end)
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, old.model.layers[1].mlp.up_proj.weight)
    assert task.evaluate(model).metrics["bits per byte"] > 0


def test_the_published_model_is_measured_with_its_own_vocabulary_on_the_same_text(
    folder: Path, hub: LoopbackHub
) -> None:
    start, new = f"us/model@{hub.revision('us/model', 0)}", str(folder / "new")
    assert causal(text_run(folder, "causal")).start_loss() is None
    kept = causal(run_from(folder, start))
    assert kept.start_loss() == kept.evaluate(kept.first_model()).loss
    for samples in (20, 100_000):  # a part of the held-out text, and all of it
        task = causal(run_from(folder, start, tokenizer=new, evaluation_samples=samples))
        found, untrained, read = task.start_loss(), task.evaluate(task.model()), task.held_out_packs()
        assert found is not None
        assert sum(len(text.encode()) for text in read.texts) == pytest.approx(read.bytes, rel=0.05)
        theirs = causal(run_from(folder, start, evaluation_samples=100_000))
        theirs.held_out_texts = read.texts if samples == 20 else None
        bits = theirs.evaluate(theirs.first_model()).metrics["bits per byte"]
        assert found / untrained.loss == pytest.approx(bits / untrained.metrics["bits per byte"])


def test_an_encoder_may_go_on_too(folder: Path) -> None:
    published = folder / "encoder"
    first = create_task(text_run(folder, "encoder", architecture="bert"))
    assert isinstance(first, Encoder)
    model: Any = first.model()
    model.get_output_embeddings().bias.data.normal_()
    first.save(model, published)
    shape = {key: each for key, each in first.family.published(model.config.to_dict()).items() if each is not None}
    run = text_run(folder, "encoder")
    start = {"init_from": str(published), "init_from_sha256": fingerprint(published)}
    options = {**run.task.options, **start, "architecture": "bert", "model": shape}
    task = create_task(run.model_copy(update={"task": TaskConfig(name="encoder", **options)}))
    assert isinstance(task, Encoder)
    assert task.evaluate(task.first_model()).loss == task.start_loss() == first.evaluate(model).loss
    train_tokenizer(iter(["a river, a sea"] * 9), 300, folder / "words", "bpe", MASKED)
    renewed = create_task(
        run.model_copy(update={"task": TaskConfig(name="encoder", **options | {"tokenizer": str(folder / "words")})})
    )
    assert isinstance(renewed, Encoder)
    assert renewed.start_loss() is None, "losses of other tokens do not compare"


def broken(folder: Path, published: Path, change: Callable[[Path], None]) -> RunConfig:
    """A run from a copy of the model in which something is changed."""
    shutil.rmtree(published, ignore_errors=True)
    shutil.copytree(folder / "published", published)
    lines = lines_of(folder, published)
    change(published)
    lines["init_from_sha256"] = fingerprint(published)
    return run_from(folder, str(published), **lines)


def other_kind(published: Path) -> None:
    BertModel(BertConfig(**MODEL, vocab_size=10)).save_pretrained(published)


def fewer_rows(published: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(published)
    model.resize_token_embeddings(100)
    model.save_pretrained(published)


def cut_off(published: Path) -> None:
    weights = published / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"), "has no weights in safetensors, and"),
        (lambda at: (at / "config.json").unlink(), "published holds no config.json, so it is no model of transformers"),
        (other_kind, 'task.architecture is "llama", and published is "bert"; leave it out'),
        (fewer_rows, "tokens, its model 100: they do not belong together"),
        (cut_off, "the model of task.init_from cannot be loaded"),
        (shutil.rmtree, "task.init_from: there is no folder"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused_in_a_line(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], problem: str
) -> None:
    run = broken(folder, tmp_path / "published", change)
    with pytest.raises(UserError) as raised:
        causal(run).first_model()
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_value_of_the_model_that_the_runs_file_lacks_is_told(folder: Path) -> None:
    lines = lines_of(folder, folder / "published")
    del lines["model"]["rms_norm_eps"]
    with pytest.raises(
        UserError, match=r"^task\.model says nothing of rms_norm_eps, which is 0\.0001 in published; put"
    ):
        causal(run_from(folder, str(folder / "published"), **lines)).first_model()


def test_another_model_than_the_runs_file_says_is_refused(folder: Path) -> None:
    lines = lines_of(folder, folder / "published") | {"init_from_sha256": "0" * 64}
    with pytest.raises(UserError, match=r"not what the run's file says: task\.init_from_sha256 must be [0-9a-f]{64}"):
        causal(run_from(folder, str(folder / "published"), **lines)).first_model()


@pytest.mark.parametrize(
    ("start", "options", "problem"),
    [
        ("us/", {}, "task.init_from must be OWNER/NAME@COMMIT of the Hub, or a folder"),
        ("us/model", {}, 'task.init_from must name a commit, so that it stays the same: "us/model@"'),
        ("us/model@main", {}, "task.init_from must name a commit"),
        ("model", {}, "task.init_from: model is a folder of the organizer's; if you have a copy, name it with --data"),
        ("us/model@COMMIT", {"architecture": "qwen3"}, 'task.architecture is "qwen3", and us/model@'),
        ("us/model@COMMIT", {"sequence_length": 65}, "task.sequence_length must be at most"),
        ("us/model@" + "0" * 40, {"tokenizer": "TOKENIZER"}, "us/model has no commit 0000"),
        ("us/model@" + "0" * 40, {}, "us/model has no commit 0000"),
        ("us/none@" + "0" * 40, {"tokenizer": "TOKENIZER"}, "there is no us/none on the Hub that you may read"),
        ("us/none@" + "0" * 40, {}, "there is no us/none on the Hub that you may read; check the name, or log in"),
        ("us/gated@" + "0" * 40, {}, "us/gated is gated: ask for access on huggingface.co/us/gated, then log in"),
    ],
)
def test_a_start_that_cannot_be_is_told_when_the_task_is_made(
    folder: Path, hub: LoopbackHub, start: str, options: dict[str, Any], problem: str
) -> None:
    options = {key: str(folder / "causal") if value == "TOKENIZER" else value for key, value in options.items()}
    with pytest.raises(UserError) as raised:
        create_task(run_from(folder, start.replace("COMMIT", hub.revision("us/model", 0)), **options))
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_start_beside_the_runs_file_is_found_and_the_public_learns_its_name_alone(folder: Path) -> None:
    text = 'name = "x"\nglobal_batch = 8\n[task]\nname = "causal"\ninit_from = "./published"\ntokenizer = "a/b"\n'
    (folder / "run.toml").write_text(text + '[[data.train]]\ndataset = "a/b"\n')
    run = load_run(folder / "run.toml")
    assert run.task.options["init_from"] == str(folder / "published")
    assert json.loads(described(run))["run"]["task"]["init_from"] == "published"
    assert not names_local_files(run), "volunteers do not read it"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_volunteers_get_the_start_from_the_swarm(folder: Path, tmp_path: Path) -> None:
    published = tmp_path / "published"
    shutil.copytree(folder / "published", published)
    lines = lines_of(folder, published)
    run = run_from(folder, str(published), **lines, tokenizer=str(folder / "causal"))
    slow = OptimizerConfig(learning_rate=1e-7, warmup_steps=0, total_steps=2)
    run = run.model_copy(update={"optimizer": slow})
    first = dict(causal(run).first_model().named_parameters())
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=2, task_module=None)
        ledger = ledger_of(coordinator)
        wait_until(lambda: ledger.start() is not None, "the start is not measured", HANG)
        start = ledger.start()
        assert start is not None
        assert (start.run_id, start.model) == (run.run_id, "published")
        assert start.loss == pytest.approx(causal(run).start_loss(), rel=1e-4)
        ledger.close()
        shutil.rmtree(published)
        volunteer = swarm.volunteer("volunteer", {}, microbatch=4, until_step=2, task_module=None)
        volunteer.wait_for(Left)
        coordinator.wait_for_step(2)
        assert coordinator.worker.stop() == 0
    assert difference(volunteer.parameters(), coordinator.parameters()) == 0.0
    for name, parameter in coordinator.parameters().items():
        torch.testing.assert_close(parameter, first[name].detach(), rtol=0, atol=1e-5)
        assert not torch.equal(parameter, first[name])
