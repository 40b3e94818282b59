"""A registered site that answers with what no site should: `python -m support.hostile OWNER SERVER KEYS FOLDER`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from fcil.core.parent_watch import leave_with


def main() -> None:
    """Answer each round with the next of the mischiefs, and greetings as a good site would."""
    leave_with(int(sys.argv[1]))
    server, keys, folder = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    from fcil.deployment.flower.process import quieten

    quieten(folder)
    import torch

    from fcil.core.messages import Reply, Report
    from fcil.core.messages.codec import FRAME
    from fcil.deployment.flower.node import FleetNode
    from fcil.deployment.transport.messages import (
        Answer,
        IdentifyRequest,
        Identity,
        Request,
        TrainRequest,
        TrainResult,
        decode_message,
        decode_model,
        encode_message,
    )
    from fcil.methods import methods

    methods()
    models: dict[str, dict[str, torch.Tensor]] = {}

    def answer(data: bytes, parcels: Mapping[str, bytes]) -> bytes:
        request = decode_message(data, Request, 1 << 30)
        for digest, parcel in parcels.items():
            models[digest] = decode_model(digest, parcel, 1 << 30).model
        if isinstance(request, IdentifyRequest):
            return encode_message(Answer((), Identity("mallory")))
        if not isinstance(request, TrainRequest):
            return b"nothing that fcil would say"
        model = {name: tensor.clone() for name, tensor in models[request.broadcast.model].items()}
        first = next(name for name, tensor in model.items() if tensor.is_floating_point())
        mischief = request.broadcast.context.round % 4
        if mischief == 0:
            model[first] = torch.full_like(model[first], float("nan"))
        if mischief == 1:
            model[first] = model[first][:-1]
        honest = encode_message(Answer(tuple(models), TrainResult(Reply(request.order.client, Report(model, 10)))))
        if mischief == 2:  # a frame that promises more than any answer may have
            line = honest.index(b"\n") + 1
            magic, version, header, _ = FRAME.unpack_from(honest, line)
            return honest[:line] + FRAME.pack(magic, version, header, 1 << 41) + honest[line + FRAME.size :]
        if mischief == 3:
            return encode_message(Answer(tuple(models), TrainResult()))
        return honest

    while True:  # a SuperLink that has just come up does not know its sites yet, and lets nobody in
        with FleetNode(folder, server, keys / "site.key", keys / "ca.crt", print) as node:
            node.serve(answer, threading.Event())
        time.sleep(1)


if __name__ == "__main__":
    main()
