import pytest

from dedloc_kit.learning.data.text.sentences import sentences


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("en", "Pi is 3.14 or so. Right.", ["Pi is 3.14 or so.", "Right."]),
        ("en", "Dr. Smith left. So did J. R. Ewing.", ["Dr. Smith left.", "So did J. R. Ewing."]),
        ("en", "A title\n\nA paragraph", ["A title", "A paragraph"]),
        ("bn", "আমি ভাত খাই। তুমি কী খাও? ভাত॥", ["আমি ভাত খাই।", "তুমি কী খাও?", "ভাত॥"]),
        ("bn", "আমি ভাত খাই।তুমি?", ["আমি ভাত খাই।", "তুমি?"]),
        ("bn", "ড. রহমান ১.৫ টাকা দিলেন। মো. আলী নিলেন।", ["ড. রহমান ১.৫ টাকা দিলেন।", "মো. আলী নিলেন।"]),
        ("hi", "यह एक है। वह दो है॥ क्या?", ["यह एक है।", "वह दो है॥", "क्या?"]),
        ("uk", "Він прийшов. Так? Ні!", ["Він прийшов.", "Так?", "Ні!"]),
        ("ar", "مرحبا بالعالم. كيف حالك؟ نعم", ["مرحبا بالعالم.", "كيف حالك؟", "نعم"]),
        ("ur", "یہ کتاب ہے۔ کیا؟ ہاں", ["یہ کتاب ہے۔", "کیا؟", "ہاں"]),
        ("ja", "これは本です。はい！", ["これは本です。", "はい！"]),
        ("hy", "Բարեւ։ Ինչպես ես", ["Բարեւ։", "Ինչպես ես"]),
        ("am", "ሰላም። እንዴት", ["ሰላም።", "እንዴት"]),
        ("my", "နေကောင်းလား။ ကောင်းပါ", ["နေကောင်းလား။", "ကောင်းပါ"]),
        ("xx", "A made up language. 今日は。Yes", ["A made up language.", "今日は。", "Yes"]),
        ("th", "ไม่มีเครื่องหมาย", ["ไม่มีเครื่องหมาย"]),
        ("bn", "... . খাই। ..", ["...", ".", "খাই।", ".."]),
        ("en", " \n ", []),
        ("en", "", []),
    ],
)
def test_sentences_end_where_their_script_says_and_not_in_numbers_or_abbreviations(
    language: str, text: str, expected: list[str]
) -> None:
    assert sentences(text, language) == expected
