"""A model that is to be served is looked at when it is read."""

from pathlib import Path

import pytest

from dedloc_kit.blocks.served import read_model
from dedloc_kit.errors import UserError
from tests.api.serving import grown, tiny, tokenizer


def test_a_tokenizer_with_more_tokens_than_its_model_is_refused(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "keep").mkdir()
    assert "tokenizer.json" in read_model(str(tmp_path / "model"), tmp_path / "keep").files
    grown().save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match=r"the tokenizer of model has 301 tokens, its model 300: .*resize_token_embed"):
        read_model(str(tmp_path / "model"), tmp_path / "keep")
