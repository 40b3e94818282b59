"""Networks: the registry, ResNet-18, a small CNN, the LeNet gradient encoder, and the growth of a head."""

from fcil.models.classifier import (
    HEAD_ROWS,
    Classifier,
    ProxyHead,
    grow,
    head_width,
    initial_state,
    load_classifier,
)
from fcil.models.config import Head, ModelConfig
from fcil.models.cost import (
    activation_bytes,
    cost_of,
    inference_bytes,
    multiply_adds,
    parameter_bytes,
    training_adds,
)
from fcil.models.lenet import LeNet, build_encoder
from fcil.models.registry import Backbone, Blueprint, Network, Staged, networks, norm_layer, register_network
from fcil.models.weights import with_digest

__all__ = [
    "HEAD_ROWS",
    "Backbone",
    "Blueprint",
    "Classifier",
    "Head",
    "LeNet",
    "ModelConfig",
    "Network",
    "ProxyHead",
    "Staged",
    "activation_bytes",
    "build_encoder",
    "cost_of",
    "grow",
    "head_width",
    "inference_bytes",
    "initial_state",
    "load_classifier",
    "multiply_adds",
    "networks",
    "norm_layer",
    "parameter_bytes",
    "register_network",
    "training_adds",
    "with_digest",
]
