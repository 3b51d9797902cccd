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
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "content": "a", "refusal": "no"}]}, "messages[0].refusal"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
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
        ({"presence_penalty": -0.1}, "presence_penalty"),
        ({"frequency_penalty": 2}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"best_of": 1}, "best_of"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
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
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "the end"}, "suffix"),
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


NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": -0.0,
    "logit_bias": {},
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "functions": [],
    "function_call": "auto",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "service_tier": "auto",
    "suffix": "",
    "prompt_cache_key": "mine",
}


@pytest.mark.parametrize(("name", "value"), [*NEUTRAL.items(), ("logit_bias", {"5": 0}), ("tool_choice", "auto")])
def test_a_value_that_changes_nothing_is_accepted(name: str, value: Any) -> None:
    parse(ChatRequest, json.dumps({"model": "m", "messages": MESSAGES, name: value}).encode())
    parse(CompletionRequest, json.dumps({"model": "m", "prompt": "hello", name: value}).encode())


@pytest.mark.parametrize("name", [*NEUTRAL, "prediction", "audio", "web_search_options", "top_k", "max_tokens", "stop"])
def test_null_is_as_good_as_nothing(name: str) -> None:
    parse(ChatRequest, json.dumps({"model": "m", "messages": MESSAGES, name: None}).encode())


def test_as_many_as_are_told_may_be_made() -> None:
    for best in ({"best_of": 1}, {"best_of": 2, "n": 2}):
        parse(CompletionRequest, json.dumps({"model": "m", "prompt": "hello", **best}).encode())


def test_an_answer_goes_back_as_clients_keep_it() -> None:
    nothing: dict[str, Any] = {"refusal": None, "tool_calls": None, "annotations": [], "audio": None}
    kept = {"role": "assistant", "content": "hi", **nothing}
    turns = [{**MESSAGES[0], "name": "asha"}, kept, {"role": "user", "content": [{"type": "text", "text": "and?"}]}]
    asked = parse(ChatRequest, json.dumps({"model": "m", "messages": turns}).encode())
    assert [message.plain() for message in asked.messages] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "and?"},
    ]
