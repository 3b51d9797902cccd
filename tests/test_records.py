"""Whatever comes from a peer is parsed before anything else happens to it."""

import base64
import json
import unicodedata
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.parts import PipelineConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.keys import public
from dedloc_kit.records.admission import AccessAnswer
from dedloc_kit.records.evaluation import Drawing, Evaluation, Picture
from dedloc_kit.records.invitation import Invitation, Refusal
from dedloc_kit.records.orders import Checks
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.record import MAX_REASON, PeerText, Record
from dedloc_kit.records.stages import MAX_IN_FLIGHT, StageOffer
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.version import __version__
from tests.invitations import MALLORY, NOBODY, ORGANIZER, invited

RUN_ID = "demo-0123456789abcdef"
VALID: dict[type[Record], dict[str, Any]] = {
    Contribution: {
        "run_id": RUN_ID,
        "step": 1,
        "session": "ab12",
        "samples": 8,
        "session_samples": 16,
        "loss": 2.5,
        "name": "অমল",
        "time": 1.5,
    },
    Progress: {
        "run_id": RUN_ID,
        "step": 1,
        "round": "",
        "samples": 8,
        "samples_per_second": 1.5,
        "boundary_seconds": 0.2,
        "sketch": (1.5, -2.0),
        "follower": False,
        "client_mode": True,
        "addresses": ("/ip4/10.0.0.1/tcp/4001/p2p/QmPeer",),
        "device": "Tesla T4",
        "name": "",
        "time": 1.5,
    },
    StateInfo: {"run_id": RUN_ID, "step": 3, "rounds": ["ab", "cd"]},
    GlobalStep: {"step": 1, "round": "ab", "time": 1.5, "samples": 8, "loss": None, "peers": 3, "seconds": 0.5},
    Refusal: {"reason": "full"},
}


def run() -> RunConfig:
    return parse_run(
        {
            "name": "demo",
            "global_batch": 64,
            "task": {"name": "albert", "tokenizer": "owner/tokenizer", "dropout": 0.1},
            "data": {"train": [{"dataset": "owner/name"}]},
        }
    )


@pytest.mark.parametrize("kind", VALID)
def test_a_record_survives_the_trip_through_json(kind: type[Record]) -> None:
    record = kind.parse(VALID[kind])
    assert kind.parse(json.loads(record.model_dump_json())) == record
    assert kind.parse(record.model_dump(mode="json")) == record


@pytest.mark.parametrize("kind", VALID)
def test_a_record_cannot_be_changed(kind: type[Record]) -> None:
    record = kind.parse(VALID[kind])
    with pytest.raises(ValidationError):
        record.step = 99  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", VALID)
