"""What the tasks of text publish, used where there is no dedloc_kit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from dedloc_kit.learning.task import create_task
from tests.text_runs import END, text_run, write_text

USE = """if True:
    import json, sys
    sys.modules["dedloc_kit"] = None  # importing it fails
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, pipeline
    told = {}
    for task, code in json.load(sys.stdin).items():
        model = (AutoModelForCausalLM if task == "causal" else AutoModelForMaskedLM).from_pretrained(task)
        tokenizer = AutoTokenizer.from_pretrained(task)
        ids = tokenizer("the river", return_tensors="pt")
        with torch.inference_mode():
            scores = model(**ids).logits[0, -1].double().sum().item()
        long = tokenizer((tokenizer.mask_token or "") + " river bank" * 500, truncation=True)["input_ids"]
        told[task] = [ids.input_ids[0].tolist(), scores, len(long), tokenizer.model_max_length]
        if task == "albert":
            fill = pipeline("fill-mask", model=task)
            told["filled"] = len(fill(tokenizer.decode(long), tokenizer_kwargs={"truncation": True}))
        print("now", task)
        exec(code)
    print(json.dumps(told))
"""


@pytest.mark.soak
def test_what_the_tasks_of_text_publish_works_where_there_is_no_dedloc_kit(tmp_path: Path) -> None:
    write_text(tmp_path)
    models: dict[str, Any] = {}
    codes: dict[str, str] = {}
    tasks: dict[str, Any] = {}
    for name, pipeline in (("albert", "fill-mask"), ("encoder", "fill-mask"), ("causal", "text-generation")):
        tasks[name] = task = create_task(text_run(tmp_path, name, model={"max_position_embeddings": 64}))
        models[name] = task.model().eval()
        (tmp_path / "published" / name).mkdir(parents=True)
        usage = task.export(models[name], tmp_path / "published" / name, name)
        assert usage is not None
        assert (usage.library, usage.pipeline) == ("transformers", pipeline)
        codes[name] = usage.code
    assert not [path for path in (tmp_path / "published").rglob("*") if path.suffix in {".bin", ".pt", ".pkl", ".py"}]

    done = subprocess.run(
        [sys.executable, "-c", USE],
        input=json.dumps(codes),
        cwd=tmp_path / "published",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *said, told = done.stdout.splitlines()
    found = json.loads(told)
    assert found["filled"] == 5
    for name, model in models.items():
        ids, scores, cut, longest = found[name]
        with torch.inference_mode():
            made = model(input_ids=torch.tensor([ids]))
        expected = made.prediction_logits if name == "albert" else made.logits
        assert scores == pytest.approx(expected[0, -1].double().sum().item(), abs=1e-3)
        assert cut == longest == 64, "it cuts where the model does not go on"
    tokenizer = tasks["causal"].tokenizer
    spelled = [tokenizer.convert_tokens_to_ids(END), *tokenizer.backend_tokenizer.encode("the river").ids]
    assert found["causal"][0] == spelled, "it begins as each document in training"
    parts = "\n".join(said).split("now ")[1:]
    for part, word in zip(parts, ("token_str", "token_str", "Put the beginning of a text here"), strict=True):
        assert word in part


@pytest.mark.parametrize(("architecture", "warned"), [("qwen2", True), ("qwen3", False), ("llama", False)])
def test_whoever_exports_is_told_once_where_transformers_takes_another_tokenizer(
    architecture: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_text(tmp_path)
    task: Any = create_task(text_run(tmp_path, "causal", architecture=architecture))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        task.export(task.model().eval(), tmp_path / name, name)
    told = [each.getMessage() for each in caplog.records if "AutoTokenizer" in each.getMessage()]
    assert len(told) == warned
    assert all("load it with PreTrainedTokenizerFast" in each for each in told)
    beside = AutoTokenizer.from_pretrained(tmp_path / "one").backend_tokenizer.pre_tokenizer
    assert (repr(beside) != repr(task.tokenizer.backend_tokenizer.pre_tokenizer)) == warned
