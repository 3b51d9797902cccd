import numpy as np
import pytest

from dedloc_kit.organizer.corpus.rules import DOCUMENT_RULES, LINE_RULES, Document, broken_rule, clean_lines
from dedloc_kit.organizer.corpus.words import words_of
from tests.organizer.corpus.prose import WORDS, prose

BENGALI = (
    "নদীর ধারে একটি ছোট গ্রাম ছিল। সেই গ্রামে অনেক মানুষ বাস করত। তারা সকালে মাঠে যেত এবং বিকেলে ঘরে ফিরে আসত। "
    "বর্ষাকালে নদী ভরে উঠত আর শিশুরা কাগজের নৌকা ভাসাত। শীতের দিনে বুড়োরা আগুনের পাশে বসে পুরোনো দিনের গল্প বলত। "
    "গ্রামের পাঠশালায় একজন শিক্ষক ছিলেন, যিনি সবাইকে ভালোবাসতেন ও যত্ন নিয়ে পড়াতেন। তাঁর কথা আজও সকলে মনে রাখে।"
)
CHINESE = (
    "河边有一个小村庄，村里住着许多人。他们早上去田里干活，傍晚回家休息。夏天的时候河水上涨，孩子们在岸边放纸船。"
    "冬天老人坐在火旁，讲从前的故事给大家听。学校里只有一位先生，他教所有年龄的学生读书写字，人人都记得他的话。"
)
NUMBERS = [f"{number} {number + 1} {number + 2}" for number in range(40)]


def lines(number: int, words: int, end: str = ".", begin: str = "") -> str:
    """Lines of different words."""
    generator = np.random.default_rng(1)
    return "\n".join(begin + " ".join(generator.choice(WORDS, size=words)) + end for _ in range(number))


def judged(text: str) -> str | None:
    return broken_rule(Document(text, words_of([text])))


BROKEN = {
    "fewer than 50 words": lines(4, 12),
    "words of under 2 or over 24 characters on average": " ".join("abcdefghij"[n % 10] for n in range(60)),
    "under 80 % of words with a letter": lines(4, 15) + " ".join(NUMBERS[:9]),
    "a # or an ellipsis for under 10 words": lines(4, 15) + " #" * 12,
    "over 90 % of lines with a bullet": lines(12, 8, begin="• "),
    "over 30 % of lines with an ellipsis at the end": lines(4, 15) + "\n" + lines(3, 15, end="…"),
    "of 5 lines or more 12 % or fewer with a sentence's end": lines(9, 9, end=""),
    "a new line for under 3.3 words": lines(30, 2),
    "lines that repeat: 30 % of them, or 20 % of the characters": "\n".join([lines(4, 15), *["A good day."] * 4]),
    "paragraphs that repeat: 30 % of them, or 20 % of the characters": "\n\n".join([lines(2, 30), *[lines(1, 9)] * 2]),
    "2, 3 or 4 words that make up 20, 18 or 16 % of it": " ".join(
        f"of the {word}" for word in lines(1, 40, end="").split()
    ),
    "5 to 10 words that repeat in 15 to 10 % of it": f"{lines(3, 20)} {lines(1, 20)[:-1]} {lines(2, 10)}",
}


@pytest.mark.parametrize("rule", DOCUMENT_RULES, ids=lambda rule: rule.name)
def test_a_document_that_breaks_a_rule_goes(rule: object) -> None:
    assert isinstance(rule, type(DOCUMENT_RULES[0]))
    text = BROKEN[rule.name]
    assert rule.broken(Document(text, words_of([text])))
    assert judged(text) is not None
    assert rule.source


@pytest.mark.parametrize("text", [BENGALI, CHINESE, " ".join(prose(np.random.default_rng(0), 2000)), lines(20, 12)])
def test_prose_of_any_script_stays(text: str) -> None:
    assert judged(text) is None
    assert clean_lines(text) == (text, [])


def test_a_document_that_was_cut_is_not_worse() -> None:
    assert judged(lines(4, 30, end="")) is None


@pytest.mark.parametrize(
    "line", ["- 12 -", "Please enable JavaScript.", "We use cookies: see our Cookie Policy.", "a" * 1001 + "/b+"]
)
def test_a_bad_line_goes_and_the_others_stay(line: str) -> None:
    assert clean_lines(f"One.\n\n{line}\nTwo.") == ("One.\n\nTwo.", [(clean_lines(line)[1][0][0], line)])


def test_each_rule_of_lines_has_a_line_that_breaks_it() -> None:
    broken = {clean_lines(line)[1][0][0] for line in ("1", "JAVASCRIPT", "lorem ipsum", "x" * 2000)}
    assert broken == {rule.name for rule in LINE_RULES}


def test_a_long_line_without_spaces_stays_where_the_script_has_none() -> None:
    assert clean_lines("漢" * 2000)[1] == []