@pytest.mark.parametrize("values", [None, 5, "text", [], {}, {"step": 1, "surprise": 2}])
def test_something_else_is_a_value_error_of_one_line_with_the_records_name(kind: type[Record], values: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: ") as caught:
        kind.parse(values)
    assert "\n" not in str(caught.value)


NUMBER = [float("nan"), float("inf"), "1", True, b"1", {}, [1]]
TEXT = ["\x1b[2J", "a\nb", "x" * 65, 5, None, b"ab", ["ab"]]
OUT_OF_BOUNDS: dict[str, list[Any]] = {
    "run_id": [5, None, b"ab"],
    "reason": ["bored", "", 5, None],
    "step": [*NUMBER, -1, 2**64, 1.0, None],
    "samples": [*NUMBER, -1, 2**64, None],
    "session_samples": [*NUMBER, -1, 2**64, None],
    "peers": [*NUMBER, -1, 2**64, None],
    "time": [*NUMBER, -1.0, 1e13, None],
    "seconds": [*NUMBER, -1.0, None],
    "samples_per_second": [*NUMBER, -1.0, 1e10, None],
    "boundary_seconds": [*NUMBER, -1.0, 1e4, None],
    "loss": NUMBER,
    "sketch": ["ab", 5, None, ["ab"], [float("nan")], [1.0] * 9],
    "session": TEXT,
    "round": TEXT,
    "name": TEXT,
    "device": TEXT,
    "rounds": ["ab", 5, None, [5], ["\x1b[2J"], {"ab": 1}],
    "follower": ["true", 1, None],
    "client_mode": ["true", 1, None],
    "addresses": ["ab", 5, None, [5], ["/ip4/1.2.3.4"], ["/ip4/1.2.3.4/tcp/1/p2p/Qm\n"], ["/ip4/1/tcp/1/p2p/Qm"] * 5],
}


@pytest.mark.parametrize("kind", VALID)
def test_no_field_takes_a_value_out_of_bounds(kind: type[Record]) -> None:
    for key in VALID[kind]:
        for value in OUT_OF_BOUNDS[key]:
            with pytest.raises(ValueError, match=rf"^{kind.__name__}: {key}") as caught:
                pytest.fail(f"{key} may be {kind.parse(VALID[kind] | {key: value})!r}")
            assert "\n" not in str(caught.value)
            assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("kind", VALID)
def test_a_missing_field_is_named(kind: type[Record]) -> None:
    for key in VALID[kind]:
        values = {name: value for name, value in VALID[kind].items() if name != key}
        with pytest.raises(ValueError, match=rf"^{kind.__name__}: {key} is missing"):
            kind.parse(values)


def test_a_digest_is_lower_case_hexadecimal() -> None:
    for digest in ("AB", "xyz", "a" * 65, "ab\n"):
        with pytest.raises(ValueError, match="session"):
            Contribution.parse(VALID[Contribution] | {"session": digest})


def test_a_name_is_at_most_64_characters() -> None:
    Contribution.parse(VALID[Contribution] | {"name": "x" * 64})
    with pytest.raises(ValueError, match="name"):
        Contribution.parse(VALID[Contribution] | {"name": "x" * 65})


def test_the_state_info_keeps_a_bounded_history() -> None:
    StateInfo.parse(VALID[StateInfo] | {"rounds": ["ab"] * 64})
    with pytest.raises(ValueError, match="rounds"):
        StateInfo.parse(VALID[StateInfo] | {"rounds": ["ab"] * 65})


@pytest.mark.parametrize(
    "in_flight",
    [5, None, "ab", [5], [["a", 0]], [[-1, 0]], [[MAX_IN_FLIGHT + 1, 0]], [[1]], [[1, 2, 3]], [[0, 0]] * 65],
)
def test_a_driver_tells_of_few_microbatches_and_of_stages_that_there_may_be(in_flight: Any) -> None:
    offer = {
        "stage": None,
        "state": "online",
        "client_mode": True,
        "addresses": (),
        "device": "",
        "name": "",
        "time": 1.0,
    }
    told = StageOffer.parse({"run_id": RUN_ID, **offer, "in_flight": [[MAX_IN_FLIGHT, 0]] * 64})
    assert StageOffer.parse(told.model_dump()) == told
    with pytest.raises(ValueError, match=r"^StageOffer: in_flight"):
        StageOffer.parse(told.model_dump() | {"in_flight": in_flight})


def test_an_invitation_survives_the_trip_through_a_file() -> None:
    invitation = invited(run())
    again = Invitation.parse(invitation.model_dump_json(indent=2))
    assert again == invitation
    assert again.peers == (NOBODY,)
    assert again.run_config() == run()
    assert again.run_config().run_id == again.run_id == run().run_id


def changed(values: dict[str, Any]) -> Invitation:
    """An invitation of an organizer who wrote other values into it."""
    return Invitation.parse(invited(run()).model_copy(update=values).signed(ORGANIZER.key).model_dump_json())


def test_an_edited_configuration_has_the_wrong_fingerprint() -> None:
    with pytest.raises(UserError, match="wrong fingerprint") as caught:
        changed({"run": run().model_dump(mode="json") | {"global_batch": 65}}).run_config()
    assert run().run_id in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_edited_run_id_is_a_wrong_fingerprint_too() -> None:
    with pytest.raises(UserError, match="wrong fingerprint"):
        changed({"run_id": "other" + run().run_id.removeprefix("demo")}).run_config()


def test_a_configuration_of_another_version_says_which_key_does_not_fit() -> None:
    values = run().model_dump(mode="json")
    values["optimizer"]["nesterov"] = 0.9
    with pytest.raises(UserError, match=r"does not fit this version .*optimizer\.nesterov") as caught:
        changed({"run": values}).run_config()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!doctype html>\n<html>",
        "[]",
        "{}",
        '{"run_id": "x", "peers": [], "run": {}}',
        '{"run_id": "x", "peers": "/ip4", "run": {}}',
        '{"run_id": "x", "peers": ["a"], "run": {}, "password": "no"}',
        "[" * 10_000,
    ],
)
def test_something_else_is_no_invitation_and_the_message_says_so_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match="this is not an invitation") as caught:
        Invitation.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("inner", [{}, {"a\nb": 1}, {"name": 1}, {"name": "x", "global_batch": -1}])
def test_an_unusable_configuration_is_reported_in_one_line(inner: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="the invitation's run configuration") as caught:
        changed({"run": inner}).run_config()
    assert "\n" not in str(caught.value)


def of_version(version: object, **keys: object) -> str:
    return json.dumps(invited(run()).model_dump(mode="json") | {"version": version} | keys)


def test_an_invitation_tells_the_version_and_the_size_of_the_model() -> None:
    invitation = invited(run(), parameters=18_000_000)
    again = Invitation.parse(invitation.model_dump_json())
    assert (again.version, again.parameters, again.url) == (__version__, 18_000_000, None)


