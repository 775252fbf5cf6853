"""The handlers of `apache.rocketmq.v2.MessagingService`, whatever transport carries them.

An adapter: requests become plain values for the core, for receiving and for settling, and their
results become responses. It must not decide what happens to a message. Begin with `methods.py`.
"""
