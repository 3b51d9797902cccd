from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.models.init_from import fingerprint
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.chat import Chat
from dedloc_kit.records.evaluation import Continuation
from dedloc_kit.resources import recipe
from tests.batches import batches_from
from tests.chat_runs import chat_run, conversations, turns, write_conversations, write_rows
from tests.text_runs import text_run, write_text

pytestmark = pytest.mark.usefixtures("one_thread")


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_text(folder)
    write_conversations(folder)
    return folder


@pytest.fixture(scope="module")
def start(folder: Path) -> dict[str, Any]:
    """The options of `task` for a run that goes on from a small model that writes."""
    task = create_task(text_run(folder, "causal"))
    exported = folder / "writer"
    exported.mkdir()
    task.export(task.model(), exported, "writer")
    return {
        "init_from": str(exported),
        "init_from_sha256": fingerprint(exported),
        "architecture": "llama",
        "tokenizer": str(exported),
    }


def task_of(folder: Path, **options: Any) -> Chat:
    created = create_task(chat_run(folder, **options))
    assert isinstance(created, Chat)
    return created


def labelled(tokenizer: Any, ids: list[int]) -> list[bool]:
    """Which tokens of a conversation in ChatML the assistant says, found by its marks."""
    head = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    end, found, inside = tokenizer.convert_tokens_to_ids("<|im_end|>"), [], False
    for place, each in enumerate(ids):
        inside = inside or ids[max(0, place - len(head)) : place] == head
        found.append(inside)
        inside = inside and each != end
    return found


def test_the_loss_is_that_of_what_the_assistant_says_in_each_conversation_by_itself(folder: Path) -> None:
    """As transformers computes it for one conversation after the other."""
    task = task_of(folder, evaluation_samples=1000)
    model: Any = task.model()
    losses = []
    for said in conversations(30, seed=1):
        ids = task.tokenizer.apply_chat_template(said, tokenize=True, return_dict=False)
        assert len(ids) <= 128
        scores = model(input_ids=torch.tensor([ids])).logits[0, :-1]
        each = functional.cross_entropy(scores, torch.tensor(ids[1:]), reduction="none")
        losses.append(each[torch.tensor(labelled(task.tokenizer, ids)[1:])])
    told = torch.cat(losses)
    assert task.evaluate(model).loss == pytest.approx(told.mean().item(), abs=1e-6)
    assert len(told) == sum(map(task.weight, task.held_out_batches()))


def test_rows_hold_whole_conversations_and_only_answers_have_labels(folder: Path) -> None:
    task = task_of(folder)
    known = {
        tuple(task.tokenizer.apply_chat_template(each, tokenize=True, return_dict=False)) for each in conversations(80)
    }
    found, seen = 0, set()
    for batch in (next(batches_from(task, 8, seed, fail)) for seed in range(5)):
        assert {name: tuple(values.shape) for name, values in batch.items()} == dict.fromkeys(batch, (8, 128))
        for ids, positions, labels in zip(batch["input_ids"], batch["position_ids"], batch["labels"], strict=True):
            starts = [*torch.nonzero(positions == 0).flatten().tolist(), len(ids)]
            for begin, end in pairwise(starts):
                part, told = ids[begin:end].tolist(), labels[begin:end].tolist()
                if tuple(part) not in known:
                    assert set(part) == {task.tokenizer.pad_token_id}, "what fills a row up"
                    assert set(told) == {IGNORED}
                    continue
                said = [*labelled(task.tokenizer, part)[1:], False]
                after = [*part[1:], IGNORED]
                assert told == [each if mark else IGNORED for each, mark in zip(after, said, strict=True)]
                found += 1
                seen.add(tuple(part))
    assert found > 40
    assert len(seen) > 20


