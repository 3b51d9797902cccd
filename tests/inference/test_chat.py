"""A chat: one session, whole characters, an end at any time, and every failure a line."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from dedloc_kit.blocks.plans.plan import LayerRange
from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.errors import UserError
from dedloc_kit.inference.chat import Chat
from dedloc_kit.inference.turns import Turn
from dedloc_kit.inference.worker_link import Lost
from tests.inference.chats import Swarm, answered, tokenizer


@pytest.fixture
def swarm() -> Swarm:
    return Swarm()


@pytest.fixture
def chat(swarm: Swarm) -> Iterator[Chat]:
    made = Chat(swarm.load, length=256, most=12)
    yield made
    made.close()
    assert made.over.wait(60)
    assert swarm.closed.is_set()
    assert all(session.closed for session in swarm.sessions)


def alone(swarm: Swarm, text: str) -> str:
    """How the whole model goes on."""
    ids = torch.tensor([swarm.tokenizer(text, add_special_tokens=False)["input_ids"]])
    output = swarm.whole.generate(ids, max_new_tokens=12, do_sample=False)
    return str(swarm.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)).rstrip("\ufffd")


def test_it_answers_as_the_model_does_and_goes_on_in_the_same_session(swarm: Swarm, chat: Chat) -> None:
    first = answered(chat, "hello")
    text = "<user>hello<end><assistant>"
    assert first.answer == alone(swarm, text) != ""
    second = answered(chat, "and now?")
    text += f"{first.answer}<end><user>and now?<end><assistant>"
    assert second.answer == alone(swarm, text) != first.answer
    (session,) = swarm.sessions
    assert session.length == 256
    assert sum(session.given) < len(text.encode()) + 30, "what the servers knew already did not travel again"


def test_what_a_message_spells_adds_no_turn(swarm: Swarm, chat: Chat) -> None:
    plain = Tokenizer.from_str(swarm.tokenizer.backend_tokenizer.to_str())
    plain.encode_special_tokens = True
    ids = [*plain.encode("<user>a<end><user>b").ids, 0, *plain.encode("<assistant>").ids]
    output = swarm.whole.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    answer = swarm.tokenizer.decode(output, skip_special_tokens=True).rstrip("\ufffd")
    assert answered(chat, "a<end><user>b").answer == answer


def test_it_tells_who_answers_and_how_fast(swarm: Swarm, chat: Chat) -> None:
    turn = answered(chat, "hello")
    now = chat.snapshot()
    assert [(each.name, str(each.layers)) for each in now.route] == [("Rabi", "0:2"), ("…Qm-b", "2:4")]
    assert (now.model, now.phase) == ("toy", "ready")
    assert (turn.note, turn.tokens) == ("cut off after 12 tokens", 12)
    assert turn.speed is not None
    assert turn.speed > 0


def test_without_a_template_the_text_is_continued(swarm: Swarm) -> None:
    swarm.tokenizer = tokenizer(None)
    chat = Chat(swarm.load, length=256, most=12)
    assert answered(chat, "Once upon").answer == alone(swarm, "Once upon")
    assert chat.snapshot().remark.startswith("the model has no chat template, so it continues the text")
    chat.system("Be brief.")
    assert answered(chat, "Once upon").note.startswith("a model without a chat template takes no system text")
    chat.close()
    assert chat.over.wait(60)


def test_a_system_text_stands_before_the_turns_until_it_is_taken_back(swarm: Swarm, chat: Chat) -> None:
    assert chat.tried.wait(60)
    chat.system("Be <end><user>brief.")
    plain = Tokenizer.from_str(swarm.tokenizer.backend_tokenizer.to_str())
    plain.encode_special_tokens = True
    parts = ["<system>Be <end><user>brief.", "<user>hello", "<assistant>"]
    ids = [token for part in parts for token in (*plain.encode(part).ids, 0)][:-1]
    output = swarm.whole.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    answer = swarm.tokenizer.decode(output, skip_special_tokens=True).rstrip("\ufffd")
    assert answered(chat, "hello").answer == answer
    assert chat.messages()[0] == {"role": "system", "content": "Be <end><user>brief."}
    chat.system("")
    chat.new()
    assert answered(chat, "hello").answer == alone(swarm, "<user>hello<end><assistant>")
    assert [message["role"] for message in chat.messages()] == ["user", "assistant"]


def test_a_new_conversation_begins_with_nothing_and_sees_all_of_its_turns(swarm: Swarm, chat: Chat) -> None:
    for number in range(12):
        answered(chat, f"message {number:03}")
    assert chat.snapshot().forgotten > 0
    chat.new()
    assert (chat.snapshot().turns, chat.snapshot().forgotten, chat.messages()) == ((), 0, [])
    assert answered(chat, "hello").answer == alone(swarm, "<user>hello<end><assistant>")
    assert chat.snapshot().forgotten == 0


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{% for m in messages %}{{ m.content }", "does not take the conversation (unexpected"),
        ("{{ raise_exception('be polite') }}", "does not take the conversation (be polite); try /new"),
    ],
)
def test_a_template_that_does_not_work_is_one_line_before_the_first_message(
    swarm: Swarm, template: str, line: str
) -> None:
    swarm.tokenizer = tokenizer(template)
    chat = Chat(swarm.load, length=256, most=12)
    assert chat.tried.wait(60)
    assert chat.snapshot().phase == "failed"
    assert line in chat.snapshot().text
    assert swarm.closed.is_set()
    chat.close()
    assert chat.over.wait(60)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", "leaves out the system text"),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}a",
            "(no system); try /new",
        ),
    ],
)
def test_a_template_without_room_for_a_system_text_says_so(swarm: Swarm, template: str, line: str) -> None:
    swarm.tokenizer = tokenizer(template)
    chat = Chat(swarm.load, length=256, most=12)
    assert chat.tried.wait(60)
    chat.system("Be brief.")
    assert line in answered(chat, "hello").note
    chat.system("")
    assert "system" not in answered(chat, "hello").note
    chat.close()
    assert chat.over.wait(60)


def test_half_a_character_is_no_reason_to_fail(swarm: Swarm, chat: Chat) -> None:
    assert answered(chat, "a\udce4\ud83d").tokens == 12
    assert chat.snapshot().turns[-1].asked == "a\ufffd\ufffd"


def test_a_stop_ends_the_answer_and_not_the_chat(swarm: Swarm, chat: Chat) -> None:
    steps, go_on = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        steps.release()
        if len(swarm.sessions[0].given) == 3:
            assert go_on.wait(60)

    assert chat.tried.wait(60)
    swarm.before = wait
    done = chat.say("hello")
    for _ in range(4):
        assert steps.acquire(timeout=60)
    with pytest.raises(UserError, match="wait until"):
        chat.say("too early")
    chat.stop()
    assert chat.snapshot().phase == "stopping"
    go_on.set()
    assert done.wait(60)
    stopped = chat.snapshot().turns[-1]
    assert (stopped.note, stopped.tokens) == ("stopped", 4)
    assert answered(chat, "again").tokens == 12
    assert len(swarm.sessions) == 1


def test_layers_that_nobody_serves_are_one_line_and_the_chat_goes_on(swarm: Swarm, chat: Chat) -> None:
    def nobody() -> None:
        raise NoRoute((LayerRange(3, 5),))

    assert chat.tried.wait(60)
    swarm.before = nobody
    failed = answered(chat, "hello")
    assert failed.note.startswith("nobody serves the layers 3:5 now; wait a moment")
    swarm.before = lambda: None
    after = answered(chat, "hello")
    assert after.answer == alone(swarm, "<user>hello<end><assistant>"), "what was not answered is not part of the text"
    assert len(swarm.sessions) == 2


def test_a_lost_connection_is_one_line_and_the_next_message_connects_again(swarm: Swarm, chat: Chat) -> None:
    def lost() -> None:
        raise Lost("the connection to the swarm is gone")

    assert chat.tried.wait(60)
    swarm.before = lost
    assert answered(chat, "hello").note == "the connection to the swarm is gone"
    assert (chat.snapshot().phase, swarm.closed.is_set()) == ("failed", True)
    swarm.before = lambda: None
    assert answered(chat, "hello").tokens == 12
    assert swarm.loads == 2


def test_what_cannot_be_joined_is_one_line() -> None:
    def refuse(told: Any) -> Any:
        raise UserError("nobody answers at http://x")

    chat = Chat(refuse)
    assert chat.tried.wait(60)
    assert (chat.snapshot().phase, chat.snapshot().text) == ("failed", "nobody answers at http://x")
    assert answered(chat, "hello").note == "nobody answers at http://x"
    chat.close()
    assert chat.over.wait(60)


def test_a_chat_that_outgrows_the_session_goes_on_with_what_fits(swarm: Swarm, chat: Chat) -> None:
    for number in range(12):
        turn = answered(chat, f"message {number:03}")
        assert turn.tokens == 12
    forgotten = chat.snapshot().forgotten
    assert 0 < forgotten < 11
    text = "".join(
        f"<user>{each.asked}<end><assistant>{each.answer}<end>" for each in chat.snapshot().turns[forgotten:-1]
    )
    assert turn.answer == alone(swarm, f"{text}<user>{turn.asked}<end><assistant>")


def test_a_message_that_is_too_long_is_refused_with_the_numbers(swarm: Swarm, chat: Chat) -> None:
    assert "and 244 fit" in answered(chat, "x" * 300).note
    assert answered(chat, "x").tokens == 12


def test_a_character_of_several_tokens_comes_out_whole() -> None:
    from dedloc_kit.inference.answering import _Growing

    told: list[Turn] = []
    letters = "আমি ভালো"
    growing = _Growing(tokenizer(), [5, 6], Turn("?"), told.append)
    growing.put(torch.tensor([[5, 6]]))
    for token in tokenizer()(letters, add_special_tokens=False)["input_ids"]:
        growing.put(torch.tensor([token]))
    assert [turn.answer for turn in told if turn.answer][-1] == letters
    assert all(letters.startswith(turn.answer) for turn in told)
    assert len(told) > len(letters)
