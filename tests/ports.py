"""Ports of this machine for servers that tests start."""

import socket


def free_port() -> int:
    """A port of loopback that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