def test_who_holds_a_stage_needs_no_memory_for_the_whole_model() -> None:
    assert invited(run(), parameters=18_000_000).held_parameters == 18_000_000
    staged = run().model_copy(update={"pipeline": PipelineConfig()})
    invitation = invited(staged, parameters=18_000_000)
    assert (invitation.parameters, invitation.held_parameters) == (18_000_000, None)


@pytest.mark.parametrize("version", ["0.0.9", "99.1.0", "1.0rc1", "2"])
@pytest.mark.parametrize("unknown", [{}, {"password_hint": "none", "peers": {"new": "form"}}])
def test_an_invitation_of_another_version_says_what_to_do(version: str, unknown: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        Invitation.parse(of_version(version, **unknown))
    assert str(caught.value) == (
        f"this run uses dedloc_kit {version}, here is {__version__}; run the organizer's newest notebook, "
        "or ask the organizer for the line to install it with, and restart the kernel"
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"version": "99.1.0\x1b[2J"},
        {"version": "99.1.0; rm -rf ~"},
        {"version": "9" * 40},
        {"url": 'http://example.org"; rm -rf ~; "'},
        {"url": "http://example.org/$(rm)"},
        {"url": "file:///etc/passwd"},
        {"wheel": "dedloc_kit-0.1.0-py3-none-any.whl"},
        {"wheel": f"dedloc_kit-0.1.0-py3-none-any.whl#sha256={'0' * 63}"},
        {"wheel": f"../dedloc_kit-0.1.0-py3-none-any.whl#sha256={'0' * 64}"},
        {"wheel": f"dedloc_kit-$(rm)-py3-none-any.whl#sha256={'0' * 64}"},
        {"organizer": "\x1b[2J"},
        {"key": "not base64!"},
        {"version": 99},
        {"version": None},
        {"parameters": -1},
        {"parameters": "many"},
    ],
)
def test_nothing_that_an_invitation_says_gets_into_a_command_unchecked(keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="this is not an invitation") as caught:
        Invitation.parse(of_version(**{"version": __version__} | keys))
    assert "%pip" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "http://[::1]:80", "https://a-b.example.org/run_1", None])
def test_an_address_is_taken_as_a_coordinator_has_it(url: str | None) -> None:
    assert Invitation.parse(invited(run(), url=url).model_dump_json()).url == url


@pytest.mark.parametrize(
    "keys",
    [
        {"url": "http://192.0.2.66:8000"},
        {"wheel": f"dedloc_kit-0.1.0-py3-none-any.whl#sha256={'0' * 64}"},
        {"parameters": 1},
        {"organizer": MALLORY.peer},
        {"organizer": MALLORY.peer, "key": public(MALLORY.key)},
        {"key": public(MALLORY.key)},
        {"key": ""},
        {"signature": ""},
        {"signature": MALLORY.invites(run()).signature},
        {"signature": "===="},
        {"key": base64.b64encode(b"no key").decode()},
    ],
)
def test_an_invitation_that_its_organizer_has_not_signed_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"is not signed by the organizer|is not an invitation") as caught:
        Invitation.parse(invited(run()).model_copy(update=keys).model_dump_json())
    assert "\n" not in str(caught.value)


def test_addresses_of_peers_are_nobodys_word_so_a_mirror_may_add_some() -> None:
    invitation = invited(run()).model_copy(update={"peers": ("/ip4/10.0.0.1/tcp/1/p2p/QmOther",)})
    again = Invitation.parse(invitation.model_dump_json())
    assert (again, again.organizer) == (invitation, ORGANIZER.peer)


SENTENCE = {"before": "a ", "guess": "boat", "truth": "river", "after": "."}
SIMILAR = {"kind": "neighbours", "picture": "0" * 64, "label": "cat", "nearest": []}
DRAWN = {"kind": "drawing", "caption": "a boat", "picture": "0" * 64}
WRITTEN = {"kind": "continuation", "before": "a boat", "written": " is", "truth": " on the river"}


def test_a_metric_is_a_share_unless_its_name_says_that_it_is_none() -> None:
    metrics = {"masked accuracy": 0.5, "perplexity": 300.0, "bits per byte": 2.5, "code loss without caption": 5.5}
    assert Evaluation.parse({"loss": 1.0, "metrics": metrics}).metrics == metrics
    with pytest.raises(ValueError, match="Evaluation: masked accuracy is a share and cannot be more than 1"):
        Evaluation.parse({"loss": 1.0, "metrics": {**metrics, "masked accuracy": 1.5}})


