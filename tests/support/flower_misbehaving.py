"""A ClientApp whose nodes fail as their names tell; nodes with other names are honest. Copied into a test's app."""

import hashlib
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedgram.core import container, wire
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.app import client as honest

client = ClientApp()


@client.query(flower_messages.action(flower_messages.NAME))
def name(message, context):
    return honest(message, context)


@client.query(flower_messages.action(flower_messages.STEP))
def step(message, context):
    reply = honest(message, context)
    fault = faults.get(context.node_config["name"])
    if fault is None or wire.decode(flower_messages.body(message))["step"] in ("hello", "receive", "evaluate"):
        return reply
    return Message(flower_messages.letter(fault(flower_messages.body(reply))), reply_to=message)


def garbage(data):
    return os.urandom(len(data))


def nan(data):
    start = 8 + int.from_bytes(data[:8], "little")  # of the first array
    changed = data[:start] + np.float64("nan").tobytes() + data[start + 8 :]
    seal, zeros = changed[container.SEAL_AT : container.SEAL_AT + container.DIGITS], b"0" * container.DIGITS
    changed = changed.replace(seal, zeros, 1)
    return changed.replace(zeros, hashlib.sha256(changed).hexdigest().encode(), 1)  # a liar seals its lies


def slow(data):
    time.sleep(600)
    return data


def killed(data):
    Path("uploading").touch()  # a test that waits for this kills the node while the answer is on its way
    return data


faults = {"garbage": garbage, "nan": nan, "slow": slow, "killed": killed}
