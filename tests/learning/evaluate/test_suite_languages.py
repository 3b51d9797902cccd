from collections import defaultdict

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.suite_languages import ROWS, SUITES, code_of, harness, reference, task_of


@pytest.mark.parametrize(
    ("language", "named"),
    [
        ("sw", ("belebele_swh_Latn", None, "global_mmlu_sw")),
        ("swa", ("belebele_swh_Latn", None, "global_mmlu_sw")),
        ("yo", ("belebele_yor_Latn", None, "global_mmlu_yo")),
        ("mi", ("belebele_mri_Latn", None, None)),
        ("uk", ("belebele_ukr_Cyrl", "multiblimp_ukr", "global_mmlu_full_uk")),
        ("UKR_cyrl", ("belebele_ukr_Cyrl", "multiblimp_ukr", "global_mmlu_full_uk")),
        ("bn", ("belebele_ben_Beng", "multiblimp_ben", "global_mmlu_bn")),
        ("ben_Latn", ("belebele_ben_Latn", "multiblimp_ben", "global_mmlu_bn")),
        ("en", ("belebele_eng_Latn", "multiblimp_eng", "global_mmlu_en")),
        ("zh", ("belebele_zho_Hans", None, "global_mmlu_zh")),
        ("zho_Hant", ("belebele_zho_Hant", None, "global_mmlu_zh")),
        ("fil", ("belebele_tgl_Latn", None, "global_mmlu_full_fil")),
        ("lv", ("belebele_lvs_Latn", "multiblimp_lav", None)),
        ("sr", ("belebele_srp_Cyrl", "multiblimp_hbs", "global_mmlu_full_sr")),
        ("ckb", ("belebele_ckb_Arab", None, None)),
        ("xx", (None, None, None)),
    ],
)
def test_each_suite_has_a_language_under_its_own_code(language: str, named: tuple[str | None, ...]) -> None:
    found = [task_of(suite, language) for suite in SUITES]
    assert tuple(task and task.name for task in found) == named
    assert all(task is None or task.folder.is_dir() for task in found)


def test_every_language_of_every_suite_is_found_by_each_of_its_codes() -> None:
    files = [
        path.stem.lstrip("_") for patterns in SUITES.values() for each in patterns for path in harness().glob(each)
    ]
    by_suite = defaultdict(set)
    for name in files:
        suite = next(suite for suite in SUITES if name.startswith(suite))
        by_suite[suite].add(name.removeprefix(f"{suite}_").removeprefix("full_"))
    assert {suite: len(codes) for suite, codes in by_suite.items()} == {
        "belebele": 122,
        "multiblimp": 101,
        "global_mmlu": 42,
    }
    for suite, codes in by_suite.items():
        for code in codes:
            language, _, script = code.partition("_")
            for same in {language, *(each for row in ROWS if language in row for each in row)} - {"hbs"}:
                found = task_of(suite, f"{same}_{script}" if script else same)
                assert found is not None, (suite, same)
                assert found.name in (f"{suite}_{code}", f"{suite}_full_{code}"), same


def test_no_code_of_two_letters_means_two_languages() -> None:
    short = [code for row in ROWS for code in row if len(code) == 2]
    assert len(short) == len(set(short))


@pytest.mark.parametrize("text", ["", "u", "Ukrainian", "../uk", "uk;", "ukr_Cyr", "1k", "uk\nsw"])
def test_what_is_no_code_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no code of ISO 639, such as uk"):
        code_of(text)


@pytest.mark.parametrize(
    ("language", "model"),
    [
        ("en", "HPLT/hplt2c_eng_checkpoints"),
        ("zh", "HPLT/hplt2c_zhos_checkpoints"),
        ("est_Latn", "HPLT/hplt2c_est_checkpoints"),
        ("sw", None),
    ],
)
def test_a_published_model_of_the_language_is_known(language: str, model: str | None) -> None:
    assert reference(language) == model
