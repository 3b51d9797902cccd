from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.formats import BadRow
from dedloc_kit.learning.data.sources.shards import find_shards
from dedloc_kit.learning.data.sources.stream import in_order
from dedloc_kit.learning.data.text.conversations import Conversation, Flaw, columns_of, conversations, parse
from tests.chat_runs import turns, write_rows

KEYS = st.sampled_from(["role", "content", "x"]) | st.text()
GOOD = turns("hello", "hi")


def read(source: Source) -> list[Conversation | BadRow]:
    return [each for shard in find_shards(source, print) for each in conversations(source, shard, print)]


def plain(conversation: Any) -> list[dict[str, str]]:
    assert isinstance(conversation, Conversation)
    return [message._asdict() for message in conversation.messages]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "holds str, not a list of messages, in column 'messages'; set the source's column to one with"),
        ([1], "has a message without a role and a content that are text; set the source's column"),
        ([{"role": "user", "content": [{"type": "text"}]}], "has a message without a role and a content that are text"),
        ([{"role": None, "content": "x"}], "has a message without a role and a content that are text"),
        ([{"role": "tool", "content": "x"}], "has a turn of the role 'tool'; rename it to one of: system, user, assis"),
        ([{"role": "t" * 999, "content": "x"}], f"has a turn of the role '{'t' * 39}; rename it"),
        ([], "has no turns; leave such rows out"),
        ([{"role": "system", "content": "be kind"}], "has system turns only, so nothing is learned from it; add the"),
        (turns("hello", " "), "has an empty turn; fill it, or leave such rows out"),
        ([*GOOD, {"role": "system", "content": "x"}], "has a system turn that is not the first turn; put it first"),
        ([*GOOD, GOOD[1]], "has two assistant turns in a row; join them into one"),
        ([GOOD[0], *GOOD], "has two user turns in a row; join them into one"),
        ([GOOD[1]], "begins with an assistant turn; put a user turn before it"),
        (turns("hello"), "has no assistant turn, so nothing is learned from it; add the answer"),
        ([{"role": "user", "content": "a\udc80"}, GOOD[1]], "is not UTF-8; write the file as UTF-8"),
    ],
)
def test_what_is_no_conversation_to_learn_from_says_so_in_one_line_with_the_fix(messages: Any, said: str) -> None:
    found = parse(messages, "messages")
    assert isinstance(found, Flaw)
    assert found.reason.startswith(said)
    assert "\n" not in found.reason


def test_a_conversation_ends_with_its_last_answer_and_an_empty_system_turn_is_left_out() -> None:
    found = parse([{"role": "system", "content": ""}, *turns("hello", "hi", "and?")], "messages")
    assert [tuple(each) for each in found] == [("user", "hello"), ("assistant", "hi")]


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "x"]) | st.text(), inner)
        ),
        max_leaves=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_a_row_holds_is_a_conversation_or_a_reason(value: Any) -> None:
    found = parse(value, "messages")
    assert found
    assert all(isinstance(each, str | tuple) for each in found)


def test_parquet_and_json_lines_hold_the_same_and_so_do_two_columns_of_texts(tmp_path: Path) -> None:
    said = [turns("where is the mill?", "by the river"), turns("and the sea?", "far away")]
    write_rows(tmp_path / "a.jsonl", [{"messages": each} for each in said])
    parquet.write_table(pyarrow.table({"messages": said}), tmp_path / "a.parquet")
    asked = [{"q": one["content"], "a": other["content"]} for one, other in said]
    parquet.write_table(pyarrow.Table.from_pylist(asked), tmp_path / "b.parquet")
    for source in (
        Source(dataset=str(tmp_path / "a.jsonl")),
        Source(dataset=str(tmp_path / "a.parquet"), column="messages"),
        Source(dataset=str(tmp_path / "b.parquet"), column="q,a"),
    ):
        assert list(map(plain, read(source))) == said


def test_the_column_is_messages_unless_the_source_names_another() -> None:
    assert columns_of(Source(dataset="x")) == ("messages",)
    assert columns_of(Source(dataset="x", column="chat.turns")) == ("chat.turns",)
    assert columns_of(Source(dataset="x", column="prompt, response")) == ("prompt", "response")


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"talk": [GOOD]}), tmp_path / "a.parquet")
    source = Source(dataset=str(tmp_path / "a.parquet"))
    with pytest.raises(UserError, match=r"has no column 'messages'; set the column to one of: talk"):
        list(in_order(source, conversations, warn=print))


def test_bad_rows_cost_themselves_and_each_kind_is_told_once(tmp_path: Path) -> None:
    bad = [{"messages": []}, {"messages": turns("a", "")}, {"messages": 7}, {"messages": [GOOD[1]]}, "no object"]
    rows = [*bad, *({"messages": turns(str(number), "yes")} for number in range(9)), *bad, *bad]
    write_rows(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.jsonl").open("ab").write(b'{"messages": [{"role": "user", "content": "\xff"}]}\n{"mess')
    told: list[str] = []
    found = list(in_order(Source(dataset=str(tmp_path / "a.jsonl")), conversations, warn=told.append))
    assert [each.messages[0].content for each in found] == list("012345678")
    kinds = [line.partition("left out: it ")[2] for line in told]
    firsts = [kind for kind, line in zip(kinds, told, strict=True) if not line[0].isdigit()]
    assert kinds[0].startswith("has no turns")
    for number, kind in enumerate(("has an empty turn", "holds int", "begins with an assistant turn")):
        assert firsts[number].startswith(kind)
    assert firsts[3:] == ["is not UTF-8; write the file as UTF-8"]
    assert told[0].startswith("5 bad rows are left out so far; row 1 of ")
    assert told[0].losses.bad_rows == 17  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [{"role": "system", "content": "be kind"}]}, "has system turns only"),
        ({"messages": turns("a", "b", "c", "d")[1:]}, "begins with an assistant turn"),
    ],
)
def test_a_dataset_in_which_nothing_remains_is_an_error_with_the_fix(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    write_rows(tmp_path / "a.jsonl", [row] * 20)
    with pytest.raises(UserError, match=rf"a\.jsonl has no usable row among 20: row 1 {said}.*; ") as raised:
        list(in_order(Source(dataset=str(tmp_path / "a.jsonl")), conversations, warn=print))
    assert "\n" not in str(raised.value)
