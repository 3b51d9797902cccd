"""What rounds need of the process beside the training, in which the network's side lives."""

from dataclasses import dataclass

from dedloc_kit.swarm.averaging.averager import Averager
from dedloc_kit.swarm.averaging.matchmaking.grouping import Grouping
from dedloc_kit.swarm.network.host import Host
from dedloc_kit.swarm.transfer.service import Transfers


@dataclass(frozen=True)
class Exchange:
    """How a peer averages with others and fetches from them."""

    averager: Averager
    transfers: Transfers
    grouping: Grouping
    """Who has to come to a round, and who leads it."""
    host: Host
    """Where the services live."""
