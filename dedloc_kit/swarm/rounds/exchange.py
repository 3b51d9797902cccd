"""What rounds need of the process beside the training, in which the network's side lives."""

from dataclasses import dataclass

from dedloc_kit.swarm.averaging.averager import Averager
from dedloc_kit.swarm.network.host import Host
from dedloc_kit.swarm.transfer.service import Transfers
from dedloc_kit.swarm.trust.weight import Weigh


@dataclass(frozen=True)
class Exchange:
    """How a peer averages with others and fetches from them."""

    averager: Averager
    transfers: Transfers
    weigh: Weigh
    """How much of what members claim counts."""
    host: Host
    """Where the services live."""
