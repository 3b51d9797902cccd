"""What servers compute comes to their credit as their clients sign it, and nothing else does."""

import asyncio
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.access.guests import Admissions, Admitted, write_admissions
from dedloc_kit.ledger.served import ServingLedger, credit
from dedloc_kit.serving.receipts import Claim, Receipt
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import NoAnswer
from dedloc_kit.swarm.serving.credit import crediting, receipts
from dedloc_kit.swarm.serving.credit.crediting import Accounts, CreditService, claim
from dedloc_kit.swarm.serving.credit.receipts import Given, Receipts
from dedloc_kit.swarm.serving.credit.tally import Tally
from tests.identities import an_identity
from tests.swarm.local_network import LocalNetwork
from tests.test_ledger_served import RUN, offer

SESSION = "51" * 8


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Signer]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: Signer(an_identity(folder / name)) for name in ("organizer", "server", "client", "mallory")}


class Place:
    """An organizer, a server and a client on a local network; make it within a loop.

    :ivar credited: what came to the server's credit
    """

    def __init__(self, signers: dict[str, Signer], folder: Path, **offered: Any) -> None:
        self.signers, self.folder = signers, folder
        self.now = 0.0
        self.network = LocalNetwork()
        self.peers = {name: signer.peer for name, signer in signers.items()}
        self.endpoints = {name: self.network.endpoint(peer) for name, peer in self.peers.items()}
        self.receipts = Receipts(RUN, signers["server"], SESSION)
        self.offers = {self.peers[name]: offer(**offered) for name in ("server", "mallory")}
        self.one_account = set[frozenset[str]]()
        self.credit = CreditService(RUN, ServingLedger(folder), lambda: self.offers, self._apart, lambda: self.now)
        self.session = SESSION
        self.tally = Tally(RUN, signers["client"], lambda server: self.session)

    async def _apart(self, *peers: str) -> bool:
        return frozenset(peers) not in self.one_account

    async def begin(self) -> "Place":
        for name, endpoint in self.endpoints.items():
            await endpoint.add(self.credit if name == "organizer" else CreditService("", None, dict, self._apart))  # type: ignore[arg-type]
            await endpoint.add(self.receipts if name == "server" else Receipts(RUN, self.signers[name], ""))
        self.pass_seconds(60.0)
        return self

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        self.credit.turn()

    def compute(self, tokens_layers: int) -> None:
        self.receipts.computed(self.peers["client"], tokens_layers)
        self.tally.add(self.peers["server"], tokens_layers)

    async def hand_in(self) -> None:
        await self.receipts.hand_in(partial(claim, self.endpoints["server"], self.peers["organizer"]))

    def receipt(self, tokens_layers: int, **changed: Any) -> Receipt:
        values = {"server": self.peers["server"], "server_session": SESSION, "session": "c1", "time": time.time()}
        return Receipt.parse({"run_id": RUN, "tokens_layers": tokens_layers, **values, **changed})

    def claimed(self, receipt: Receipt, client: str = "client", server: str = "server") -> bytes:
        """A claim as it travels, signed by these."""
        signed = self.signers[client].sign(receipt)
        return self.signers[server].sign(Claim(receipt=b64encode(signed).decode()))

    async def claim(self, signed: bytes, sender: str = "server") -> None:
        await claim(self.endpoints[sender], self.peers["organizer"], signed)

    async def give(self, receipt: Receipt, author: str = "client", sender: str = "client") -> bool:
        """Hand a receipt to the server; is it taken?"""
        question = Given(receipt=self.signers[author].sign(receipt))
        try:
            await self.endpoints[sender].ask(self.peers["server"], Receipts, question, 10.0)
        except NoAnswer:
            return False
        return True

    @property
    def credited(self) -> int:
        return sum(each.tokens_layers for each in credit(self.folder))


@pytest.fixture
def played(signers: dict[str, Signer], tmp_path: Path) -> Callable[..., None]:
    def play(scene: Callable[[Place], Awaitable[None]], **offered: Any) -> None:
        async def playing() -> None:
            await scene(await Place(signers, tmp_path, **offered).begin())

        asyncio.run(playing())

    return play


def test_what_a_server_computes_comes_to_its_credit_once(played: Any) -> None:
    async def scene(place: Place) -> None:
        for total in (100, 250):
            place.compute(total)
            for _ in range(2):
                await place.tally.tell(place.endpoints["client"])
                await place.hand_in()
        assert place.credited == 350
        assert not place.receipts.waiting

    played(scene)


