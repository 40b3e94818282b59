"""Networks: ResNet-18, the LeNet gradient encoder, and the growth of a head."""

from fcil.models.classifier import (
    Classifier,
    ModelConfig,
    ProxyHead,
    grow,
    head_width,
    initial_state,
    load_classifier,
    multiply_adds,
)
from fcil.models.lenet import LeNet, build_encoder

__all__ = [
    "Classifier",
    "LeNet",
    "ModelConfig",
    "ProxyHead",
    "build_encoder",
    "grow",
    "head_width",
    "initial_state",
    "load_classifier",
    "multiply_adds",
]
