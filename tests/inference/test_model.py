"""What somebody may give to the model by mistake."""

from typing import Any

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.inference.model import AutoDistributedModelForCausalLM


@pytest.mark.parametrize("activations", ["float64", "fp32", None])
def test_a_form_that_is_not_known_is_refused_before_anybody_is_asked(activations: Any) -> None:
    with pytest.raises(UserError, match="not known here; choose one of: float16, bfloat16, float32, 8bit"):
        AutoDistributedModelForCausalLM.from_pretrained("http://127.0.0.1:9", activations=activations)


@pytest.mark.parametrize("where", [None, 5])
def test_what_is_no_invitation_is_one_line(where: Any) -> None:
    with pytest.raises(UserError, match=r"the invitation is .*; give the coordinator's URL"):
        AutoDistributedModelForCausalLM.from_pretrained(where)
