"""What a node of the directory keeps, hands out and believes.

hivemind's nodes keep what anyone sends: under any key, of any size, for any time, as much as comes; and one record that
cannot be read, wherever it comes from, hides all those under the same key. Ours takes nothing but records of its run
that their authors have signed, within the limits of `swarm.kinds`, and drops all else one by one.

In all that is at most MAX_RECORDS under each of 85 keys, some 250 MB, the notice and the release. (Where parts of a
run have keys of their own, each of these takes as many fewer.) What is full takes nobody new, except for the
organizer: whoever is there already can renew its record, and is not pushed out by those who make a thousand keys. A
peer has one record under each key, and of each kind two keys for it: the one for few peers, and its share.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

from hivemind.dht import protocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.timed_storage import ValueWithExpiration

from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.network.identity import MAX_OWNER_BYTES, Signer, author, parted, verified
from dedloc_kit.swarm.network.kinds import (
    CONTRIBUTIONS,
    HOSTS,
    NOTICE,
    PROGRESS,
    RELEASE,
    SERVING,
    STAGES,
    Kind,
    share_of,
)
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.unpacking import DirectorySerializer, unpack

MAX_RECORDS = 512
"""Under one key. Peers spread over more keys from 200 on, but newcomers know of few others at first."""
CLOCK_SECONDS = 15.0
"""By so much the author's clock may be ahead of ours: a record may seem to stay longer than its kind may."""
MAX_NODES = 4096
"""That this node remembers."""
REMEMBERED_RECORDS = 1024


class _Place(NamedTuple):
    run_id: str
    """Of the run or the part."""
    kind: Kind[Any]
    share: int | None = None
    """None: for all peers."""


