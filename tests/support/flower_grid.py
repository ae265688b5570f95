"""Flower's grid with its nodes in this process: the deployed ClientApp, node-configs and keys are the real ones."""

from uuid import uuid4

from flwr.app import Context, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedgram.engines.flower.app import client, main

RUN = 7


class LocalGrid(Grid):
    """Carries messages of one run to nodes, given as node-configs (and public keys); keeps the replies."""

    def __init__(self, node_configs, run_config=None, *, keys=(), performs=client):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1  # as in a process of Flower's
        self.run_config = run_config or {}
        self.configs = dict(enumerate(node_configs, start=1))
        self.states = {node: RecordDict() for node in self.configs}
        self.keys = dict(enumerate(keys, start=1))
        self.replies, self.seen, self._performs = {}, [], performs

    def serve(self):
        """Run the ServerApp."""
        main(self, self.context(0, {}))

    def context(self, node, config):
        return Context(
            run_id=RUN, node_id=node, node_config=config, state=self.states.get(node, RecordDict()),
            run_config=self.run_config,
        )  # fmt: skip

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.configs]

    def get_node_ids(self):
        return list(self.configs)

    def push_messages(self, messages):
        sent = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__.update(_message_id=uuid4().hex, _run_id=RUN)
            reply = self._performs(message, self.context(node, self.configs[node]))
            self.replies[message.metadata.message_id] = reply
            self.seen.append(reply)
            sent.append(message.metadata.message_id)
        return sent

    def pull_messages(self, message_ids):
        return [self.replies.pop(sent) for sent in message_ids if sent in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_, **__):
        raise NotImplementedError
