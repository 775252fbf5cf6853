"""`mqadmin`: RocketMQ's commands, options and columns, spoken to this broker.

`-n` names the broker's endpoint, where RocketMQ's own tool is given a name server.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from commitbus.broker.cli.mqadmin_command import Command

PROGRAM: Final = "mqadmin"
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
"""Where RocketMQ's own tool looks."""

# Name to (module, summary): only the module of the command that is run gets imported.
_TOPIC, _GROUP, _CLIENT, _OFFSET, _CLUSTER, _MESSAGE, _PRINT, _DEAD = (
    f"commitbus.broker.cli.mqadmin_{part}"
    for part in (
        *("topic", "group", "client", "offset"),
        *("cluster", "message", "print", "dead_letter"),
    )
)
COMMANDS: Final = {
    "updateTopic": (_TOPIC, "Create a topic or change one."),
    "deleteTopic": (_TOPIC, "Delete a topic."),
    "topicList": (_TOPIC, "List the topics."),
    "topicStatus": (_TOPIC, "Show the offsets of a topic's queues."),
    "topicRoute": (_TOPIC, "Show where a topic lies."),
    "updateSubGroup": (_GROUP, "Create a consumer group or change one."),
    "deleteSubGroup": (_GROUP, "Delete a consumer group."),
    "consumerProgress": (_GROUP, "Show how far consumer groups are behind."),
    "consumerConnection": (_CLIENT, "Show the clients of a group and what they subscribe to."),
    "producerConnection": (_CLIENT, "Show the producers of a topic."),
    "consumerStatus": (_CLIENT, "Show what a group's clients hold, and their threads."),
    "resetOffsetByTime": (_OFFSET, "Have a group go on at another time or offset."),
    "skipAccumulatedMessage": (_OFFSET, "Have a group go on at the end."),
    "clusterList": (_CLUSTER, "Show the brokers and their rates."),
    "brokerStatus": (_CLUSTER, "Show the broker's figures."),
    "sealSegment": (_CLUSTER, "End the log file that is written; the next message begins one."),
    "queryMsgByKey": (_MESSAGE, "Find messages by key or tag."),
    "queryMsgById": (_MESSAGE, "Show a message by its id."),
    "queryMsgByUniqueKey": (_MESSAGE, "Show a message by the id its producer gave it."),
    "queryMsgByOffset": (_MESSAGE, "Show the message at a queue offset."),
    "sendMessage": (_MESSAGE, "Send a message."),
    "printMsg": (_PRINT, "Print the messages of a topic."),
    "consumeMessage": (_PRINT, "Print the messages of a topic, from an offset or a time on."),
    "listDeadLetters": (_DEAD, "List what a group could not consume."),
    "readDeadLetter": (_DEAD, "Show a dead letter by its id."),
    "sendBackDeadLetters": (_DEAD, "Send dead letters to the topics they came from."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mqadmin` and return its exit status."""
    # All imports but the few above lie behind this line: Ctrl-C meanwhile shows no traceback.
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 1


def _main(arguments: Sequence[str]) -> int:
    from commitbus.broker.cli import output  # noqa: PLC0415 - see main

    output.prepare_streams()
    try:
        arguments = output.as_utf8(arguments)
    except output.CommandError as error:
        output.print_error(PROGRAM, str(error))
        return output.EXIT_USAGE
    name, rest = (arguments[0], arguments[1:]) if arguments else ("-h", [])
    if name in ("-h", "--help", "help"):
        return output.run_command(PROGRAM, lambda: _help(rest), needs_output=True)
    if name not in COMMANDS:
        return _unknown(name)
    command = _command(name)
    options = output.parse(_parser(command), _joined(rest, command.dash_values))
    return output.run_command(
        f"{PROGRAM} {name}", lambda: _run(command, options), needs_output=True
    )


def _run(command: Command, options: argparse.Namespace) -> int:
    from commitbus.broker.cli.admin_client import AdminClient  # noqa: PLC0415 - trio takes 0.1 s
    from commitbus.broker.cli.output import CommandError, print_answer  # noqa: PLC0415 - see main
    from commitbus.broker.cli.tls import tls_of  # noqa: PLC0415 - see main
    from commitbus.broker.common.address import Endpoint  # noqa: PLC0415 - see main

    # RocketMQ allows several name servers, separated by semicolons; here the first one serves.
    endpoint = options.endpoint.strip(";").partition(";")[0]
    try:
        Endpoint.parse(endpoint)
    except ValueError as error:
        raise CommandError(f"the endpoint {error}") from None
    with AdminClient(endpoint, tls_of(options)) as client:
        answer = command.run(client, options)
    print_answer(answer, as_json=options.json)
    return answer.status


def _command(name: str) -> Command:
    commands: Sequence[Command] = import_module(COMMANDS[name][0]).COMMANDS
    return next(command for command in commands if command.name == name)


def _parser(command: Command) -> argparse.ArgumentParser:
    from commitbus.broker.cli import common_options as common  # noqa: PLC0415 - see main
    from commitbus.broker.cli.output import Parser  # noqa: PLC0415 - see main

    parser = Parser(
        prog=f"{PROGRAM} {command.name}",
        description=COMMANDS[command.name][1],
        allow_abbrev=False,
    )
    parser.add_argument(
        *("-n", "--namesrvAddr"),
        dest="endpoint",
        metavar="HOST:PORT",
        default=common.default_endpoint(NAMESRV_VARIABLE),
        help=f"the broker's endpoint, or unix:PATH; ${common.ENDPOINT_VARIABLE}, "
        f"${NAMESRV_VARIABLE}, or {common.DEFAULT_ENDPOINT} if not given",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    common.add_tls_options(parser)
    command.add_arguments(parser)
    return parser


def _joined(arguments: Sequence[str], options: frozenset[str]) -> list[str]:
    """Return the arguments with the value of some options glued to them.

    `-a -message.type` becomes `-a-message.type`, which argparse takes for what it is.
    """
    joined: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        value = next(rest, None) if argument in options else None
        if not value:
            joined += [argument] if value is None else [argument, value]
        else:
            joined.append(f"{argument}={value}" if argument.startswith("--") else argument + value)
    return joined


def _unknown(name: str) -> int:
    from commitbus.broker.cli.output import EXIT_USAGE, print_error  # noqa: PLC0415 - see main
    from commitbus.broker.common.shown import shown  # noqa: PLC0415 - see main

    print_error(PROGRAM, f"no such command: {shown(name)}. `{PROGRAM} help` lists them")
    return EXIT_USAGE


def _help(names: Sequence[str]) -> int:
    if names:
        if names[0] not in COMMANDS:
            return _unknown(names[0])
        print(_parser(_command(names[0])).format_help(), end="")
        return 0
    width = max(map(len, COMMANDS))
    print(f"usage: {PROGRAM} COMMAND [OPTIONS]\n\nThe commands are:")
    for name, (_, summary) in COMMANDS.items():
        print(f"   {name.ljust(width)}  {summary}")
    print(f"\n`{PROGRAM} COMMAND -h` shows the options of one.")
    return 0
