"""The run configuration: strict, immutable, and named by its hash."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.machine import CoordinatorConfig, PeerConfig, parsed
from dedloc_kit.config.places import volunteers_read
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from tests.tiny import tiny_run


def values(**changes: Any) -> dict[str, Any]:
    """A valid configuration as plain values; `changes` replace keys at the top."""
    return {
        "name": "demo",
        "global_batch": 64,
        "task": {"name": "albert", "hidden_size": 32},
        "data": {
            "train": [{"dataset": "owner/first", "weight": 2.0}, {"dataset": "owner/second"}],
            "evaluation": {"dataset": "owner/held-out"},
        },
        "optimizer": {"warmup_steps": 1, "total_steps": 10},
    } | changes


def message(changed: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse_run(changed)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("changes", "key", "nearest"),
    [
        ({"global_bath": 1}, "global_bath", "global_batch"),
        ({"optimizer": {"leaning_rate": 1.0}}, "optimizer.leaning_rate", "learning_rate"),
        ({"averaging": {"overlapp": True}}, "averaging.overlapp", "overlap"),
        ({"data": {"train": [{"dataset": "a/b", "wieght": 1.0}]}}, "data.train[0].wieght", "weight"),
        ({"data": {"train": [{"dataset": "a/b"}], "evalution": None}}, "data.evalution", "evaluation"),
        (
            {"data": {"train": [{"dataset": "a/b"}], "evaluation": {"dataset": "a/b", "splt": "x"}}},
            "data.evaluation.splt",
            "split",
        ),
        (
            {"data": {"train": [{"dataset": "a/b"}], "cooldown": [{"dataset": "a/b"}, {"datset": "a/b"}]}},
            "data.cooldown[1].datset",
            "dataset",
        ),
        ({"access": {"hwo": "open"}}, "access.hwo", "who"),
        ({"trust": {"agregator": "clip"}}, "trust.agregator", "aggregator"),
        ({"pipeline": {"stage": 3}}, "pipeline.stage", "stages"),
    ],
)
def test_a_typo_names_the_key_and_the_nearest_one(changes: dict[str, Any], key: str, nearest: str) -> None:
    assert message(values(**changes)) == f"{key} is not a known key; did you mean '{nearest}'?"


def test_an_unknown_key_is_named_before_the_missing_one_that_was_meant() -> None:
    misspelled = values(global_bath=64)
    del misspelled["global_batch"]
    assert message(misspelled) == "global_bath is not a known key; did you mean 'global_batch'?"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"global_batch": 0}, "global_batch: input should be greater than or equal to 1, not 0"),
        ({"global_batch": "64"}, "global_batch: input should be a valid integer, not '64'"),
        ({"global_batch": 64.0}, "global_batch: input should be a valid integer"),
        ({"global_batch": True}, "global_batch: input should be a valid integer"),
        ({"name": "Demo Run"}, "name: string should match pattern"),
        ({"name": "-demo"}, "name: string should match pattern"),
        ({"name": "d" * 49}, "name: string should match pattern"),
        ({"data": {"train": []}}, "data.train: "),
        ({"data": {"train": [{"dataset": "a/b", "weight": 0}]}}, "data.train[0].weight: input should be greater"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "optimizer.betas[1]: input should be less than 1"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas[1] is missing; add it"),
        ({"optimizer": {"learning_rate": float("nan")}}, "optimizer.learning_rate: input should be a finite number"),
        ({"optimizer": {"learning_rate": float("inf")}}, "optimizer.learning_rate: input should be a finite number"),
        ({"optimizer": {"learning_rate": 1e39}}, "optimizer.learning_rate: input should be less than or equal to 1000"),
        ({"microbatch": 65}, "microbatch must be at most 64, what one step of a peer takes"),
        (
            {"optimizer": {"warmup_steps": 10, "total_steps": 10}},
            "optimizer.warmup_steps must be smaller than optimizer.total_steps",
        ),
        (
            {"averaging": {"compression": "float8"}},
            "averaging.compression: input should be 'none', 'float16', '8bit', '4bit' or 'sparse'",
        ),
        (
            {"averaging": {"compression": "sparse"}},
            'averaging.compression = "sparse" needs averaging.mode = "local-steps"; add that, or choose "4bit"',
        ),
        ({"task": {}}, "task.name is missing; add it"),
        (
            {"optimizer": {"name": "muon", "warmup_steps": 1, "total_steps": 10}},
            'optimizer.name = "muon" is for the steps that each volunteer takes by itself: add averaging = "local',
        ),
        (
            {"data": {"train": [{"dataset": "a/b"}], "cooldown": [{"dataset": "c/d"}]}},
            'data.cooldown needs optimizer.schedule = "warmup-stable-decay"; add that or remove it',
        ),
        ({"name": None}, "name: input should be a valid string, not None"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_key_and_the_rule(changes: dict[str, Any], expected: str) -> None:
    assert message(values(**changes)).startswith(expected)


@pytest.mark.parametrize("key", ["name", "global_batch", "task", "data"])
def test_a_missing_key_is_named(key: str) -> None:
    without = values()
    del without[key]
    assert message(without) == f"{key} is missing; add it"


def test_a_key_that_is_like_none_is_answered_with_all_of_its_section() -> None:
    assert message(values(trust={"probation": 1})) == (
        "trust.probation is not a known key; known are "
        + ", ".join(RunConfig.model_fields["trust"].annotation.model_fields)  # type: ignore[union-attr]
    )


def test_a_key_with_control_characters_cannot_break_the_line() -> None:
    assert "\x1b" not in message(values(**{"a\n\x1b[2J": 1}))
    assert len(message(values(**{"a" * 100_000: 1}))) < 200


def test_a_long_wrong_value_is_cut() -> None:
    assert len(message(values(global_batch="x" * 100_000))) < 200


def test_the_configuration_and_its_parts_cannot_be_changed() -> None:
    run = parse_run(values())
    with pytest.raises(ValidationError):
        run.seed = 1
    with pytest.raises(ValidationError):
        run.optimizer.learning_rate = 1.0


def test_the_tasks_own_keys_are_kept_as_written() -> None:
    run = parse_run(values(task={"name": "albert", "hidden_size": 32, "layers": [1, 2], "deep": {"er": True}}))
    assert run.task.options == {"hidden_size": 32, "layers": [1, 2], "deep": {"er": True}}


def test_the_canonical_form_does_not_depend_on_the_order_of_keys() -> None:
    def reversed_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(value)}
        return [reversed_keys(item) for item in value] if isinstance(value, list) else value

    assert parse_run(values()).canonical() == parse_run(reversed_keys(values())).canonical()


def test_the_canonical_form_writes_defaults_out() -> None:
    spelled_out = values(seed=0, averaging={"overlap": True, "compression": "4bit"})
    assert parse_run(values()).fingerprint == parse_run(spelled_out).fingerprint
    assert json.loads(parse_run(values()).canonical())["averaging"]["compression"] == "4bit"


def test_a_key_that_came_later_is_left_out_of_what_is_written_while_it_has_its_default() -> None:
    plain = parse_run(values())
    assert "cooldown" not in json.loads(plain.canonical())["data"]
    assert parse_run(values(data={**values()["data"], "cooldown": []})).fingerprint == plain.fingerprint
    waits = {"warmup_steps": 1, "total_steps": 10, "schedule": "warmup-stable-decay"}
    steady, mixed = (
        parse_run(values(optimizer=waits, data=values()["data"] | second))
        for second in ({}, {"cooldown": [{"dataset": "owner/better"}]})
    )
    assert steady.fingerprint != mixed.fingerprint
    assert parse_run(json.loads(mixed.canonical())) == mixed
    assert [source.dataset for source in mixed.data.cooldown] == ["owner/better"]


def test_only_a_run_whose_batches_may_be_overfull_has_another_fingerprint() -> None:
    plain, said, overfull = (
        parse_run(values(averaging=each)) for each in ({}, {"allow_overflow": False}, {"allow_overflow": True})
    )
    assert plain.fingerprint == said.fingerprint != overfull.fingerprint
    assert parse_run(json.loads(overfull.canonical())).averaging.allow_overflow


def test_stages_are_parts_with_ids_of_their_own_and_a_run_without_them_is_what_it_was() -> None:
    plain, exact = parse_run(values()), {"averaging": {"overlap": False}}
    run = parse_run(values(pipeline={"stages": [2, 3, 1]}, **exact))
    assert run.pipeline is not None
    assert (plain.parts, plain.stage, run.pipeline.count, run.stage) == ((), None, 3, None)
    assert run.parts == tuple(f"{run.run_id}.stage{k}" for k in range(3))
    second = run.of_stage(1)
    assert (second.stage, second.run_id, second.fingerprint) == (1, run.parts[1], run.fingerprint)
    assert parse_run(json.loads(run.canonical())) == run
    assert run.fingerprint not in (plain.fingerprint, parse_run(values(pipeline={"stages": 3}, **exact)).fingerprint)
    assert "averaging.overlap = false" in message(values(pipeline={"stages": 3}))
    assert message(values(pipeline={"stages": 1}, **exact)).startswith("pipeline.stages")
    assert "local-steps" in message(values(pipeline={}, averaging="local-steps"))


def test_one_line_chooses_the_mode_of_averaging() -> None:
    assert parse_run(values(averaging="local-steps")) == parse_run(values(averaging={"mode": "local-steps"}))
    assert message(values(averaging="sometimes")).startswith("averaging.mode: input should be 'global-batch' or")


def test_the_canonical_form_is_ascii_and_survives_its_own_parsing() -> None:
    run = parse_run(values(task={"name": "albert", "language": "বাংলা"}))
    assert run.canonical().isascii()
    again = parse_run(json.loads(run.canonical()))
    assert again == run
    assert again.run_id == run.run_id


def test_the_fingerprint_of_a_known_configuration_never_changes() -> None:
    # A change here breaks every invitation that is out there: peers of old and new versions could not meet.
    assert parse_run(values()).run_id == "demo-33c2ca99f8ed4c73"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, inner in enumerate(value) for leaf in leaves(inner, (*path, index))]
    return [path]


COMPLETE: dict[str, Any] = json.loads(parse_run(values(microbatch=8)).canonical())


@pytest.mark.parametrize("path", leaves(COMPLETE), ids=lambda path: ".".join(map(str, path)))
def test_the_fingerprint_changes_with_any_value(path: tuple[Any, ...]) -> None:
    changed = json.loads(json.dumps(COMPLETE))
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    match holder[path[-1]]:
        case bool(value):
            holder[path[-1]] = not value
        case int(value):
            holder[path[-1]] = value + 1
        case float(value):
            holder[path[-1]] = value / 2 or 0.5
        case "open":
            holder[path[-1]] = "invite"
        case "4bit":
            holder[path[-1]] = "none"
        case "global-batch":
            holder[path[-1]] = "local-steps"
        case "lamb":
            holder[path[-1]] = "lars"
        case "linear":
            holder[path[-1]] = "cosine"
        case "open":
            holder[path[-1]] = "invite"
        case str(value):
            holder[path[-1]] = value + "x"
        case None:
            holder[path[-1]] = "new"
    assert parse_run(changed).fingerprint != parse_run(COMPLETE).fingerprint


@pytest.mark.parametrize(
    ("said", "expected"), [({"name": "lars"}, 0.9), ({"name": "muon"}, 0.95), ({"name": "muon", "momentum": 0.9}, 0.9)]
)
def test_muon_has_a_momentum_of_its_own_unless_one_is_said(said: dict[str, Any], expected: float) -> None:
    run = parse_run(values(optimizer={**values()["optimizer"], **said}, averaging="local-steps"))
    assert run.optimizer.momentum == expected
    spelled_out = {**values()["optimizer"], **said, "momentum": expected}
    assert parse_run(values(optimizer=spelled_out, averaging="local-steps")).fingerprint == run.fingerprint


def test_sparse_steps_are_without_outer_momentum_unless_that_is_said() -> None:
    sparse = {"mode": "local-steps", "compression": "sparse"}
    for said, expected in (({}, (1.0, 0.0)), ({"outer_momentum": 0.5, "outer_learning_rate": 0.7}, (0.7, 0.5))):
        averaging = parse_run(values(averaging=sparse | said)).averaging
        assert (averaging.outer_learning_rate, averaging.outer_momentum) == expected


def test_the_order_of_sources_is_part_of_the_fingerprint() -> None:
    swapped = values()
    swapped["data"]["train"].reverse()
    assert parse_run(swapped).fingerprint != parse_run(values()).fingerprint


def test_seeds_are_stable_positive_and_apart() -> None:
    assert seed_of("run", 1, "peer") == 5370416061822777191
    assert seed_of("run", "1", "peer") == seed_of("run", 1, "peer")
    assert seed_of("ab", "c") != seed_of("a", "bc")
    assert all(0 <= seed_of(number) < 2**63 for number in range(100))


@pytest.mark.parametrize(
    "changes",
    [{"name": ""}, {"name": "x" * 65}, {"name": "a\x1b[2J"}, {"port": 70_000}, {"threads": -1}, {"folders": 1}],
)
def test_a_peer_configuration_is_strict_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PeerConfig(**({"folder": tmp_path} | changes))


def test_a_peers_name_may_be_in_any_script(tmp_path: Path) -> None:
    for name in ("অমল", "Zoë 👩‍🔬", "O'Neil <b>"):
        assert PeerConfig(folder=tmp_path, name=name).name == name


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"optimizer": {"name": "lars", "state_dtype": "8bit", "warmup_steps": 1}}, '"lars" has one of them only'),
        ({"optimizer": {"name": "adamw", "state_dtype": "8bit"}}, '"adamw" is not made for it'),
        ({"optimizer": {"state_dtype": "8bit"}, "averaging": "local-steps"}, 'averaging = "local-steps"'),
    ],
)
def test_a_state_of_8_bits_is_refused_in_a_line_where_it_is_not_made_for(changes: dict[str, Any], why: str) -> None:
    told = message(values(**changes))
    assert 'optimizer.state_dtype = "8bit"' in told
    assert why in told


def test_checks_are_refused_where_volunteers_send_no_gradients() -> None:
    told = message(values(trust={"checks": "on"}, averaging="local-steps"))
    assert 'trust.checks = "on" is for gradients' in told
    assert parse_run(values(trust={"checks": "on"})).trust.checks == "on"


EXPERTS = {"layers": [1, 3], "grid": [4, 4], "width": 8, "hidden": 16}


def test_experts_are_part_of_a_run_and_one_without_them_is_what_it_was() -> None:
    plain, run = parse_run(values()), parse_run(values(experts=EXPERTS, averaging={"overlap": False}))
    assert plain.experts is None
    assert "experts" not in json.loads(plain.canonical())
    assert run.experts is not None
    assert (run.experts.layers, run.experts.grid, run.experts.top_k) == ((1, 3), (4, 4), 2)
    assert parse_run(json.loads(run.canonical())) == run
    assert run.fingerprint != plain.fingerprint


@pytest.mark.parametrize(
    ("experts", "others", "said"),
    [
        ({"top_k": 17}, {}, "experts.top_k is 17, and a grid of 4 x 4 has 16 cells; set it to at most that"),
        ({"top_k": 1}, {}, "experts.top_k: input should be greater than or equal to 2"),
        ({"grid": []}, {}, "experts.grid must be two whole numbers from 1 to 64"),
        ({"grid": [0, 4]}, {}, "experts.grid must be two whole numbers from 1 to 64"),
        ({"grid": [4, 65]}, {}, "experts.grid must be two whole numbers from 1 to 64"),
        ({"grid": [4, "4"]}, {}, "experts.grid must be two whole numbers from 1 to 64"),
        ({"layers": []}, {}, "experts.layers"),
        ({"layers": [3, 1]}, {}, "experts.layers must name each layer once, in their order"),
        ({"layers": [1, 1]}, {}, "experts.layers must name each layer once, in their order"),
        ({"widht": 1}, {}, "experts.widht is not a known key; did you mean 'width'?"),
        ({}, {"averaging": "local-steps"}, 'remove averaging = "local-steps" or the experts'),
        ({}, {}, "[experts] need averaging.overlap = false"),
        ({}, {"trust": {"checks": "on"}, "averaging": {"overlap": False}}, "remove it or the [experts]"),
        (
            {},
            {"pipeline": {}, "averaging": {"overlap": False}},
            "not made for the stages of a [pipeline]",
        ),
    ],
)
def test_experts_that_cannot_be_are_refused_in_a_line_that_names_the_key_and_the_fix(
    experts: dict[str, Any], others: dict[str, Any], said: str
) -> None:
    told = message(values(experts={**EXPERTS, **experts}, **others))
    assert said in told
    assert "\n" not in told


def test_what_a_run_with_experts_has_not_yet_is_refused_before_it_starts(tmp_path: Path) -> None:
    exact = {"averaging": {"overlap": False}}
    run = parse_run(values(experts=EXPERTS, **exact))
    CoordinatorConfig(folder=tmp_path).check(run)
    unmeasured = {"train": [{"dataset": "owner/first"}]}
    with pytest.raises(UserError, match=r"add \[data.evaluation\]"):
        CoordinatorConfig(folder=tmp_path).check(parse_run(values(experts=EXPERTS, data=unmeasured, **exact)))


@pytest.mark.parametrize(
    ("state_bucket", "right"),
    [
        ("us/down", True),
        ("https://example.org/down/bert", True),
        ("https://example.org:8443", True),
        ("http://example.org/down", False),
        ("https://user@example.org/", False),
        ("https://example.org/?a=b", False),
        ("file:///etc", False),
        ("/srv/down", False),
        ("down", False),
    ],
)
def test_the_state_bucket_is_on_the_hub_or_a_folder_over_https(state_bucket: str, right: bool) -> None:
    def parsed() -> RunConfig:
        return tiny_run(averaging={"state_bucket": state_bucket})

    if right:
        assert parsed().fingerprint != tiny_run().fingerprint, "all peers have to agree on it"
    else:
        with pytest.raises(UserError, match=r"averaging\.state_bucket"):
            parsed()


def test_where_downloads_are_a_folder_the_coordinator_has_to_know_which_one(tmp_path: Path) -> None:
    peer = parsed(CoordinatorConfig, {"folder": tmp_path})
    peer.check(tiny_run(averaging={"state_bucket": "us/down"}))
    run = tiny_run(averaging={"state_bucket": "https://example.org/down"})
    with pytest.raises(UserError, match="with state_bucket_folder"):
        peer.check(run)
    parsed(CoordinatorConfig, {"folder": tmp_path, "state_bucket_folder": tmp_path}).check(run)


def test_downloads_are_not_made_for_a_model_in_parts() -> None:
    with pytest.raises(UserError, match="not made for a run with"):
        tiny_run(averaging={"state_bucket": "us/down", "overlap": False}, pipeline={"stages": 2})


def test_volunteers_read_the_training_data_and_what_spells_it_but_not_what_the_organizer_alone_needs() -> None:
    data: dict[str, Any] = {
        "train": [{"dataset": "us/texts", "revision": "v2"}, {"dataset": "/home/asha/texts"}],
        "cooldown": [{"dataset": "us/last"}],
        "evaluation": {"dataset": "us/held"},
    }
    task = {"name": "causal", "tokenizer": "us/words@v1", "init_from": "them/model"}
    falling = {**values()["optimizer"], "schedule": "warmup-stable-decay"}
    run = parse_run(values(task=task, data=data, optimizer=falling))
    assert volunteers_read(run) == {
        ("us/texts", "v2"): "dataset",
        ("us/last", None): "dataset",
        ("us/words", "v1"): "model",
    }
    run = parse_run(values(task={"name": "causal", "init_from": "them/model"}, data={"train": data["train"][1:]}))
    assert volunteers_read(run) == {("them/model", None): "model"}
