"""Whether the world can reach a coordinator, and what its organizer can do about it."""

from collections.abc import Sequence

from dedloc_kit.machine.addresses import is_loopback, is_public


def advice(addresses: Sequence[str], page_port: int) -> str:
    """What an organizer should know about this machine's ports, in one sentence; empty if all seems well.

    :param addresses: multiaddresses that the coordinator announces to the swarm, `/ip4/HOST/tcp/PORT/p2p/ID`
    :param page_port: of the dashboard
    """
    if not addresses:
        return ""
    hosts, swarm_port = {address.split("/")[2] for address in addresses}, addresses[0].split("/")[4]
    if any(_is_public(host) for host in hosts):
        return (
            f"volunteers must reach TCP ports {swarm_port} (the swarm) and {page_port} (this page): open both in the "
            "firewalls between; a line here tells when the first volunteer got in"
        )
    if only_this_machine(addresses):
        return f"only this machine can join: the swarm is announced at {', '.join(sorted(hosts))}"
    private = ", ".join(sorted(host for host in hosts if not is_loopback(host)))
    return (
        f"only machines in this network can join: the swarm is announced at {private}; to let in the "
        f"world, forward TCP ports {swarm_port} and {page_port} of the router to this machine and start again with "
        f"--swarm-port {swarm_port} --announce-host and the router's public address"
    )


def only_this_machine(addresses: Sequence[str]) -> bool:
    """Whether all of these multiaddresses mean the machine that uses them."""
    return all(is_loopback(address.split("/")[2]) for address in addresses)


def _is_public(host: str) -> bool:
    """A name is taken to be public: somebody has chosen it to be announced."""
    try:
        return is_public(host)
    except ValueError:
        return not is_loopback(host)
