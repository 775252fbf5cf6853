"""The settings of a broker: what there is, what each means, and how a file is read.

It must not know what a setting is used for. Begin with `broker_config.py`.
"""

from commitbus.broker.config.broker_config import BrokerConfig, load_config, setting_docs
from commitbus.broker.config.error import ConfigError
from commitbus.broker.config.listen_settings import CLUSTER_NAME_BYTES_MAX, DEFAULT_PORT, Transport
from commitbus.broker.config.setting import Doc

__all__ = [
    "CLUSTER_NAME_BYTES_MAX",
    "DEFAULT_PORT",
    "BrokerConfig",
    "ConfigError",
    "Doc",
    "Transport",
    "load_config",
    "setting_docs",
]