def test_samples_are_of_the_kind_that_they_name_and_unmarked_ones_are_sentences() -> None:
    samples = (SENTENCE, {**SENTENCE, "kind": "fill-mask"}, SIMILAR, WRITTEN, DRAWN)
    read = Evaluation.parse({"loss": 1.0, "samples": samples})
    kinds = ["fill-mask", "fill-mask", "neighbours", "continuation", "drawing"]
    assert [sample.kind for sample in read.samples] == kinds
    assert Evaluation.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize(
    "sample",
    [
        {**SENTENCE, "kind": "markup"},
        {**SENTENCE, "kind": "neighbours"},
        {**SIMILAR, "picture": "../../etc/passwd"},
        {**SIMILAR, "label": "x" * 65},
        {**WRITTEN, "written": "x" * 513},
        {**SIMILAR, "nearest": [{"picture": "0" * 64, "label": "", "similarity": 1.5}]},
        {**SIMILAR, "nearest": [{"picture": "0" * 64, "label": "", "similarity": 0.5}] * 9},
        {**DRAWN, "caption": "x" * 257},
        {**DRAWN, "picture": None},
        {**DRAWN, "real": "../../etc/passwd"},
        {**DRAWN, "pixels": "AAAA"},
        "boat",
    ],
)
def test_a_sample_of_no_kind_is_refused(sample: Any) -> None:
    with pytest.raises(ValueError, match="Evaluation: samples"):
        Evaluation.parse({"loss": 1.0, "samples": (sample,)})


def test_a_drawing_names_the_real_picture_where_there_is_one_and_its_caption_takes_over_no_terminal() -> None:
    (alone, beside) = Evaluation.parse(
        {"loss": 1.0, "samples": (DRAWN, {**DRAWN, "caption": "a\x1b[2J\nboat", "real": "1" * 64})}
    ).samples
    assert isinstance(alone, Drawing)
    assert isinstance(beside, Drawing)
    assert (alone.pictures, beside.pictures) == (["0" * 64], ["0" * 64, "1" * 64])
    assert beside.caption == "a [2J boat"


@pytest.mark.parametrize("pixels", [b"", b"<svg>", bytes(3 * 6), bytes(3 * 49**2)])
def test_a_picture_is_square_and_small(pixels: bytes) -> None:
    with pytest.raises(ValueError, match="Picture"):
        Picture.parse({"pixels": pixels})
    assert Picture(pixels=bytes(3 * 48**2)).side == 48


@pytest.mark.parametrize("reason", ["\x1b[2J", "two\nlines", "a\x7f", "W" * (MAX_REASON + 1)])
def test_why_a_peer_had_to_start_again_is_one_short_line(reason: str) -> None:
    values = VALID[Progress]
    assert Progress.parse({**values, "restarted": "W" * MAX_REASON}).restarted
    with pytest.raises(ValueError, match="restarted"):
        Progress.parse({**values, "restarted": reason})


def test_an_answer_of_admission_says_why_only_where_there_is_something_to_say() -> None:
    assert AccessAnswer(denial="kicked").model_dump() == {"token": b"", "denial": "kicked"}
    told = AccessAnswer(denial="kicked", why="it lied").model_dump()
    assert AccessAnswer.parse(told).why == "it lied"
    for wrong in ("\x1b[2J", "x" * (MAX_REASON + 1)):
        with pytest.raises(ValueError, match="why"):
            AccessAnswer.parse(told | {"why": wrong})


def test_what_has_come_of_the_checks_is_one_quiet_line() -> None:
    assert Checks(passed=112, share=0.02).told() == "1 in 50 contributions is checked: 112 checked, all fine"
    found = Checks(passed=3, given_up=2, convicted=1, share=0.02)
    assert found.told() == "1 in 50 contributions is checked: 3 checked, 2 could not be, 1 sent away"


def test_during_an_alarm_the_line_says_how_many_are_checked_and_since_when() -> None:
    alarm = {
        (0.3, 12): "3 in 10 contributions are checked since somebody was sent away 12 steps ago: 0 checked, all fine",
        (0.5, 1): "1 in 2 contributions is checked since somebody was sent away 1 step ago: 0 checked, all fine",
        (0.001, 0): "1 in 1000 contributions is checked since somebody was sent away just now: 0 checked, all fine",
    }
    for (share, ago), line in alarm.items():
        assert Checks(share=share, alarm=ago).told() == line
    for share in (5e-324, 1.0):
        assert len(Checks(share=share).told()) < len(Checks(share=share, alarm=3).told()) < 200


def test_a_plain_text_has_no_control_character_and_may_have_any_other() -> None:
    text = TypeAdapter(PeerText)
    for code in range(0x110000):
        if unicodedata.category(chr(code)) == "Cc":
            with pytest.raises(ValidationError):
                text.validate_python(f"a{chr(code)}b")
    for plain in ("", "আশা রহমান", "a b", "\u00a0\u00ad", "\u202e\u200b", "😀\ue000"):
        assert text.validate_python(plain) == plain