def test_a_receipt_that_is_lost_costs_nothing(played: Any) -> None:
    async def scene(place: Place) -> None:
        place.compute(100)
        place.network.part([place.peers["client"]])
        await place.tally.tell(place.endpoints["client"])
        place.network.part([])
        place.compute(10)
        await place.tally.tell(place.endpoints["client"])
        place.network.part([place.peers["organizer"]])
        with pytest.raises(NoAnswer):
            await place.hand_in()
        place.network.part([])
        await place.hand_in()
        assert place.credited == 110

    played(scene)


def test_a_client_signs_for_a_server_that_began_anew_what_that_one_computed(played: Any) -> None:
    async def scene(place: Place) -> None:
        place.tally.add(place.peers["server"], 5000)
        place.session = "52" * 8
        place.receipts = Receipts(RUN, place.signers["server"], place.session)
        await place.endpoints["server"].add(place.receipts)
        place.compute(70)
        await place.tally.tell(place.endpoints["client"])
        await place.hand_in()
        assert place.credited == 70

    played(scene)


def test_a_server_takes_no_receipt_that_is_not_of_its_client_for_itself(played: Any) -> None:
    async def scene(place: Place) -> None:
        for name in ("client", "mallory"):
            place.receipts.computed(place.peers[name], 1000)
        assert not await place.give(place.receipt(10), author="mallory")
        assert not await place.give(place.receipt(10), sender="mallory")
        assert not await place.give(place.receipt(10, run_id="other-0123456789abcdef"))
        assert not await place.give(place.receipt(10, server=place.peers["mallory"]))
        assert not await place.give(place.receipt(10, server_session="52" * 8))
        assert (place.receipts.waiting, place.receipts.rejections.all()["receipt"]) == (0, 5)
        assert await place.give(place.receipt(10))
        assert place.receipts.waiting == 1

    played(scene)


def test_a_server_takes_no_receipt_for_more_than_it_computed(played: Any) -> None:
    async def scene(place: Place) -> None:
        place.receipts.computed(place.peers["client"], 100)
        assert not await place.give(place.receipt(101))
        assert await place.give(place.receipt(60))
        assert not await place.give(place.receipt(41, session="c2"))
        assert await place.give(place.receipt(40, session="c2"))
        assert not await place.give(place.receipt(1), author="mallory", sender="mallory")

    played(scene)


def test_a_client_that_sends_receipts_without_end_takes_neither_time_nor_memory(
    played: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "MAX_WAITING", 3)
    monkeypatch.setattr(receipts, "MAX_SESSIONS", 2)
    monkeypatch.setattr(receipts, "MAX_CLIENTS", 2)

    async def scene(place: Place) -> None:
        place.receipts.computed(place.peers["client"], 10**6)
        taken = [await place.give(place.receipt(1, session=f"{n:02x}")) for n in range(receipts.RECEIPTS_OF_A_CLIENT)]
        assert all(taken)
        assert place.receipts.waiting == 3
        assert len(place.receipts._clients[place.peers["client"]].newest) == 2
        assert not await place.give(place.receipt(2, session="ff"))
        for stranger in range(5):
            place.receipts.computed(f"stranger{stranger}", 1)
        assert len(place.receipts._clients) == 2

    played(scene)


@pytest.mark.parametrize(
    "forged",
    [
        {"client": "server"},  # for oneself
        {"server": "mallory"},  # a claim that somebody else has signed
        {"sender": "mallory", "server": "mallory"},  # what was signed for another server
        {"sender": "mallory"},  # somebody else's claim
        {"run_id": "other-0123456789abcdef"},
        {"time": 0.0},
        {"time": 1e11},
    ],
    ids=str,
)
def test_a_claim_that_is_not_signed_by_both_or_not_by_two_does_not_count(played: Any, forged: dict[str, Any]) -> None:
    async def scene(place: Place) -> None:
        who = {"client": "client", "server": "server", **forged}
        receipt = place.receipt(100, **{key: forged[key] for key in ("run_id", "time") if key in forged})
        signed = place.claimed(receipt, who["client"], who["server"])
        with suppress(NoAnswer):
            await place.claim(signed, forged.get("sender", "server"))
        assert place.credited == 0
        await place.claim(place.claimed(place.receipt(100)))
        assert place.credited == 100

    played(scene)


