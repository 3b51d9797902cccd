"""Downloads from the Hub, with the chunk store that huggingface_hub reads from if it can."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download

from dedloc_kit.fetching import SILENCE_SECONDS, by_plain_http, fetched
from dedloc_kit.hub import model_files
from tests.loopback_hub import LoopbackHub, loopback_hub

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.commits["us/model"] = [{"model.safetensors": CONTENT, "other.safetensors": CONTENT[1:]}]
        yield hub


def test_a_silent_chunk_store_is_left_for_plain_http(hub: LoopbackHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.chunks = f"{hub.url}/silent-chunks"
    there = fetched(
        "us/model",
        lambda bar: snapshot_download("us/model", revision=hub.revision("us/model"), tqdm_class=bar),
        silence=0.2,
    )
    assert (there / "model.safetensors").read_bytes() == CONTENT
    assert (there / "other.safetensors").read_bytes() == CONTENT[1:]
    told = [record.getMessage() for record in caplog.records if record.name == "dedloc_kit.fetching"]
    assert len(told) == 1
    assert "us/model: nothing has come" in told[0]
    assert "plain HTTP" in told[0]


def test_a_chunk_store_that_refuses_is_left_for_plain_http(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.chunks = f"local://{tmp_path}/chunks"  # which knows no file of this hash
    assert (model_files("us/model", "main", ["model*"]) / "model.safetensors").read_bytes() == CONTENT


def test_a_chunk_store_that_answers_is_read(hub: LoopbackHub, tmp_path: Path) -> None:
    from hf_xet import XetSession  # type: ignore[import-untyped]

    (tmp_path / "file").write_bytes(CONTENT)
    hub.chunks = f"local://{tmp_path}/chunks"
    with XetSession().new_upload_commit(endpoint=hub.chunks) as commit:
        upload = commit.start_upload_file(str(tmp_path / "file"))
    hub.chunk_hashes[CONTENT] = upload.result().xet_info.hash
    hub.commits["us/model"] = [{"model.safetensors": CONTENT}]
    assert (model_files("us/model", "main", ["model*"]) / "model.safetensors").read_bytes() == CONTENT
    assert not constants.HF_HUB_DISABLE_XET, "it was left for plain HTTP"


def test_a_trickle_is_told_with_its_rate_and_not_taken_for_silence(hub: LoopbackHub) -> None:
    hub.commits["us/model"] = [{"model.safetensors": b"x" * 100}]
    hub.drip = 0.005
    told: list[tuple[str, float | None]] = []
    there = fetched(
        "the model",
        lambda bar: hf_hub_download("us/model", "model.safetensors", tqdm_class=bar),
        silence=0.2,
        every=0.1,
        tell=lambda line, share: told.append((line, share)),
    )
    assert there.stat().st_size == 100
    assert told
    assert all(line.startswith("the model: ") for line, _ in told)
    assert all(
        ("nothing has come yet" in line and share is None)
        or (" of 0.0 MB" in line and "B/s" in line and share is not None and 0 <= share <= 1)
        for line, share in told
    )


def test_no_request_to_the_hub_waits_for_ever(hub: LoopbackHub) -> None:
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    limits = []
    fetched("us/model", lambda bar: snapshot_download("us/model", tqdm_class=bar))
    session = get_session()
    session.event_hooks = {
        **session.event_hooks,
        "request": [*session.event_hooks["request"], lambda request: limits.append(request.extensions["timeout"])],
    }
    HfApi().model_info("us/model")  # which passes on that nothing bounds it
    assert [set(limit.values()) for limit in limits] == [{SILENCE_SECONDS}]


def test_where_nothing_can_be_aborted_the_chunk_store_is_not_asked(hub: LoopbackHub) -> None:
    hub.chunks = f"{hub.url}/silent-chunks"
    with by_plain_http():
        assert Path(hf_hub_download("us/model", "model.safetensors")).read_bytes() == CONTENT
    assert not constants.HF_HUB_DISABLE_XET
