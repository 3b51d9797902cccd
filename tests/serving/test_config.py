"""What a serving swarm's configuration and its servers may say."""

from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.config.machine import parsed
from dedloc_kit.errors import UserError
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import (
    ModelVersion,
    ServerConfig,
    parse_serving,
    served_by_swarm,
    serving_of,
    swarm_of,
)
from dedloc_kit.serving.offer import Serving
from tests.invitations import invited
from tests.tiny import tiny_run

CONFIG: dict[str, Any] = {
    "name": "toy",
    "model": "a-model",
    "config": {"model_type": "llama", "num_hidden_layers": 4},
    "manifest": "ab" * 32,
}
OFFER: dict[str, Any] = {
    **{"run_id": "toy-0", "version": "ab" * 32, "form": "int8", "begin": 0, "end": 2, "state": "online"},
    **{"client_mode": True, "addresses": (), "device": "CPU", "name": "ada", "time": 1.0},
}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"manifest": "abc"}, "manifest"),
        ({"config": {"auto_map": {"AutoModel": "evil.py"}}}, "never run here"),
        ({"config": {"a": "x" * 70_000}}, "65536 bytes"),
        ({"files": {"../identity.key": "ab" * 32}}, "files"),
        ({"wieght": 1}, "not a known key"),
    ],
)
def test_a_configuration_that_cannot_be_right_is_refused_by_name(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        parse_serving({**CONFIG, **changed})


def test_swarms_of_other_weights_never_meet() -> None:
    one, other = parse_serving(CONFIG), parse_serving({**CONFIG, "manifest": "cd" * 32})
    assert one.run_id.startswith("toy-")
    assert one.run_id != other.run_id
    assert parse_serving(one.model_dump(mode="json")).run_id == one.run_id


def test_an_invitation_says_to_what_it_invites_and_cannot_be_edited() -> None:
    serving = parse_serving(CONFIG)
    invitation = Invitation.parse(invited(serving).model_dump_json())
    assert swarm_of(invitation) == serving_of(invitation) == serving
    with pytest.raises(UserError, match="served, not trained"):
        invitation.run_config()
    with pytest.raises(UserError, match="wrong fingerprint"):
        serving_of(invitation.model_copy(update={"run": {**invitation.run, "manifest": "cd" * 32}}))


def test_of_runs_those_that_train_a_causal_language_model_are_served() -> None:
    masked = invited(tiny_run())
    with pytest.raises(UserError, match=r"tiny-\w+ trains with the task 'tiny', which makes no causal language model"):
        served_by_swarm(masked)
    causal = tiny_run(task={"name": "causal"})
    assert served_by_swarm(invited(causal)) == causal
    serving = parse_serving(CONFIG)
    assert served_by_swarm(invited(serving)) == serving


def test_a_version_has_one_form_and_one_name_and_is_bounded() -> None:
    version = ModelVersion(model="tiny", config=CONFIG["config"], manifest="ab" * 32)
    read = ModelVersion.from_json(version.canonical().encode())
    assert (read, read.digest) == (version, version.digest)
    with pytest.raises(ValueError, match="too large"):
        ModelVersion.from_json(b" " * 2**17 + version.canonical().encode())
    with pytest.raises(ValueError, match="ModelVersion: "):
        ModelVersion.from_json(b"[]")


@pytest.mark.parametrize(
    "changed",
    [
        *({"begin": 2}, {"end": 1025}, {"decoding": 1e7}, {"decoding": float("nan")}, {"state": "king"}),
        *({"name": "\x1b[2J"}, {"round_trips": {"a": 1.0}}, {"round_trips": {f"{n:012x}": 1.0 for n in range(17)}}),
        *({"moving": {"begin": 3, "end": 3, "announced": 0.0}}, {"addresses": ("/unix/etc",)}, {"free_tokens": -1}),
    ],
)
def test_what_no_server_can_say_is_refused(changed: dict[str, Any]) -> None:
    Serving.parse(OFFER)
    with pytest.raises(ValueError, match="Serving"):
        Serving.parse({**OFFER, **changed})


@pytest.mark.parametrize(
    ("changed", "told"), [({"span": "0-12"}, "span"), ({"weights": "int2"}, "weights"), ({"cache_tokens": 1}, "cache")]
)
def test_what_a_server_decides_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        parsed(ServerConfig, {"folder": tmp_path, **changed})
