"""What every server offers beside its own methods."""

from __future__ import annotations

from collections.abc import Sequence

from commitbus.broker.rpc.health import Health
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.reflection import Reflection


def with_standard_services(methods: Sequence[Method]) -> tuple[Health, list[Method]]:
    """Return the methods with those of health and reflection, and the health to end."""
    health = Health({method.service for method in methods})
    all_methods = [*methods, *health.methods()]
    return health, [*all_methods, *Reflection(m.service for m in all_methods).methods()]
