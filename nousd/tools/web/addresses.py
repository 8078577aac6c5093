"""The network addresses that ``web_fetch`` may connect to: public ones, and those the user allows.

An IPv6 address that embeds an IPv4 address is judged as the embedded one. This module does not resolve
or connect: the caller must connect to exactly the address that was judged. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from nousd.errors import ConfigError, ToolError
from nousd.tools.fs.path_errors import format_given

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64: Final = IPv6Network("64:ff9b::/96")

_PRIVATE_NETWORKS: Final[tuple[Network, ...]] = (
    # The metadata service of a cloud, at an address that looks public.
    IPv4Network("168.63.129.16/32"),
    # The standard library knows only some of these, depending on its version.
    IPv4Network("100.64.0.0/10"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("198.18.0.0/15"),
    IPv6Network("64:ff9b:1::/48"),
    IPv6Network("2001::/23"),
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
    IPv6Network("5f00::/16"),
    IPv6Network("fec0::/10"),
)


def is_public(address: Address) -> bool:
    """Return whether an address denotes the same host everywhere on the internet."""
    address = _innermost(address)
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _PRIVATE_NETWORKS)
    )


def _innermost(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, otherwise the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class WebAllow:
    """The hosts and addresses that may be reached although they are not public.

    Args:
        entries: hosts, by name or address, and networks such as ``10.0.0.0/8``.

    Raises:
        ConfigError: an entry is neither.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._hosts: set[str] = set()
        self._networks: list[Network] = []
        for entry in entries:
            try:
                self._networks.append(ip_network(entry))
            except ValueError as error:
                host = entry.lower().rstrip(".")
                if not host or not all(
                    label.replace("-", "").isalnum() for label in host.split(".")
                ):
                    raise ConfigError(
                        f"web_allow: {format_given(entry)} is no host and no network: {error}"
                    ) from None
                self._hosts.add(host)

    def check(self, host: str, addresses: Iterable[Address]) -> None:
        """Refuse a host if any of its addresses may not be reached.

        Raises:
            ToolError: with the host, and the setting that allows it.
        """
        if host in self._hosts:
            return
        if not all(self._permits(address) for address in addresses):
            raise ToolError(
                f"web_fetch_refused: {format_given(host)} is not a public address; the user can allow it"
                " in the setting web_allow"
            )

    def _permits(self, address: Address) -> bool:
        return is_public(address) or any(
            _innermost(address) in network or address in network for network in self._networks
        )


def literal(host: str) -> Address | None:
    """Return the address that a host's name spells; None for a name to resolve.

    Raises:
        ToolError: it is a number in an unusual spelling, which this code and the system might read
            differently.
    """
    try:
        return ip_address(host)
    except ValueError:
        last = host.rpartition(".")[2]
        if last.isdigit() or last.lower().startswith("0x") or ":" in host:
            raise ToolError(
                f"web_fetch_refused: {format_given(host)} is no address as it is usually written"
            ) from None
        return None
