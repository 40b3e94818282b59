"""The methods: one file each, found by looking into this folder."""

from fcil.core.registry import PluginWarning
from fcil.methods.base import (
    Method,
    MethodConfig,
    Roles,
    Setting,
    get_method,
    method_config,
    methods,
    register_method,
)

__all__ = [
    "Method",
    "MethodConfig",
    "PluginWarning",
    "Roles",
    "Setting",
    "get_method",
    "method_config",
    "methods",
    "register_method",
]