def test_a_few_steps_lower_the_training_and_the_held_out_loss_and_the_answers_change(folder: Path) -> None:
    task = task_of(folder)
    model = task.model()
    optimizer = torch.optim.AdamW(task.groups(model), lr=0.01)
    before = task.evaluate(model)
    batches = batches_from(task, 16, 0, fail)
    for _ in range(20):
        batch = task.prepare(next(batches))
        task.loss(model, batch, 0).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = task.evaluate(model)
    assert after.loss < 0.7 * before.loss
    assert after.metrics["bits per byte"] < 0.7 * before.metrics["bits per byte"]
    assert after.samples != before.samples


def test_viewers_see_what_the_model_answers_to_held_out_questions(folder: Path) -> None:
    task = task_of(folder)
    samples = task.evaluate(task.model()).samples
    asked = {}
    for said in conversations(30, seed=1):
        first = next(place for place, each in enumerate(said) if each["role"] == "assistant")
        asked[f"user: {said[first - 1]['content']} assistant: "] = said[first]["content"]
    assert len(samples) == 5
    assert all(isinstance(each, Continuation) and asked[each.before] == each.truth for each in samples)
    assert samples == task.evaluate(task.model()).samples


def test_a_run_begins_with_the_model_it_goes_on_from_and_its_new_tokens_with_the_mean_of_the_others(
    folder: Path, start: dict[str, Any]
) -> None:
    task = task_of(folder, **start)
    before: Any = AutoModelForCausalLM.from_pretrained(start["init_from"], dtype=torch.float32)
    after: Any = task.first_model()
    old, new = before.get_input_embeddings().weight, after.get_input_embeddings().weight
    assert len(new) == len(old) + 2 == len(task.tokenizer)
    assert torch.equal(new[: len(old)], old)
    torch.testing.assert_close(new[len(old) :], old.mean(0).expand(2, -1), rtol=1e-5, atol=1e-7)
    theirs = dict(before.model.layers.named_parameters())
    assert all(torch.equal(each, theirs[name]) for name, each in after.model.layers.named_parameters())
    again = dict(task_of(folder, **start).first_model().named_parameters())
    assert all(torch.equal(each, again[name]) for name, each in after.named_parameters()), "on every machine the same"
    assert task.start_loss() == task.evaluate(after).loss
    transfer = task.vocabulary_transfer()
    assert transfer is not None
    assert (transfer.copied, transfer.averaged, transfer.drawn) == (len(old), 2, 0)


def test_a_chat_goes_on_with_its_own_template_and_learns_no_new_tokens(
    folder: Path, start: dict[str, Any], tmp_path: Path
) -> None:
    first = task_of(folder, **start)
    model = first.first_model()
    first.export(model, tmp_path, "first")
    task = task_of(
        folder,
        init_from=str(tmp_path),
        init_from_sha256=fingerprint(tmp_path),
        architecture="llama",
        tokenizer=str(tmp_path),
    )
    assert task.tokenizer.chat_template == first.tokenizer.chat_template
    assert len(task.tokenizer) == len(first.tokenizer)
    assert task.evaluate(task.first_model()).loss == pytest.approx(first.evaluate(model).loss, abs=1e-6)


def test_a_run_folder_is_named_by_itself_where_its_model_lies_in_it(
    folder: Path, start: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "coordinator").mkdir()
    (tmp_path / "coordinator" / "model").symlink_to(start["init_from"], target_is_directory=True)
    for run in (tmp_path, tmp_path / "coordinator"):
        options = {**start, "init_from": str(run)}
        del options["tokenizer"]
        run_of = chat_run(folder, **options)
        task = run_of.task.model_copy()
        del (task.model_extra or {})["tokenizer"]
        created = create_task(run_of.model_copy(update={"task": task}))
        assert created.first_model() is not None


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_batches_that_are_padded_on_the_left_are_answered_as_each_question_alone(
    folder: Path, architecture: str, tmp_path: Path
) -> None:
    task = task_of(folder, architecture=architecture)
    task.export(task.model(), tmp_path, "chat")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    asked = [turns("where is the river?"), turns("sea"), turns("bank", "boat", "a much longer question about rain")]
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    made = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    together = tokenizer.apply_chat_template(asked, padding=True, **made)
    assert together["attention_mask"][1].tolist() != [1] * together["input_ids"].shape[1]
    answers = model.generate(**together, **options)[:, together["input_ids"].shape[1] :]
    for said, answer in zip(asked, answers, strict=True):
        alone = tokenizer.apply_chat_template([said], **made)
        only = model.generate(**alone, **options)[0, alone["input_ids"].shape[1] :]
        assert answer[: len(only)].tolist() == only.tolist()
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_what_is_published_answers_by_the_lines_that_stand_on_its_card(folder: Path, tmp_path: Path) -> None:
    task = task_of(folder)
    usage = task.export(task.model(), tmp_path, str(tmp_path))
    assert (usage.library, usage.pipeline) == ("transformers", "text-generation")
    said: dict[str, Any] = {}
    exec(usage.code.replace("print(", "told = (").replace("200", "5"), said)  # as a reader would run it
    assert isinstance(said["told"], str)
    answer = pipeline("text-generation", model=str(tmp_path))(turns("river"), max_new_tokens=5)
    assert answer[0]["generated_text"][:1] == turns("river")


