"""The tokens that an answer follows, and how many it may have."""

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from dedloc_kit.api.errors import ApiError
from dedloc_kit.api.requests import AnyRequest, ChatRequest
from dedloc_kit.errors import UserError
from dedloc_kit.inference.prompts import PromptTokenizer

CHAT_TOKENS, COMPLETION_TOKENS = 1024, 16
"""What an answer has at most if its request says nothing; the second is OpenAI's."""


@dataclass(frozen=True)
class Prompt:
    """
    :ivar most: tokens that its answer has at most
    :ivar echo: what is told before the answer
    """

    tokens: list[int]
    most: int
    echo: str


class Prompts:
    """Reads the prompts of requests for one model."""

    def __init__(self, name: str, tokenizer: Any, context: int, rows: int) -> None:
        """
        :param name: of the model
        :param context: tokens of a prompt and its answer at most
        :param rows: tokens that the model has, which may be fewer than its tokenizer makes
        """
        self._name, self._tokenizer, self._context, self._rows = name, tokenizer, context, rows
        self._prompts = PromptTokenizer(tokenizer)

    def read(self, asked: AnyRequest) -> list[Prompt]:
        """Those of a request; raises ApiError, which names what is wrong."""
        if isinstance(asked, ChatRequest):
            return [self._bounded(asked, "messages", self._chat(asked), CHAT_TOKENS)]
        prompts = []
        for number, given in enumerate(asked.prompts()):
            param = f"prompt[{number}]" if len(asked.prompts()) > 1 else "prompt"
            echo = (given if isinstance(given, str) else str(self._tokenizer.decode(given))) if asked.echo else ""
            prompts.append(self._bounded(asked, param, self._completion(param, given), COMPLETION_TOKENS, echo))
        return prompts

    def _bounded(self, asked: AnyRequest, param: str, prompt: list[int], default: int, echo: str = "") -> Prompt:
        """A prompt with room for its answer."""
        limit = f"{self._name} takes {self._context} tokens of prompt and answer together"
        room = self._context - len(prompt)
        if not prompt:
            raise ApiError(400, f"{param} has no tokens", param=param, code="invalid_value")
        if max(prompt) >= self._rows:
            odd = self._tokenizer.decode([max(prompt)])
            message = f"{param} holds {odd!r:.80}, a token that {self._name} does not have; leave it out"
            raise ApiError(400, message, param=param, code="invalid_value")
        if room < 1:
            message = f"{param} has {len(prompt)} tokens; {limit}"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        param, longest = asked.longest()
        if longest is not None and longest > room:
            message = f"{param} is {longest}, and the prompt has {len(prompt)} tokens; {limit}"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        return Prompt(prompt, longest or min(default, room), echo)

    def _chat(self, asked: ChatRequest) -> list[int]:
        if not self._tokenizer.chat_template:
            message = f"the tokenizer of {self._name} has no chat template; use /v1/completions"
            raise ApiError(400, message, param="messages", code="no_chat_template")
        messages = [message.plain() for message in asked.messages]
        try:
            return self._prompts.chat(messages)
        except (TemplateError, TypeError, ValueError) as error:
            message = f"the chat template of {self._name} refuses the messages: {error}"
            raise ApiError(400, message, param="messages", code="invalid_value") from None
        except UserError as error:
            raise ApiError(400, str(error), param="messages", code="invalid_value") from None

    def _completion(self, param: str, given: str | list[int]) -> list[int]:
        if isinstance(given, str):
            return self._prompts.text(given)
        if max(given) >= len(self._tokenizer):
            message = f"{param} holds tokens that {self._name} does not have; they are below {len(self._tokenizer)}"
            raise ApiError(400, message, param=param, code="invalid_value")
        return given
