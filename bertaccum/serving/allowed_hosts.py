"""The check of the header `Host`, which protects the service from pages of other sites.

An attacker can let the name of a web site point to this machine (DNS rebinding). Browsers then
treat the service as part of that site, and the site's pages may read its answers. The header `Host`
still contains the name. It cannot be an IP address in such an attack.
"""

from __future__ import annotations

import ipaddress
import re

from bertaccum.options.commands import ServeConfig
from bertaccum.options.fields import host_names

_LOCALHOST = "localhost"
# A name or IPv4 address, or an IPv6 address in brackets; then, optionally, a port.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@]+))(?::\d*)?")


def is_allowed(header: str | None, config: ServeConfig) -> bool:
    """Return whether the service answers a request with this header `Host`, None for old clients.

    It answers requests for loopback names, for `host` itself and for `allowed_host`. If `host` is
    not a loopback address, it also answers requests for any IP address, as those of health checks
    are.
    """
    if header is None:
        return True
    match = _HOST.fullmatch(header.strip().lower())
    if match is None:
        return False
    name, host = (match[1] or match[2]).removesuffix("."), config.host.lower()
    if name in (_LOCALHOST, host, *host_names(config.allowed_host)) or _is_loopback(name):
        return True
    return _is_address(name) and not (host == _LOCALHOST or _is_loopback(host))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback
