"""Networks: ResNet-18, the LeNet gradient encoder, and the growth of a head."""

from fcil.models.classifier import (
    Classifier,
    ModelConfig,
    ProxyHead,
    activation_bytes,
    grow,
    head_width,
    inference_bytes,
    initial_state,
    load_classifier,
    multiply_adds,
    parameter_bytes,
)
from fcil.models.lenet import LeNet, build_encoder

__all__ = [
    "Classifier",
    "LeNet",
    "ModelConfig",
    "ProxyHead",
    "activation_bytes",
    "build_encoder",
    "grow",
    "head_width",
    "inference_bytes",
    "initial_state",
    "load_classifier",
    "multiply_adds",
    "parameter_bytes",
]
