"""Looking languages up: by codes, names, scripts; what is not known; and what the table says."""

from collections import Counter

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.organizer.languages import find_language, find_languages, languages, other_scripts


@pytest.mark.parametrize(
    ("asked", "subset"),
    [
        *[("sw", "swh_Latn"), ("swa", "swh_Latn"), ("swh", "swh_Latn"), ("swh_Latn", "swh_Latn")],
        *[("Swahili", "swh_Latn"), (" SWAHILI ", "swh_Latn"), ("en", "eng_Latn"), ("eng", "eng_Latn")],
        *[("zh", "cmn_Hani"), ("zho", "cmn_Hani"), ("Chinese", "cmn_Hani"), ("Mandarin", "cmn_Hani")],
        *[("ar", "arb_Arab"), ("ara", "arb_Arab"), ("Arabic", "arb_Arab"), ("nor", "nob_Latn"), ("nb", "nob_Latn")],
        *[("et", "ekk_Latn"), ("est", "ekk_Latn"), ("msa", "zsm_Latn"), ("fas", "fas_Arab"), ("per", "fas_Arab")],
        *[("uz", "uzn_Latn"), ("mn", "khk_Cyrl"), ("sq", "als_Latn"), ("als", "als_Latn"), ("qu", "quy_Latn")],
        *[("uk", "ukr_Cyrl"), ("yo", "yor_Latn"), ("mi", "mri_Latn"), ("Maori", "mri_Latn"), ("Māori", "mri_Latn")],
        *[("hi", "hin_Deva"), ("hin_Latn", "hin_Latn"), ("hin-latn", "hin_Latn"), ("guarani", "gug_Latn")],
        *[("Tonga", "ton_Latn"), ("Norwegian", "nob_Latn"), ("Greek", "ell_Grek"), ("dan", "dan_Latn")],
    ],
)
def test_a_language_is_found_by_its_codes_and_names(asked: str, subset: str) -> None:
    assert find_language(asked).subset == subset


def test_codes_are_those_that_a_run_may_have() -> None:
    assert [find_language(name).code for name in ("swa", "ukr", "Hawaiian", "nor", "konkani")] == [
        *("sw", "uk", "haw", "no", "gom")
    ]


def test_several_are_found_each_once() -> None:
    assert [language.code for language in find_languages("sw, Yoruba,swa")] == ["sw", "yo"]


def test_a_language_has_other_scripts() -> None:
    assert [language.subset for language in other_scripts(find_language("uig"))] == ["uig_Latn", "uig_Cyrl"]
    assert other_scripts(find_language("sw")) == []


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("swahli", "no dataset known here has a language 'swahli'; the nearest are Swahili (sw), "),
        ("Ukranian", "the nearest are Ukrainian (uk), "),
        ("und", "'und'"),
        ("und_Cyrl", "'und_Cyrl'"),
        ("Undetermined language", "'Undetermined language'"),
        ("", "--language is empty; give a code or an English name, such as sw or Swahili"),
        (" ", "--language is empty"),
        ("sw,,yo", "--language is empty"),
        ("\u0301", "--language is empty"),
        ("x" * 1_000_000, "'xxxxxxxxxxxxxxxxxxxx...'"),
        ("," * 1_000_000, "name fewer"),
        ("sw\x1b[2J", r"'sw\x1b[2J'"),
        ("\u202eukr", r"'\u202eukr'"),
        ("../../etc/passwd", "'../../etc/passwd'"),
        ('uk"\nname = "evil', r"'uk\"\nname = \"evil'".replace('\\"', '"')),
    ],
)
def test_what_is_no_language_is_refused_in_one_short_line(asked: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        find_languages(asked)
    said = str(refused.value)
    assert words in said
    assert said.isprintable()
    assert len(said) < 300


def test_three_nearest_are_named() -> None:
    with pytest.raises(UserError) as refused:
        find_language("Dothraki")
    nearest = str(refused.value).partition("the nearest are ")[2].partition(";")[0]
    assert nearest.count(", ") == 2


def test_the_table_has_every_language_of_fineweb_2_that_is_known() -> None:
    table = languages()
    assert len(table) == 1913 - 43 + 1, "43 rows are of no determined language; English comes from another dataset"
    assert not [language for language in table if language.subset.startswith("und")]
    assert len({language.subset for language in table}) == len(table)
    assert sum(language.bible > 0.5 for language in table) == 1248
    assert all(language.words > 0 and language.bytes > 0 and language.name for language in table)
    assert not [language for language in table if "," in "".join(language.names)], "a comma parts languages"


def test_no_code_and_no_wikipedia_stands_twice() -> None:
    codes = Counter(code for language in languages() for code in {*language.codes})
    wikipedias = Counter(language.wikipedia for language in languages() if language.wikipedia)
    assert [code for code, times in (codes + wikipedias).items() if codes[code] > 1 or wikipedias[code] > 1] == []
    for language in languages():
        for code in language.codes:
            assert find_language(code) == language, code


def test_codes_of_wikipedia_that_mean_other_languages_are_known() -> None:
    of = {name: find_language(name).wikipedia for name in ("als", "gsw", "yue", "lzh", "nob", "fil", "vro")}
    assert of == {
        **{"als": "sq", "gsw": "als", "yue": "zh-yue", "lzh": "zh-classical", "nob": "no", "fil": "tl"},
        "vro": "fiu-vro",
    }
