"""What is not understood is refused by name."""

import json
from typing import Any

import pytest

from dedloc_kit.api.errors import ApiError
from dedloc_kit.api.requests import ChatRequest, CompletionRequest, parse

MESSAGES = [{"role": "user", "content": "hello"}]


def refused(kind: Any, **asked: Any) -> ApiError:
    base = {"model": "m", **({"messages": MESSAGES} if kind is ChatRequest else {"prompt": "hello"})}
    values = {name: value for name, value in {**base, **asked}.items() if value is not ...}
    with pytest.raises(ApiError) as caught:
        parse(kind, json.dumps(values).encode())
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"model": ...}, "model"),
        ({"messages": ...}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"n": 9}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": "a" * 201}, "stop"),
        ({"seed": 2**63}, "seed"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"tools": []}, "tools"),
        ({"functions": []}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"x" * 500: 1}, "x" * 80),
    ],
)
def test_a_wrong_parameter_of_a_chat_is_named(asked: dict[str, Any], param: str) -> None:
    error = refused(ChatRequest, **asked)
    assert error.param == param
    assert param in str(error)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 33}, "prompt"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [[1]] * 33}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": 6}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"messages": MESSAGES}, "messages"),
    ],
)
def test_a_wrong_parameter_of_a_completion_is_named(asked: dict[str, Any], param: str) -> None:
    assert refused(CompletionRequest, **asked).param == param


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'"text"'])
def test_what_is_no_request_at_all_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatRequest, body)
    assert caught.value.status == 400


def test_what_changes_nothing_is_accepted() -> None:
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": False, "stop": None, "n": None, "temperature": 1}
    asked = parse(ChatRequest, json.dumps({"model": "m", "messages": MESSAGES, **harmless}).encode())
    assert asked.answers == 1
    assert asked.temperature == 1.0
