"""How fast it is: commands that print figures, never assertions.

    python -m bench            what this broker does here, its store beside RocketMQ's
    python -m bench.compare    all of it beside RocketMQ, and from Python beside Kafka and Redis

docs/benchmarks.md says what each needs. The modules:

    store  store_process  read                the store alone, in this process or one of its own
    handlers  filters  scans  progress        handlers called directly, without a transport
    front                                     the trio transport alone
    broker  consuming  bulk                   a broker's process, and what its clients get
    load  loadgen/                            requests, and the Go program that sends them
    compare  wire  own_client  python_side    what is compared, and with our own client
    peers/                                    the others: how they are built, started and driven
    measure                                   rounds, medians, ratios, tables
"""
