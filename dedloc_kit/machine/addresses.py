"""Which IP addresses belong to the Internet, also behind the forms in which IPv6 carries an IPv4 address."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

_GLOBAL = IPv6Network("2000::/3")
"""All that is given out as global unicast; ipaddress takes site-local addresses (fec0::/10) for global, too."""
_CARRIES_LAST = tuple(
    map(
        IPv6Network,
        (
            "::/96",  # IPv4-compatible, RFC 4291 section 2.5.5.1
            "::ffff:0:0/96",  # IPv4-mapped, RFC 4291 section 2.5.5.2
            "::ffff:0:0:0/96",  # IPv4-translated, RFC 2765
            "64:ff9b::/96",  # NAT64, RFC 6052
        ),
    )
)
_UNSPECIFIED, _LOOPBACK = IPv6Address("::"), IPv6Address("::1")


def parse(host: str) -> Address:
    """Read an address, of IPv6 with or without its zone, as the one to which packets go: an IPv4 address that IPv6
    carries is that IPv4 address. Raises ValueError for what is no address."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv4Address) or address in (_UNSPECIFIED, _LOOPBACK):
        return address
    if any(address in network for network in _CARRIES_LAST):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:  # RFC 4380: the server's, and the client's, to which packets go
        return address.teredo[1]
    return address.sixtofour or address  # RFC 3056


def is_public(host: str) -> bool:
    """Whether a machine on the Internet has this address; raises ValueError for what is no address."""
    address = parse(host)
    if isinstance(address, IPv6Address):
        if address not in _GLOBAL:
            return False
        if (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE and not is_public(str(IPv4Address(int(address) & 0xFFFFFFFF))):
            return False  # ISATAP, RFC 5214: within its site packets go to that address
    return address.is_global and not address.is_multicast


def is_loopback(host: str) -> bool:
    """Whether an address or a name means the machine that uses it."""
    try:
        return parse(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_address(host: str) -> bool:
    """Whether this is an address, and no name."""
    try:
        parse(host)
    except ValueError:
        return False
    return True
