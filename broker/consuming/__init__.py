"""The state of consumption, without a protocol: who waits, what is being delivered, handles.

It knows the core, progress and the store; it must not know how a message is taken or settled, nor
any protocol. Begin with `state.py`.
"""
