"""kombu's Redis transport without its redelivery: what is repeated, and how often, is the coordinator's to say.

Kombu restores messages by a timeout that knows nothing of a cell's length; then two machines measure one cell. Here
a message is delivered once or lost, and the reaper in the aggregator sends lost work again under a new attempt.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis
from kombu.transport.virtual import base

__all__ = ["Channel", "Transport"]


class QoS(redis.QoS):
    """Counts what is in work here, and keeps no book of it on the server.

    A book that is never read again is one more thing that can fail: an acknowledgement that meets a server which is
    away raises, the message counts as in work for ever, and the worker lives on and takes nothing.
    """

    restore_at_shutdown = False

    def append(self, message: Any, delivery_tag: str) -> None:
        base.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        base.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        base.QoS.ack(self, delivery_tag)

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        return None

    def restore_unacked_once(self, *args: Any, **kwargs: Any) -> None:
        return None

    def restore_by_tag(self, *args: Any, **kwargs: Any) -> None:
        return None


class Channel(redis.Channel):
    """A channel with that `QoS`."""

    QoS = QoS
    do_restore = False


class Transport(redis.Transport):
    """The transport of ``farm://`` addresses."""

    Channel = Channel
    driver_type = "redis"
    implements = base.Transport.implements.extend(asynchronous=True, exchange_type=frozenset(["direct"]))