class Keeper(RecordValidatorBase):
    """Signs this peer's records and decides which of the others' are taken; used by hivemind in the node's process.

    :param run_id: of the run whose records are taken
    :param organizer: peer id of the only one whose notice is taken
    :param parts: the ids of what of it is averaged apart; each has its own keys
    """

    def __init__(self, signer: Signer, run_id: str, organizer: str, parts: Sequence[str] = ()) -> None:
        self.organizer = organizer
        self.most = max(1, MAX_RECORDS // max(1, len(parts)))
        """Records under one key."""
        self._signer = signer
        self._subkey = MSGPackSerializer.dumps(signer.subkey)
        self._places: dict[bytes, _Place] = {}
        kinds: list[tuple[Kind[Any], str]] = [(kind, run_id) for kind in (SERVING, STAGES, HOSTS, NOTICE, RELEASE)]
        for part in parts or (run_id,):
            kinds += [(PROGRESS, part), (CONTRIBUTIONS, part)]
        for kind, of in kinds:
            names = Names(of)
            places = {kind.key(names): _Place(of, kind)}
            places |= {key: _Place(of, kind, share=share) for share, key in enumerate(kind.shares(names))}
            self._places |= {DHTID.generate(key).to_bytes(): place for key, place in places.items()}
        self._rejections = Rejections()
        # The same records come with answer after answer.
        self._reason_to_refuse = lru_cache(REMEMBERED_RECORDS)(self._look_into)

    def sign_value(self, record: DHTRecord) -> bytes:
        return self._signer.signed(record) if record.subkey == self._subkey else bytes(record.value)

    def strip_value(self, record: DHTRecord) -> bytes:
        return parted(record.value)[0]

    def validate(self, record: DHTRecord) -> bool:
        """May this record be kept, or believed? Raises nothing, whatever it is."""
        expires = record.expiration_time
        if isinstance(expires, float) and expires <= get_dht_time():
            return False  # somebody's clock is behind; no trouble
        reason = self._unfit(record) or self._reason_to_refuse(record)
        if reason:
            self._rejections.add(reason)
        return not reason

    def refused(self) -> Counter[str]:
        """How many records were refused for which reason since the last call."""
        return self._rejections.drain()

    def _unfit(self, record: DHTRecord) -> str:
        """Why this record is refused unread; empty if it fits."""
        place = self._places.get(record.key)
        if place is None:
            return "a record under a key that this run does not have"
        kind = place.kind
        if (
            not isinstance(record.value, bytes)
            or len(record.value) > kind.bytes
            or len(record.subkey) > MAX_OWNER_BYTES
        ):
            return f"{kind.record.__name__}: more than {kind.bytes} bytes"
        longest = get_dht_time() + kind.seconds + CLOCK_SECONDS
        if not (isinstance(record.expiration_time, float) and record.expiration_time <= longest):
            return f"{kind.record.__name__}: to be kept for more than {kind.seconds:g} s"
        return ""

    def _look_into(self, record: DHTRecord) -> str:
        """Why this record is refused; empty if its author has signed it, may have it here, and it can be read."""
        run_id, kind, share = self._places[record.key]
        try:
            subkey = unpack(record.subkey)
            if not isinstance(subkey, bytes) or MSGPackSerializer.dumps(subkey) != record.subkey:
                raise ValueError("the subkey names no owner")
            peer = author(subkey)
            if kind.organizers and peer != self.organizer:
                raise ValueError("not of the organizer")
            if share is not None and share_of(peer) != share:
                raise ValueError("under a key for other peers")
            values = unpack(verified(record, subkey))
        except Exception as error:  # what is read may be of any type
            return f"{kind.record.__name__}: {error}"
        try:
            kind.read(run_id, values)
        except ValueError as error:
            return str(error)
        return ""


class Storage:
    """Keeps valid records until they expire, of each peer the one that expires last; in place of hivemind's.

    hivemind's counts nothing, remembers every repetition, lets an old record that comes again shorten the life of the
    new one, and takes up what a search finds elsewhere.

    :param organizer: peer id of who finds a place where all are taken
    """

    def __init__(self, organizer: str, most: int = MAX_RECORDS) -> None:
        self._organizer, self._most = organizer, most
        self._kept: dict[DHTID, dict[bytes, ValueWithExpiration[bytes]]] = {}

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: bytes | None = None) -> bool:
        """Of records without a subkey, which nobody can have signed, there are none."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """Take a record that is valid; whether it was taken."""
        records = self._living(key)
        before = records.get(subkey)
        if before is not None and before.expiration_time >= expiration_time:
            return False
        if before is None and len(records) >= self._most and author(subkey) != self._organizer:
            return False
        records[subkey] = ValueWithExpiration(value, expiration_time)
        self._kept[key] = records
        return True

    def get(self, key: DHTID) -> ValueWithExpiration[DictionaryDHTValue] | None:
        """A copy: a search puts into it what it finds elsewhere."""
        return _dictionary(self._living(key))

    def items(self) -> Iterator[tuple[DHTID, ValueWithExpiration[DictionaryDHTValue]]]:
        """All that is kept, by key."""
        return ((key, found) for key in list(self._kept) if (found := self.get(key)) is not None)

    def __contains__(self, key: DHTID) -> bool:
        return bool(self._living(key))

    def _living(self, key: DHTID) -> dict[bytes, ValueWithExpiration[bytes]]:
        now = get_dht_time()
        return {subkey: record for subkey, record in self._kept.get(key, {}).items() if record.expiration_time > now}


class DHTProtocol(protocol.DHTProtocol):
    """hivemind's, by whose name it goes on the wire; but it believes of an answer only what is valid, and all of that.

    hivemind drops an answer for one bad record, and stops asking others when an answer says that it is the newest.
    """

    serializer = DirectorySerializer
    record_validator: Keeper

    @classmethod
    async def create(cls, *args: Any, **options: Any) -> Self:
        self: Self = await super().create(*args, **options)
        keeper = self.record_validator
        self.storage, self.cache = Storage(keeper.organizer, keeper.most), Storage("", most=0)
        return self

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]) -> dict[DHTID, tuple[Any, Any]] | None:
        found = await super().call_find(peer, keys)
        if found is None:
            return None
        return {
            # It is no newer than what it holds, whatever it says; and nothing of ours is without a subkey.
            key: (_dictionary(answer.value.data) if answer is not None else None, _true(nearest))
            for key, (answer, nearest) in found.items()
        }

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Only for nodes that stand where they must, and for no more than MAX_NODES: hivemind forgets none of them."""
        known = node_id is None or node_id in self.routing_table
        if known or (node_id == node_id_of(peer_id) and len(self.routing_table.uid_to_peer_id) < MAX_NODES):
            await super().update_routing_table(node_id, peer_id, responded)

    def _validate_dictionary(self, key_bytes: bytes, dictionary: DictionaryDHTValue) -> bool:
        """Leaves only what is valid, and nothing that the dictionary says of itself."""
        records = list(dictionary.data.items())[: MAX_RECORDS + 1]
        dictionary.__init__()
        for subkey, record in records:
            if isinstance(subkey, bytes) and self._validate_record(key_bytes, self.serializer.dumps(subkey), *record):
                dictionary.data[subkey] = record
        return True


def node_id_of(peer: PeerID) -> DHTID:
    """Where a peer stands in the directory: whoever could choose would stand next to all the keys, with a thousand
    names. It is the same in every session, so who comes back takes its old place in the others' routing tables."""
    return DHTID.generate(source=peer.to_bytes())


def _true(nearest: dict[DHTID, PeerID]) -> dict[DHTID, PeerID]:
    return {node_id: peer for node_id, peer in nearest.items() if node_id == node_id_of(peer)}


def _dictionary(records: dict[bytes, ValueWithExpiration[bytes]]) -> ValueWithExpiration[DictionaryDHTValue] | None:
    """As hivemind passes them on; none if there is none."""
    if not records:
        return None
    dictionary = DictionaryDHTValue()
    dictionary.data = records
    dictionary.latest_expiration_time = max(record.expiration_time for record in records.values())
    return ValueWithExpiration(dictionary, dictionary.latest_expiration_time)
