import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BertModel

from dedloc_kit.cli.main import main
from dedloc_kit.config.loading import load_run
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.evaluate.likelihood import evaluate
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import LikelihoodSettings
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.records.state import StateInfo
from tests.learning.evaluate.language import KINDS, OTHERS, PEOPLE, PLACES, write, write_causal, write_masked
from tests.learning.evaluate.test_finetune import RUN

WORDS = [*PEOPLE, *PLACES, *KINDS, *OTHERS, DHAKA := "ঢাকা"]
TEXTS = [
    f"{person} {verb} near {place} ." for person in PEOPLE for verb in ("walks", "sees") for place in (*PLACES, DHAKA)
]


def cpu() -> Session:
    return Session("cpu", 1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write(folder, "train", {"text": ["not these"]})
    write(folder, "test", {"text": TEXTS})
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is right has a verb where the wrong one has a place; in the last pair no model of ours knows the words."""
    folder = tmp_path_factory.mktemp("pairs")
    right = [f"{person} {verb} today" for person in PEOPLE for verb in ("walks", "sees", "near")]
    wrong = [f"{person} {place} today" for person in PEOPLE for place in PLACES]
    write(folder, "train", {"sen": [*right, "unheard"], "wrong_sen": [*wrong, "unseen"]})
    return folder


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal(tmp_path_factory.mktemp("models") / "causal", WORDS)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masked(tmp_path_factory.mktemp("models") / "masked", WORDS)


def test_bits_per_byte_are_those_of_the_raw_text_whatever_the_vocabulary(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write_causal(tmp_path / "small", WORDS, uniform=True)
    large = write_causal(tmp_path / "large", [*WORDS, *(f"unused{number}" for number in range(500))], uniform=True)
    arguments = ["evaluate", str(small), "--against", str(large), "--dataset", str(text), "--json"]
    assert main([*arguments, "--device", "cpu", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    said, result = " ".join(err.split()), json.loads(out)
    size = sum(len(line.encode()) for line in TEXTS)
    assert result["samples"] == {"documents": len(TEXTS), "bytes": size}
    tokens = 5 * len(TEXTS)
    for row, vocabulary in ((result["trained"], len(WORDS) + 5), (result["against"][str(large)], len(WORDS) + 505)):
        assert row["mean"] == pytest.approx(tokens * math.log2(vocabulary) / size, 1e-5)
        assert row["perplexity per word"] == pytest.approx(vocabulary, 1e-4), "each word is one token"
        assert len(row["scores"]) == 10
        parts = [TEXTS[number::10] for number in range(10)]
        assert row["scores"] == pytest.approx(
            [5 * len(part) * math.log2(vocabulary) / len("".join(part).encode()) for part in parts], 1e-5
        )
    better = result["trained"]["mean"] - result["against"][str(large)]["mean"]
    assert f"against {large}: {better:+.4f}, better (ahead in 10 of 10 parts of the samples)" in said
    assert f"{result['trained']['mean']:.4f}" in said


def test_in_half_precision_the_scores_are_near_those_of_float32(
    causal: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = LikelihoodSettings(dataset=str(text))
    whole, session = evaluate(str(causal), settings, cpu()), cpu()
    session.half = torch.bfloat16
    halved = evaluate(str(causal), settings, session)
    assert halved.trained.mean == pytest.approx(whole.trained.mean, rel=0.01)
    assert halved.trained.mean != whole.trained.mean
    assert "in bfloat16 after" in capsys.readouterr().out


def test_a_text_that_the_tokenizer_cannot_give_back_is_told(
    causal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "held-out.txt").write_text("mirna sees quellin\n\nmirna sees Quellin\n", encoding="utf-8")
    evaluate(str(causal), LikelihoodSettings(dataset=str(tmp_path / "held-out.txt")), cpu())
    assert "does not give back 1 of 2 documents as they were" in capsys.readouterr().out


def test_a_text_that_spells_a_special_token_is_given_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_causal(tmp_path / "model", [*WORDS, "[", "SEP", "]"])
    (tmp_path / "held-out.txt").write_text("mirna sees [SEP] quellin\n", encoding="utf-8")
    evaluate(str(model), LikelihoodSettings(dataset=str(tmp_path / "held-out.txt")), cpu())
    assert "does not give back" not in capsys.readouterr().out


def test_masked_models_of_other_vocabularies_are_asked_for_the_same_words(masked: Path, tmp_path: Path) -> None:
    text = tmp_path / "held-out.txt"
    text.write_text("\n\n".join(line for line in TEXTS if line.isascii()), encoding="utf-8")
    letters = sorted({letter for word in WORDS for letter in word})
    by_letters = [*letters, *(f"##{letter}" for letter in letters)]
    names = [str(write_masked(tmp_path / f"{len(pieces)}", pieces, uniform=True)) for pieces in (WORDS, by_letters)]
    settings = LikelihoodSettings(dataset=str(text), words=40)
    report = evaluate(names[0], settings, cpu(), against=names[1:])
    # To both all tokens are equally likely, so that a word costs as many times ln(vocabulary) as it has pieces.
    per_token = math.log(len(WORDS) + 5)
    assert report.trained.per_word == pytest.approx(math.exp(per_token), 1e-4)
    assert report.against[names[1]].mean == pytest.approx(math.log2(2 * len(letters) + 5), 1e-4), "a piece is a byte"
    again = evaluate(names[0], settings, cpu())
    assert again.trained.scores == report.trained.scores


def test_the_right_sentence_of_a_pair_is_to_be_the_likelier_one(
    causal: Path, masked: Path, pairs: Path, tmp_path: Path
) -> None:
    settings = LikelihoodSettings(task="pairs", dataset=str(pairs))
    report = evaluate(str(causal), settings, cpu(), against=[str(masked)])
    tokenizer, model = load_tokenizer(str(causal)), AutoModelForCausalLM.from_pretrained(causal).eval()

    def likelihood(sentence: str) -> float:
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(sentence)["input_ids"]]])
        with torch.inference_mode():
            return -float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)

    right = [f"{person} {verb} today" for person in PEOPLE for verb in ("walks", "sees", "near")]
    wrong = [f"{person} {place} today" for person in PEOPLE for place in PLACES]
    expected = [likelihood(good) > likelihood(bad) for good, bad in zip(right, wrong, strict=True)]
    assert 0 < sum(expected) < 9
    assert report.trained.mean == sum(expected) / 10, "what is unknown to a model is not right by chance"
    assert report.against[str(masked)].kind == "masked"
    turned = tmp_path / "turned"
    write(turned, "test", {"good": [*wrong, "unseen"], "bad": [*right, "unheard"]})
    settings = LikelihoodSettings(task="pairs", dataset=str(turned), column="good", label_column="bad")
    back = evaluate(str(causal), settings, cpu(), against=[str(masked)])
    for (_, row), (_, other) in zip(report.rows, back.rows, strict=True):
        assert row.mean + other.mean == pytest.approx(0.9)


def test_a_checkpoint_is_scored_on_the_held_out_text_of_its_run(model: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        f'{RUN}\n[data.evaluation]\ndataset = "{text}"\nsplit = "test"\n', encoding="utf-8"
    )
    shutil.copytree(model.with_name("tokenizer"), tmp_path / "tokenizer")
    run = load_run(tmp_path / "run.toml")
    path = tmp_path / "step-00000003.safetensors"
    untrained = create_task(run).model()
    checkpoint.save(path, dict(untrained.named_parameters()), StateInfo(run_id=run.run_id, step=3, rounds=()))
    settings = LikelihoodSettings(words=10)
    report = evaluate(str(path), settings, cpu(), run, against=[str(model)])
    assert [row.kind for _, row in report.rows] == ["masked", "masked"]
    assert report.trained.mean != report.against[str(model)].mean


def test_what_cannot_be_scored_is_told_in_one_line_with_the_fix(
    causal: Path, masked: Path, text: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: Path | str, words: str) -> None:
        assert main(["evaluate", *map(str, arguments), "--device", "cpu", "--threads", "1"]) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert words in said

    against = (causal, "--against", masked)
    refused(*against, "--dataset", text, words="models of one kind, or compare them with --task pairs")
    refused(*against, words="name a held-out text with --dataset, or with --run")
    refused(*against, "--dataset", text, "--epochs", "3", words="--epochs is for fine-tuning")
    refused(*against, "--dataset", text, "--baseline", words="--baseline is for fine-tuning")
    refused(causal, "--dataset", text, "--words", "3", words="--words is for --task text or pairs")
    refused(*against, "--task", "pairs", "--dataset", pairs, "--words", "3", words="words tells pairs nothing")
    refused(*against, "--task", "pairs", words="name the part of jumelet/multiblimp with --subset, such as hin")
    refused(*against, "--task", "pairs", "--dataset", text, words="no column 'sen'; set the column to one of: text")
    write(tmp_path / "numbers", "test", {"sen": ["a"], "wrong_sen": [3]})
    refused(*against, "--task", "pairs", "--dataset", tmp_path / "numbers", words="row 1 (columns sen, wrong_sen)")
    refused(causal, "--task", "text", "--dataset", text, "--column", "words", words="no column 'words'")
    refused(causal, "--against", "nobody", words="nobody does not exist; name a folder with a model")
    bare = tmp_path / "bare"
    BertModel.from_pretrained(masked).save_pretrained(bare)
    load_tokenizer(str(masked)).save_pretrained(bare)
    refused(bare, "--task", "text", "--dataset", text, words="predicts no tokens (its config.json names BertModel)")
    config = json.loads((bare / "config.json").read_text(encoding="utf-8"))
    (bare / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}), encoding="utf-8")
    refused(bare, "--task", "text", "--dataset", text, words="weights of the model, such as cls.predictions")
    broken = AutoModelForCausalLM.from_pretrained(causal)
    with torch.no_grad():
        broken.lm_head.weight.fill_(math.nan)
    broken.save_pretrained(tmp_path / "broken")
    load_tokenizer(str(causal)).save_pretrained(tmp_path / "broken")
    refused(causal, "--against", tmp_path / "broken", "--dataset", text, words="broken gives no finite probabilities")
    pickled = shutil.copytree(causal, tmp_path / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({}, pickled / "pytorch_model.bin")
    refused(causal, "--against", pickled, "--dataset", text, words="cannot be loaded")
