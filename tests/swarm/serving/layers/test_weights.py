"""A model's weights from other servers, of which none has all or the source is gone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.manifest import Manifest, StoredTensor, describe_folder
from dedloc_kit.blocks.weights.weights import load
from dedloc_kit.errors import UserError
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.serving.layers import weights
from dedloc_kit.swarm.serving.layers.weights import ModelContents, NotGiven, fetch, fetch_manifest
from dedloc_kit.swarm.transfer import gathering
from dedloc_kit.swarm.transfer.addressed import ContentService
from dedloc_kit.swarm.transfer.store import Store
from tests.blocks import tiny
from tests.swarm.local_network import LocalNetwork
from tests.swarm.network.test_service import Place


@pytest.fixture(scope="module")
def whole() -> Any:
    return tiny.model("Llama")


@pytest.fixture
def model(whole: Any, tmp_path: Path) -> Path:
    whole.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(gathering, "REPORT_SECONDS", 0.05)


def names_of(manifest: Manifest, *layers: int) -> list[str]:
    return [name for name in manifest.tensors if any(f".{layer}." in name for layer in layers)]


async def fetched(
    network: LocalNetwork, store: Store, manifest: Manifest, names: list[str], *donors: str
) -> list[tuple[int, int]]:
    endpoint, progress = network.endpoint("me"), list[tuple[int, int]]()
    await fetch(
        names,
        manifest,
        store,
        donors,
        lambda donor: endpoint.open(donor, ContentService),
        lambda received, total: progress.append((received, total)),
    )
    return progress


def test_a_span_is_filled_from_servers_of_which_each_has_a_part_and_gives_it_on(
    whole: Any, model: Path, tmp_path: Path
) -> None:
    manifest, network = describe_folder(model), LocalNetwork()
    source, first, mine = (Store(tmp_path / name) for name in ("source", "first", "mine"))
    digest = source.put(manifest.canonical().encode())
    assert digest == manifest.digest
    network.serve("source", ContentService(source.find, ModelContents(model, manifest).find))
    network.serve("first", ContentService(first.find))
    network.serve("me", ContentService(mine.find))

    async def run() -> None:
        endpoint = network.endpoint("me")
        opened = await fetch_manifest(digest, ["source"], lambda donor: endpoint.open(donor, ContentService))
        assert opened == manifest
        await fetched(network, first, manifest, names_of(manifest, 0, 1), "source")
        network.serve("source", ContentService())  # it has lost everything
        half = names_of(manifest, 1, 2)
        with pytest.raises(NotGiven, match="the weights of layers 2 now") as error:
            await fetched(network, mine, manifest, half, "source", "first")
        assert error.value.names == sorted(names_of(manifest, 2))
        network.serve("other", ContentService(ModelContents(model, manifest).find))
        progress = await fetched(network, mine, manifest, half, "source", "first", "other")
        total = sum(manifest.tensors[name].size for name in half)
        assert (progress[0][0] > 0, progress[-1]) == (True, (total, total)), "layer 1 was there"
        assert (await fetched(network, mine, manifest, half)) == [(total, total)], "nobody is asked for what is there"

    asyncio.run(run())
    span = Span(whole.config, 1, 3)
    own = span.wanted(names_of(manifest, 1, 2))
    load(span, span.merged(own, weights.read(mine, manifest, own)), "float32")
    reference = Span.of(whole, 1, 3)
    hidden, positions = torch.randn(2, 5, whole.config.hidden_size), torch.arange(5)[None]
    assert torch.equal(span(hidden, None, positions), reference(hidden, None, positions))


def test_what_was_damaged_on_the_disk_is_refused_when_read_and_fetched_again(model: Path, tmp_path: Path) -> None:
    manifest, network, store = describe_folder(model), LocalNetwork(), Store(tmp_path / "mine")
    network.serve("source", ContentService(ModelContents(model, manifest).find))
    network.serve("me", ContentService())
    names = names_of(manifest, 1)

    def damage(name: str, keep: int, more: bytes = b"") -> None:
        path = store.folder / manifest.tensors[name].sha256
        path.write_bytes(path.read_bytes()[:keep] + more)

    async def run() -> None:
        await fetched(network, store, manifest, names, "source")
        for keep, more in ((-2, b"xx"), (-2, b"")):
            damage(names[0], keep, more)
            with pytest.raises(UserError, match="is damaged"):
                dict(weights.read(store, manifest, names))
            await fetched(network, store, manifest, names, "source")
            assert len(dict(weights.read(store, manifest, names))) == len(names)

    asyncio.run(run())


def test_a_server_gives_nothing_of_files_that_are_missing_damaged_or_of_another_model(
    whole: Any, model: Path, tmp_path: Path
) -> None:
    manifest = describe_folder(model)
    contents = ModelContents(model, manifest)
    tensor = manifest.tensors[names_of(manifest, 0)[0]]
    part = contents.find(tensor.sha256)
    assert part
    assert len(part.read(0, 2**40)) == tensor.size
    assert contents.find("0" * 64) is None
    assert ModelContents(tmp_path, manifest).find(tensor.sha256) is None, "missing"
    (model / tensor.file).write_bytes(b"garbage")
    assert ModelContents(model, manifest).find(tensor.sha256) is None, "damaged"
    tiny.model("Llama", hidden_size=16).save_pretrained(model)
    assert ModelContents(model, manifest).find(tensor.sha256) is None, "of another size"


def test_empty_and_equal_tensors_and_single_numbers_are_fetched_too(tmp_path: Path) -> None:
    given = {
        **{"a.0.x": torch.ones(3), "a.1.x": torch.ones(3), "a.2.x": torch.zeros(0, 2), "a.3.x": torch.tensor(2.0)},
        "a.4.x": torch.randn(3, 5).bfloat16(),
    }
    (tmp_path / "model").mkdir()
    save_file(given, tmp_path / "model" / "model.safetensors")
    manifest, network, store = describe_folder(tmp_path / "model"), LocalNetwork(), Store(tmp_path / "mine")
    network.serve("source", ContentService(ModelContents(tmp_path / "model", manifest).find))
    network.serve("me", ContentService())
    asyncio.run(fetched(network, store, manifest, list(given), "source"))
    read = dict(weights.read(store, manifest, given))
    assert read.keys() == given.keys()
    assert all(torch.equal(read[name], given[name]) for name in given)


def test_a_manifest_or_tensor_that_is_none_is_refused(tmp_path: Path) -> None:
    store, network = Store(tmp_path / "mine"), LocalNetwork()
    digest = store.put(b'{"tensors": {}}')
    network.serve("source", ContentService(store.find))
    network.serve("me", ContentService())
    endpoint = network.endpoint("me")
    with pytest.raises(UserError, match="is no manifest"):
        asyncio.run(fetch_manifest(digest, ["source"], lambda donor: endpoint.open(donor, ContentService)))
    manifest = Manifest(
        tensors={"a": StoredTensor(file="a.safetensors", dtype="I64", shape=(2,), sha256=store.put(b"x" * 16))}
    )
    with pytest.raises(UserError, match="only floating-point"):
        list(weights.read(store, manifest, ["a"]))
    with pytest.raises(UserError, match="no tensor 'b'"):
        asyncio.run(fetched(network, store, manifest, ["b"], "source"))


@pytest.mark.child
def test_weights_come_over_libp2p(model: Path, tmp_path: Path) -> None:
    manifest, store = describe_folder(model), Store(tmp_path / "mine")
    organizer = Place(tmp_path, "organizer")
    alice = Place(tmp_path, "alice", organizer)
    organizer.invite(alice)

    async def meet() -> None:
        async with organizer.open() as serving:
            await serving.add(ContentService(ModelContents(model, manifest).find))
            async with alice.open(*await serving.p2p.get_visible_maddrs()) as asking:
                names, donors = names_of(manifest, 0, 3), [organizer.signer.peer]
                await fetch(names, manifest, store, donors, lambda d: asking.open(d, ContentService), lambda *_: None)
                assert len(dict(weights.read(store, manifest, names))) == len(names)

    in_own_loop(meet())
