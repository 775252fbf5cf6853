"""What the protocol has and the broker has not, yet or for good."""

from __future__ import annotations

from tests.broker.matrix.registry import MESSAGING, unserved

unserved(MESSAGING + "EndTransaction", "Transactions are not supported yet.")
unserved(MESSAGING + "RecallMessage", "Messages with a delivery time are not supported yet.")
unserved(MESSAGING + "SyncLiteSubscription", "Lite topics are not supported yet.")