def test_a_changed_byte_makes_a_claim_worthless(played: Any) -> None:
    async def scene(place: Place) -> None:
        signed = place.claimed(place.receipt(100))
        for at in range(0, len(signed), 97):
            with pytest.raises(ValueError, match="cannot be read"):
                await place.credit.take(place.peers["server"], signed[:at] + bytes([signed[at] ^ 1]) + signed[at + 1 :])
        assert place.credited == 0

    played(scene)


def test_a_claim_that_comes_again_counts_once(played: Any) -> None:
    async def scene(place: Place) -> None:
        old, new = (place.claimed(place.receipt(total)) for total in (100, 150))
        await asyncio.gather(*(place.claim(signed) for signed in (old, new, old, new, old)))
        assert place.credited == 150

    played(scene)


def test_credit_grows_no_faster_than_a_server_computes(played: Any) -> None:
    async def scene(place: Place) -> None:
        await asyncio.gather(*(place.claim(place.claimed(place.receipt(2**50 + more))) for more in range(5)))
        assert place.credited == 60 * 100 * 4
        place.pass_seconds(10.0)
        await place.claim(place.claimed(place.receipt(2**51)))
        assert place.credited == 70 * 100 * 4
        place.pass_seconds(30 * 86_400.0)
        await place.claim(place.claimed(place.receipt(2**52)))
        assert place.credited == (70 + crediting.SAVED_SECONDS) * 100 * 4

    played(scene)


def test_who_is_not_seen_to_serve_gets_no_credit(played: Any) -> None:
    async def scene(place: Place) -> None:
        receipt = place.receipt(100, server=place.peers["mallory"])
        del place.offers[place.peers["mallory"]]
        with pytest.raises(NoAnswer):
            await place.claim(place.claimed(receipt, server="mallory"), "mallory")
        assert place.credited == 0

    played(scene)


def test_what_peers_of_one_account_sign_for_each_other_does_not_count(played: Any) -> None:
    async def scene(place: Place) -> None:
        place.one_account.add(frozenset([place.peers["server"], place.peers["client"]]))
        await place.claim(place.claimed(place.receipt(100)))
        await place.claim(place.claimed(place.receipt(7), client="mallory"))
        assert place.credited == 7
        assert place.credit.rejections.all()["receipt of one's own"] == 1

    played(scene)


def test_a_server_that_claims_without_end_is_not_listened_to(played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crediting, "CLAIMS_OF_A_SERVER", 3)

    async def scene(place: Place) -> None:
        place.credit = CreditService(RUN, place.credit._ledger, place.credit._servers, place._apart)
        await place.endpoints["organizer"].add(place.credit)
        for _ in range(3):
            await place.claim(place.claimed(place.receipt(100)))
        with pytest.raises(NoAnswer):
            await place.claim(place.claimed(place.receipt(100)))
        assert place.credit.rejections.all().total() == 0

    played(scene)


def test_where_people_are_invited_an_account_is_a_name_and_a_stranger_none(tmp_path: Path) -> None:
    def admitted(name: str) -> Admitted:
        return Admitted(name=name, minted=1.0, until=1e10)

    peers = {"ada1": admitted("ada"), "ada2": admitted("ada"), "bob1": admitted("bob")}
    write_admissions(tmp_path, Admissions(peers=peers))

    async def scene() -> None:
        apart = Accounts("organizer", tmp_path, None).apart
        assert await apart("ada1", "bob1")
        assert await apart("organizer", "bob1")
        assert not await apart("ada1", "ada2")
        assert not await apart("ada1", "stranger")
        assert not await apart("stranger", "bob1")

    asyncio.run(scene())


def test_where_all_may_come_an_account_is_an_address(tmp_path: Path) -> None:
    async def host_of(peer: str) -> str:
        return {"ada1": "10.1.1.1", "ada2": "10.1.1.1", "bob1": "10.2.2.2"}.get(peer, "")

    async def scene() -> None:
        apart = Accounts("organizer", tmp_path, host_of).apart
        assert await apart("ada1", "bob1")
        assert not await apart("ada1", "ada2")
        assert await apart("ada1", "not seen")

    asyncio.run(scene())