def test_rows_that_do_not_fit_or_that_the_template_refuses_are_counted_and_told_once(
    folder: Path, tmp_path: Path
) -> None:
    long = turns("river " * 200, "sea")
    write_rows(tmp_path / "talk.jsonl", [{"messages": each} for each in [*conversations(20), long, long, long]])
    told: list[str] = []
    task = task_of(folder, train=tmp_path / "talk.jsonl")
    batches = batches_from(task, 4, 0, told.append)
    for _ in range(6):
        next(batches)
    (line,) = told
    assert "talk.jsonl is left out: it has no answer that ends within task.sequence_length (128 tokens)" in line
    assert line.losses.bad_rows == 3  # type: ignore[attr-defined]


def test_a_dataset_in_which_nothing_fits_is_an_error_with_the_fix(folder: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "talk.jsonl", [{"messages": turns("river " * 200, "sea")}] * 3)
    task = task_of(folder, train=tmp_path / "talk.jsonl")
    with pytest.raises(
        UserError, match=r"not a single sample \(.* has no answer that ends within .*\(128 tokens\).*\); choose"
    ):
        next(batches_from(task, 4, 0, lambda _: None))
    held_out = task.run.data.model_copy(update={"evaluation": Source(dataset=str(tmp_path / "talk.jsonl"))})
    task = create_task(task.run.model_copy(update={"data": held_out}))  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"talk\.jsonl holds no conversation that fits into task\.sequence_length"):
        task.evaluate(task.model())


def test_token_shards_are_refused_in_one_line(folder: Path) -> None:
    run = chat_run(folder)
    source = run.data.train[0].model_copy(update={"tokenized": True})
    task = create_task(run.model_copy(update={"data": run.data.model_copy(update={"train": (source,)})}))
    with pytest.raises(UserError, match="holds token ids, and the task chat reads conversations: name the dataset"):
        next(batches_from(task, 4, 0, fail))


def test_a_template_with_a_syntax_error_is_one_line(folder: Path, start: dict[str, Any], tmp_path: Path) -> None:
    task_of(folder).tokenizer.save_pretrained(tmp_path / "mine")
    (tmp_path / "mine" / "chat_template.jinja").write_text("{% for each in messages %}")
    with pytest.raises(UserError, match=r"^the chat template of mine cannot be used \(Unexpected end of") as raised:
        task_of(folder, tokenizer=str(tmp_path / "mine"))
    assert "\n" not in str(raised.value)


def test_the_conversations_that_are_shipped_can_all_be_learned_from(folder: Path) -> None:
    shipped = recipe("chat") / "conversations"
    told: list[str] = []
    run = chat_run(folder, train=shipped, sequence_length=512)
    held_out = Source(dataset=str(shipped), split="test", column="messages")
    run = run.model_copy(update={"data": run.data.model_copy(update={"evaluation": held_out})})
    task = create_task(run)
    next(batches_from(task, 4, 0, told.append))
    assert task.held_out_batches()
    assert told == []
    assert sum(path.stat().st_size for path in shipped.iterdir()) < 100_000
