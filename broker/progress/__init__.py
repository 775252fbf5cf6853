"""The progress of every consumer group in every queue.

Owns the acknowledgement state machine, its journal, its saved rows, and the mirror of committed
offsets for RocketMQ. Knows neither protocol nor network, nor what a message contains.

Start with `queue_progress`, the state machine of one group in one queue. `changes` lists what can
happen to it, `progress_table` holds all of them and makes each change survive `kill -9`, and
`fifo_lock` says which messages a FIFO group may get.
"""
