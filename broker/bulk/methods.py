"""The bulk service as a list of methods for a transport."""

from __future__ import annotations

from functools import partial

from commitbus.broker.bulk.append import append, appended_to
from commitbus.broker.bulk.context import BulkContext
from commitbus.broker.bulk.fetch import fetch, fetched_from
from commitbus.broker.bulk.status import refusal
from commitbus.broker.bulk.validate import request_bytes_max
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.rpc.access import Access, Action
from commitbus.broker.rpc.defaults import SMALL_REQUEST_BYTES_MAX
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.bulk_paths import APPEND, FETCH


def bulk_methods(broker: BrokerCore) -> list[Method]:
    """Return the methods of the bulk service. Called in the trio run that serves them."""
    context = BulkContext(broker)
    return [
        Method(
            APPEND,
            MethodKind.BIDI,
            None,
            pb.AppendResponse,
            partial(append, context),
            request_bytes_max(broker.config.max_body_bytes),
            lasts=True,
            refusal=refusal,
            access=Access(Action.PUB, appended_to),
        ),
        Method(
            FETCH,
            MethodKind.BIDI,
            pb.FetchRequest,
            pb.FetchResponse,
            partial(fetch, context),
            SMALL_REQUEST_BYTES_MAX,
            lasts=True,
            refusal=refusal,
            access=Access(Action.SUB, fetched_from),
        ),
    ]
