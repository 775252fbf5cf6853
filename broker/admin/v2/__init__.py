"""`apache.rocketmq.v2.Admin`, the operators' half of the protocol; RocketMQ 5.5.0 lacks it."""
