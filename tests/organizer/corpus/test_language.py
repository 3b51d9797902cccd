import py3langid
import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.organizer.corpus.language import Identifier

ARTICLE = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience "
    "and should act towards one another in a spirit of brotherhood.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt "
    "und sollen einander im Geist der Brüderlichkeit begegnen.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve "
    "birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler.",
    "sw": "Watu wote wamezaliwa huru, hadhi na haki zao ni sawa. Wote wamejaliwa akili na dhamiri, hivyo yapasa "
    "watendeane kindugu.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и "
    "должны поступать в отношении друг друга в духе братства.",
    "uk": "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони наділені розумом і совістю і "
    "повинні діяти у відношенні один до одного в дусі братерства.",
    "bn": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। তাঁদের বিবেক এবং বুদ্ধি আছে; সুতরাং "
    "সকলেরই একে অপরের প্রতি ভ্রাতৃত্বসুলভ মনোভাব নিয়ে আচরণ করা উচিত।",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और "
    "अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا وعليهم أن يعامل بعضهم بعضا بروح "
    "الإخاء.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と"
    "良心とを授けられており、互いに同胞の精神をもって行動しなければならない。",
}
"""Article 1 of the Universal Declaration of Human Rights, which is in the public domain."""
SENTENCES = [
    (language, sentence)
    for language, text in ARTICLE.items()
    for sentence in text.replace("।", "।|").replace("。", "。|").replace(". ", ".|").split("|")
    if sentence.strip()
]


@pytest.fixture(scope="module")
def identifier() -> Identifier:
    return Identifier()


def test_sentences_of_twelve_languages_are_told_apart_as_well_as_by_py3langid(identifier: Identifier) -> None:
    right = sum(identifier.language(sentence) == language for language, sentence in SENTENCES)
    of_library = sum(py3langid.classify(sentence)[0] == language for language, sentence in SENTENCES)
    assert len(SENTENCES) == 24
    assert right >= of_library > 0
    assert [identifier.language(text) for text in ARTICLE.values()] == list(ARTICLE)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("Olck", "ᱡᱚᱛᱚ ᱦᱚᱲ ᱠᱚ ᱯᱷᱩᱨᱜᱟᱹᱞ 2 OK"),
        ("Cher", "ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ"),
        ("Nkoo", "ߡߊ߲߬ߕߏ߲ ߠߎ߬ ߓߍ߯"),
        ("Thaa", "ހުރިހާ އިންސާނުންވެސް"),
    ],
)
def test_a_script_that_no_model_knows_goes_by_its_name(identifier: Identifier, script: str, text: str) -> None:
    identifier.check([script, "bn"])
    assert identifier.language(text) == script
    assert py3langid.classify(text)[0] != script


def test_a_text_without_letters_has_some_language(identifier: Identifier) -> None:
    for text in ("", "123", "\U0001f600", "---"):
        assert identifier.language(text)


def test_of_a_long_text_the_middle_is_looked_at(identifier: Identifier) -> None:
    assert (
        identifier.language("Home | Menu | Login. " * 20 + ARTICLE["bn"] * 20 + " All rights reserved. " * 20) == "bn"
    )


@pytest.mark.parametrize(("language", "near"), [("bnn", "bn"), ("Beng", ""), ("swa", "sw"), ("Olk", "Olck")])
def test_a_language_that_is_never_the_answer_is_refused_with_the_nearest(
    identifier: Identifier, language: str, near: str
) -> None:
    with pytest.raises(UserError, match=rf"no language '{language}' can be told.*{near}.*--language Olck"):
        identifier.check(["en", language])
