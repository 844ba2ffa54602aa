"""Which machines there are: this one, or those of the coordinator that FARM_URL names."""

from __future__ import annotations

import time

from farm.broker.client import FarmClient
from farm.errors import Incomplete
from farm.model import Host
from farm.settings import Settings

__all__ = ["hosts_of", "wait_for_hosts"]

#: A worker that was started together with the coordinator needs a few seconds to say that it is there.
PATIENCE_S = 20.0


def hosts_of(settings: Settings) -> list[Host]:
    """Return the machines that a submission would run on."""
    if settings.url is None:
        from workers.probe import probe_host

        return [probe_host()]
    return wait_for_hosts(FarmClient(settings.url))


def wait_for_hosts(client: FarmClient) -> list[Host]:
    """Return the machines of the fleet. Raises Incomplete where no worker shows itself."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [presence.host for presence in client.presences()]
        if found:
            return found
        if time.monotonic() > deadline:
            raise Incomplete("the fleet has no worker; start one on a machine of yours: FARM_URL=… farm worker")
        time.sleep(0.5)
