"""Hosts on this machine: network namespaces with an address each, joined by a bridge, whose cables can be pulled.

Needs root and `ip` (iproute2). Nothing of it is left afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


def is_permitted() -> bool:
    """Whether this process may make network namespaces."""
    if os.name == "nt" or shutil.which("ip") is None:
        return False
    name = f"try-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return made


@dataclass
class Network:
    """A bridge with this machine at `address`, and hosts by name."""

    tag: str
    subnet: str
    hosts: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where hosts reach what runs outside of them."""
        return f"{self.subnet}.1"

    def add(self, name: str) -> str:
        """A new host; its address."""
        namespace, number = f"{self.tag}-{name}", len(self.hosts) + 2
        outer, inner, address = self._cable(name), f"{self.tag}i{number}", f"{self.subnet}.{number}"
        _ip("netns", "add", namespace)
        self.hosts[name] = address
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        _ip("link", "set", outer, "master", self.tag, "up")
        _ip("link", "set", inner, "netns", namespace)
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", inner)
        _ip("-n", namespace, "link", "set", inner, "up")
        _ip("-n", namespace, "link", "set", "lo", "up")
        return address

    def at(self, name: str) -> Sequence[str]:
        """What comes before a command that is to run on a host; the process is the command's own."""
        return ["ip", "netns", "exec", f"{self.tag}-{name}"]

    def cut(self, name: str) -> None:
        """Pull a host's cable: connections stay open, and nothing comes through."""
        _ip("link", "set", self._cable(name), "down")

    def heal(self, name: str) -> None:
        """Plug it in again."""
        _ip("link", "set", self._cable(name), "up")

    def _cable(self, name: str) -> str:
        return f"{self.tag}o{[*self.hosts, name].index(name) + 2}"


@contextmanager
def network() -> Iterator[Network]:
    """A network without hosts."""
    identifier = uuid.uuid4().int
    made = Network(f"qn{identifier % 0xFFFFFF:06x}", f"10.{200 + identifier % 50}.{identifier // 50 % 250}")
    _ip("link", "add", made.tag, "type", "bridge")
    try:
        _ip("addr", "add", f"{made.address}/24", "dev", made.tag)
        _ip("link", "set", made.tag, "up")
        yield made
    finally:
        for name in made.hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", f"{made.tag}-{name}")
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", made.tag)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
