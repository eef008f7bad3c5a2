"""The verdict on an application that transforms each input once, whatever happens to it.

Of each record that is in the input for good, the output holds one, in the order of the input. Said
as a history of its own: every input is a send of which all is known, the output is what was polled;
then the rules are those of the checker. The name of an output is that of its place in the input.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from faults.checker import Verdict, check


def output_name(partition: int, offset: int) -> str:
    """What an application writes for the input at this place."""
    return f"in{partition}:{offset}"


def judge_output(
    inputs: Iterable[Mapping[str, Any]], outputs: Iterable[Mapping[str, Any]], topic: str
) -> Verdict:
    """`inputs` tell where the input ends ("end"), `outputs` what was read of the output."""
    return check([*_sends(inputs, topic), *outputs])


def _sends(inputs: Iterable[Mapping[str, Any]], topic: str) -> Iterator[dict[str, Any]]:
    ends: dict[int, int] = {}
    for event in inputs:
        if event["op"] == "end":
            partition = int(event["tp"].rpartition("/")[2])
            ends[partition] = max(int(event["end"]), ends.get(partition, 0))
    for partition, end in ends.items():
        for offset in range(end):
            name = output_name(partition, offset).rpartition(":")[0]
            yield {"op": "send", "p": name, "n": offset, "tp": f"{topic}/{partition}"}
            yield {"op": "ack", "p": name, "n": offset, "o": -1}
    # Ends of transactions take up offsets, so that some are missing for readers.
    yield {"op": "txn", "t": "all", "outcome": "unknown"}
