"""A small run of each task."""

from pathlib import Path

from transformers import AutoTokenizer

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import TaskConfig
from tests.chat_runs import chat_run, write_conversations
from tests.learning.tasks import swav_run, text_to_image_run
from tests.pictures import striped
from tests.text_runs import text_run, write_text

TASKS = ("albert", "causal", "causal with two edges", "chat", "encoder", "span-corruption", "swav", "text-to-image")
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}


def write_data(folder: Path) -> None:
    """What `run_of` reads."""
    write_text(folder)
    write_conversations(folder)
    edged = AutoTokenizer.from_pretrained(folder / "masked")
    edged.bos_token, edged.eos_token = edged.cls_token, edged.sep_token
    edged.save_pretrained(folder / "edged")
    text_to_image_run.write_codes(folder)
    (folder / "striped").mkdir()
    striped(folder / "striped", 40)


def run_of(name: str, folder: Path) -> RunConfig:
    if name == "swav":
        return swav_run.run_of(folder / "striped", queue_length=8, augmentation={"blur_probability": 0.5, "hue": 0.1})
    if name == "text-to-image":
        return text_to_image_run.run_of(folder)
    if name == "chat":
        return chat_run(folder)
    if name == "albert":
        return text_run(folder, name, model={"embedding_size": 16, "max_position_embeddings": 64})
    if name == "span-corruption":
        options = {"tokenizer": str(folder / "edged"), "sequence_length": 32, "evaluation_samples": 20, "model": T5}
        task = TaskConfig.model_validate({"name": name, **options})
        return text_run(folder, "causal").model_copy(update={"task": task})
    if name == "causal with two edges":
        # Its documents end with a token after which nothing is told.
        return text_run(folder, "causal", tokenizer=str(folder / "edged"))
    return text_run(folder, name)
