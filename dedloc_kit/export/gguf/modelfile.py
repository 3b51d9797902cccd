"""What tells ollama how to run a GGUF file."""

import json
import re

from dedloc_kit.export.gguf.architectures import Plan
from dedloc_kit.export.gguf.vocabulary import Vocabulary
from dedloc_kit.learning.data.tokenizers.chat_template import CHATML

_CONTEXT = 8192
"""Tokens that are room for at most, if nobody asks for more: a laptop holds them."""
_CHATML_IN_GO = """\
{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
_BOS = "{{bos_token}}"
_QUOTED = re.compile(r"('(?:[^'\\]|\\.)*')")


def modelfile(name: str, plan: Plan, vocabulary: Vocabulary) -> str:
    """The text of a Modelfile.

    ollama has templates of its own language. ChatML is written in it; other chat templates ollama looks up itself,
    from the one in the file.

    :param name: of the GGUF file beside it
    """
    lines = [f"FROM ./{name}"]
    if plan.generates:
        lines.append(f"PARAMETER num_ctx {min(plan.context, _CONTEXT)}")
        lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in vocabulary.stops]
        # The token that begins a text comes from `add_bos_token`.
        if _plain(vocabulary.chat_template).removeprefix(_BOS) == _plain(CHATML):
            lines.append(f'TEMPLATE """{_CHATML_IN_GO}"""')
    return "\n".join(lines) + "\n"


def _plain(template: str) -> str:
    """A Jinja template without what makes no difference within its tags."""
    return re.sub(r"{[{%].*?[}%]}", lambda tag: _plain_tag(tag[0]), template, flags=re.DOTALL)


def _plain_tag(tag: str) -> str:
    parts = _QUOTED.split(tag.replace('"', "'"))
    parts[::2] = [re.sub(r"\s+", "", outside) for outside in parts[::2]]
    parts[1::2] = [quoted.replace("\n", r"\n") for quoted in parts[1::2]]
    return "".join(parts).replace("'+'", "")
