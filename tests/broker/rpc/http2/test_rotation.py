"""Many who wait, a few at a time."""

from __future__ import annotations

from commitbus.broker.rpc.http2.rotation import Rotation


def test_each_is_looked_at_once_in_steps() -> None:
    """Those that are done go; the others wait for the next start, in the same order."""
    rotation: Rotation[int] = Rotation()
    for item in range(1000):
        rotation.add(item)
    seen: list[int] = []

    def is_odd(item: int) -> bool:
        seen.append(item)
        return bool(item % 2)

    assert not rotation.step(is_odd)
    assert not seen, "nobody said that there is a reason"
    rotation.start()
    steps = 1
    while rotation.step(is_odd):
        assert len(seen) <= 128 * steps
        steps += 1
    assert seen == list(range(1000))
    assert list(rotation.items) == list(range(0, 1000, 2))
    rotation.discard(0)
    assert next(iter(rotation.items)) == 2
