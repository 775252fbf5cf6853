"""The old place of `commitbus.broker.core.errors`, until all its users name the new one."""

from commitbus.broker.core.errors import *  # noqa: F403 - goes as soon as nobody imports it
