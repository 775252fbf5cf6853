"""What every server offers beside its own methods."""

from __future__ import annotations

from collections.abc import Sequence

from commitbus.broker.rpc.health import Health
from commitbus.broker.rpc.interceptor import Interceptor, intercepted
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.reflection import Reflection


def with_standard_services(
    methods: Sequence[Method], interceptors: Sequence[Interceptor] = ()
) -> tuple[Health, list[Method]]:
    """Return the methods with those of health and reflection, and the health to end.

    The interceptors are around the calls of all of them.
    """
    health = Health({method.service for method in methods})
    all_methods = [*methods, *health.methods()]
    all_methods += Reflection(method.service for method in all_methods).methods()
    return health, intercepted(all_methods, interceptors)
