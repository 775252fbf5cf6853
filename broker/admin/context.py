"""What the operator's handlers work on, and how they refuse."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn, final

import trio

from commitbus.broker.common.address import join_host_port
from commitbus.broker.common.shown import shown
from commitbus.broker.config import BrokerConfig
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.metadata_store import MetadataStore
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.observe.rates import Rates
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.file_system import FileSystem


@final
@dataclass(frozen=True, slots=True)
class AdminContext:
    """The parts of the running broker that an operator looks at or changes."""

    messaging: MessagingContext
    rates: Rates
    version: str
    boot_ms: int
    file_system: FileSystem
    sending_back: trio.Lock = field(default_factory=trio.Lock)
    """Held while dead letters are sent back: two at once would not see each other's copies."""

    @property
    def broker(self) -> BrokerCore:
        """The state that all services share."""
        return self.messaging.broker

    @property
    def store(self) -> MessageStore:
        """The messages."""
        return self.messaging.store

    @property
    def metadata(self) -> MetadataStore:
        """Topics and groups."""
        return self.messaging.metadata

    @property
    def progress(self) -> ProgressTable:
        """How far the groups are."""
        return self.messaging.progress

    @property
    def config(self) -> BrokerConfig:
        """The settings of this process."""
        return self.messaging.config

    @property
    def address(self) -> str:
        """The host:port that stands for this broker."""
        if self.config.advertise:
            return self.config.advertise
        return join_host_port(self.config.listen_host, self.messaging.listen_port or 0)

    def existing_topic(self, name: str) -> TopicConfig:
        """Return a topic's settings.

        Raises:
            RpcError: there is no such topic.
        """
        topic = self.metadata.topic(name)
        if topic is None:
            raise RpcError(StatusCode.NOT_FOUND, f"there is no topic {shown(name)}")
        return topic

    def existing_group(self, name: str) -> GroupConfig:
        """Return a group's settings.

        Raises:
            RpcError: there is no such group.
        """
        group = self.metadata.group(name)
        if group is None:
            raise RpcError(StatusCode.NOT_FOUND, f"there is no consumer group {shown(name)}")
        return group


def refuse(reason: object) -> NoReturn:
    """Refuse a request that could not be right at any time.

    Raises:
        RpcError: always.
    """
    raise RpcError(StatusCode.INVALID_ARGUMENT, str(reason)) from None
