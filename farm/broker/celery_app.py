"""The Celery application that coordinator and workers share: one task name, no results, no remote control."""

from __future__ import annotations

from collections.abc import Iterable

from celery import Celery
from kombu.entity import Exchange, Queue
from kombu.transport import TRANSPORT_ALIASES

from farm.broker.keys import PREFIX

__all__ = ["TASK", "make_celery"]

TASK = "cell"
TRANSPORT_ALIASES["farm"] = "farm.broker.transport:Transport"


def make_celery(url: str, queues: Iterable[str], identity: str) -> Celery:
    """Return the application for the server at ``url`` (redis://…), reading ``queues`` in that order.

    Each setting is from shared experiments on celery 5.7 (docs/decisions/queues.md).
    """
    app = Celery("farm", set_as_current=False)
    app.conf.update(
        broker_url=url.replace("redis://", "farm://", 1),
        result_backend="disabled://",
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        # True loses the task when the server restarts (celery 5.7.0).
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_limit=2,
        task_create_missing_queues=False,
        task_queues=[Queue(name, Exchange("", type="direct"), routing_key=name) for name in queues],
        broker_transport_options={
            "global_keyprefix": PREFIX,
            "client_name": identity,
            "queue_order_strategy": "priority",
            "socket_timeout": 60,
            "socket_connect_timeout": 10,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "polling_interval": 1,
        },
    )
    return app
