"""The topics and consumer groups that there are, and their settings.

`metadata_store` says what a place that keeps them promises, `sqlite_metadata` keeps them on this
machine, and `topics`, `groups` and `names` are the values. `rocketmq_config` reads and writes the
files with which RocketMQ takes over a store. Knows neither protocol nor messages nor progress.
"""
