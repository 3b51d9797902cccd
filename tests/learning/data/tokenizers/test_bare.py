"""A tokenizer without transformers is the one with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.tokens import vocabulary_hash
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, MASKED
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer

TEXTS = ["a red dragon", "two blue swords, and a shield"] * 20


@pytest.mark.parametrize("special", [CAUSAL, MASKED], ids=["causal", "masked"])
def test_it_has_the_tokens_of_the_one_of_transformers(tmp_path: Path, special: dict[str, str]) -> None:
    folder = tmp_path / "tokenizer"
    train_tokenizer(iter(TEXTS), 300, folder, "bpe", special)
    bare, full = BareTokenizer(str(folder)), load_tokenizer(str(folder))
    assert (bare.tokens, bare.vocabulary_hash) == (len(full), vocabulary_hash(full))
    text = "a Red dragon's   sword " * 300
    assert bare.ids(text) == full.backend_tokenizer.encode(text, add_special_tokens=False).ids
    assert bare.text(bare.ids("a red dragon")) == "a red dragon"
    (tmp_path / "copy").mkdir()
    bare.save(tmp_path / "copy")
    assert BareTokenizer(str(tmp_path / "copy")).vocabulary_hash == bare.vocabulary_hash


def test_what_is_no_tokenizer_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    for name, line in ((str(tmp_path), "cannot be loaded"), (str(tmp_path / "none"), "does not exist")):
        with pytest.raises(UserError, match=line) as refused:
            BareTokenizer(name)
        assert "make one with: dedloc prepare tokenizer RUN.toml" in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.child
def test_neither_it_nor_the_task_imports_transformers_or_pillow() -> None:
    imported = "import sys, dedloc_kit.learning.tasks.text_to_image"
    code = f"{imported}; print({{'transformers', 'PIL', 'diffusers'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "set()", done.stderr
