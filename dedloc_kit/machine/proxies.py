"""The proxies that the environment names: what goes wrong on the way through one is to be told as that."""

import os
import socket
from importlib.util import find_spec
from urllib.parse import SplitResult, urlsplit

from requests.utils import get_environ_proxies, select_proxy

_KINDS = {"http": 80, "https": 443, "socks4": 1080, "socks4a": 1080, "socks5": 1080, "socks5h": 1080}
"""And their usual ports."""
_CONNECT_SECONDS = 5.0


def proxy_for(url: str) -> str:
    """The proxy on the way to a URL, in words: `the proxy that https_proxy names (host:3128)`; empty without one.

    A password that may stand in its address is not told.
    """
    proxy = _proxy(url)
    if proxy is None:
        return ""
    try:
        there = _split(proxy)
        place = f" ({there.hostname}:{there.port or _KINDS[there.scheme]})"
    except (ValueError, KeyError):
        place = ""
    return f"the proxy that {_variable(url, proxy)} names{place}"


def proxy_obstacle(url: str) -> str | None:
    """What is wrong with the proxy on the way to a URL, in one line with the fix; None without a proxy, or if all seems
    well. Tries to connect to it."""
    proxy = _proxy(url)
    if proxy is None:
        return None
    variable = _variable(url, proxy)
    fix = f"put {variable} right, unset it, or name the hosts to be reached without it in no_proxy"
    try:
        there = _split(proxy)
        host, port = there.hostname, there.port or _KINDS[there.scheme]
        if not host or there.scheme not in _KINDS:
            raise ValueError
    except (ValueError, KeyError):
        return f"the proxy that {variable} names has no address such as http://HOST:PORT; {fix}"
    if there.scheme.startswith("socks") and find_spec("socks") is None:
        return (
            f"{proxy_for(url)} needs a package that is not installed; pip install pysocks socksio, or unset {variable}"
        )
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except (OSError, ValueError):  # a name too long for the name service is a UnicodeError
        return f"{proxy_for(url)} does not answer; start it, or {fix}"
    return None


def _proxy(url: str) -> str | None:
    try:
        return select_proxy(url, get_environ_proxies(url, no_proxy=None)) or None
    except ValueError:  # no address at all, such as http://[::1
        return None


def _split(proxy: str) -> SplitResult:
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _variable(url: str, proxy: str) -> str:
    kinds = (f"{urlsplit(url).scheme}_proxy", "all_proxy")
    names = [name for kind in kinds for name in (kind, kind.upper())]
    return next((name for name in names if os.environ.get(name) == proxy), "the system")
