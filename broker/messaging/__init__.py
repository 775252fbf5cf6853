"""The handlers of `apache.rocketmq.v2.MessagingService`, whatever transport carries them."""
