"""The tokens that an answer follows, and how many it may have."""

import threading
from typing import Any

from jinja2 import TemplateError

from dedloc_kit.api.errors import ApiError
from dedloc_kit.api.requests import AnyRequest, ChatRequest, CompletionRequest

CHAT_TOKENS, COMPLETION_TOKENS = 1024, 16
"""What an answer has at most if its request says nothing; the second is OpenAI's."""


class Prompts:
    """Reads the prompts of requests for one model."""

    def __init__(self, name: str, tokenizer: Any, context: int) -> None:
        """
        :param name: of the model
        :param context: tokens of a prompt and its answer at most
        """
        self._name, self._tokenizer, self._context = name, tokenizer, context
        # The first use may switch off a truncation that is stored with a tokenizer; nobody else may use it meanwhile.
        self._lock = threading.Lock()

    def read(self, asked: AnyRequest) -> tuple[list[int], int]:
        """The tokens of a prompt, and how many its answer may have. Raises ApiError, which names what is wrong."""
        if isinstance(asked, ChatRequest):
            param, prompt, default = "messages", self._chat(asked), CHAT_TOKENS
        else:
            param, prompt, default = "prompt", self._completion(asked), COMPLETION_TOKENS
        limit = f"{self._name} takes {self._context} tokens of prompt and answer together"
        room = self._context - len(prompt)
        if not prompt:
            raise ApiError(400, f"{param} has no tokens", param=param, code="invalid_value")
        if room < 1:
            message = f"{param} has {len(prompt)} tokens; {limit}"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        param, longest = asked.longest()
        if longest is not None and longest > room:
            message = f"{param} is {longest}, and the prompt has {len(prompt)} tokens; {limit}"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        return prompt, longest or min(default, room)

    def _chat(self, asked: ChatRequest) -> list[int]:
        if not self._tokenizer.chat_template:
            message = f"the tokenizer of {self._name} has no chat template; use /v1/completions"
            raise ApiError(400, message, param="messages", code="no_chat_template")
        messages = [message.plain() for message in asked.messages]
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError) as error:
            message = f"the chat template of {self._name} refuses the messages: {error}"
            raise ApiError(400, message, param="messages", code="invalid_value") from None
        return self._encoded(text, special=False)  # the template has put them in

    def _completion(self, asked: CompletionRequest) -> list[int]:
        if isinstance(asked.prompt, str):
            return self._encoded(asked.prompt, special=True)
        if max(asked.prompt) >= len(self._tokenizer):
            message = f"prompt holds tokens that {self._name} does not have; they are below {len(self._tokenizer)}"
            raise ApiError(400, message, param="prompt", code="invalid_value")
        return list(asked.prompt)

    def _encoded(self, text: str, special: bool) -> list[int]:
        with self._lock:
            return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])
