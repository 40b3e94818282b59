"""The context of a client's role: samples, trainer and inference of one place, which share their images."""

from __future__ import annotations

import torch
from support.noise import MODELS, SOURCE, make_local
from torch import Tensor

from fcil.core.messages import model_digest


def test_images_are_those_of_the_samples_between_0_and_1() -> None:
    local, indices = make_local(), torch.tensor([7, 2])
    assert torch.equal(local.images(indices), SOURCE.train.images[[7, 2]].float() / 255)


def test_samples_machine_and_inference_are_of_one_place() -> None:
    local, indices = make_local(), torch.tensor([3, 1])
    assert local.inference.samples is local.samples
    assert local.inference.machine is local.machine
    found = local.inference.infer(model_digest(MODELS[0]), MODELS[0], indices).features
    features = local.features(local.machine.net(MODELS[0]), indices)
    torch.testing.assert_close(found, features, atol=1e-5, rtol=1e-4)


def test_a_fit_is_that_of_the_machine_on_the_samples() -> None:
    def trained(through_local: bool) -> str:
        local = make_local()
        net = local.machine.net(MODELS[0])

        def loss(images: Tensor, rows: Tensor) -> Tensor:
            return net(images).square().mean()

        if through_local:
            local.machine.fit(net, local.samples, torch.arange(6), loss, [0.1], 3)
        else:
            local.machine.fit(net, local.samples, torch.arange(6), loss, [0.1], 3)
        return model_digest(net.state_dict())

    assert trained(through_local=True) == trained(through_local=False) != model_digest(MODELS[0])
