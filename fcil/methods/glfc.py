"""GLFC: Global-Local Forgetting Compensation (Dong et al., CVPR 2022), in the order of its Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from fcil.core.messages import Message, Prototype, Weighted
from fcil.maths.compensation import compensation_weights, gradient_measure
from fcil.maths.losses import labelled_bce
from fcil.maths.relation import old_outputs_distillation, relation_bce, relation_kl, relation_target
from fcil.methods.base import Method, Roles, Setting, by_edition, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.local_objective import Problem
from fcil.methods.own_classes import OwnedConfig, OwnedObjective
from fcil.methods.prototypes import GRADIENT_SENT, PrototypeGradient, PrototypesConfig, take_prototypes
from fcil.methods.proxy_role import PrototypeProxy
from fcil.methods.server import plain_server
from fcil.methods.teacher_votes import VOTE, VotingServer, cast_vote
from fcil.methods.teachers import teacher_rule
from fcil.models.client_context import ClientContext


class GLFCConfig(PrototypesConfig, OwnedConfig):
    """The published settings unless said otherwise; the first three switches are the paper's ablations."""

    compensation: bool = Field(True, description="L_GC's weights; off: plain L_CE (w/o CGC)")
    relation: bool = Field(True, description="L_RD; off: iCaRL's distillation of the old outputs (w/o CRD)")
    proxy: bool = Field(True, description="the proxy server; off: the model before the last growth teaches (w/o PRS)")
    selection: Literal["proxy", "votes"] = Field(
        "proxy",
        description="who selects the old model that teaches: the proxy by prototypes, or the participants by votes, "
        "without proxy and prototypes",
    )
    compensation_without_history: Literal["weights", "one"] = Field(
        "one",
        description="L_GC's weights at a client without old classes; one: plain L_CE, as in the released code; "
        "weights: as in the text",
    )
    divergence: Literal["bce", "kl"] = by_edition("bce")  # L_RD as in the released code or as in the text
    compensation_weight: float = Field(0.5, ge=0, description="lambda_1 once there is a teacher; 1 before")
    relation_weight: float = Field(0.5, ge=0, description="lambda_2 once there is a teacher; 0 before")

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": PrototypesConfig.editions["fcil"],
        "paper": {**PrototypesConfig.editions["paper"], "divergence": "kl", "compensation_without_history": "weights"},
        "official": PrototypesConfig.editions["official"],
    }

    @field_validator("selection")
    @classmethod
    def _selects(cls, value: str, info: ValidationInfo) -> str:
        """Refuse votes where the selection is switched off."""
        if value == "votes" and info.data.get("proxy") is False:
            raise ValueError("'proxy' where method.proxy is false: then nothing is selected")
        return value

    @property
    def has_proxy(self) -> bool:
        """Say whether there is a proxy server, which is sent prototypes."""
        return self.proxy and self.selection == "proxy"

    def sends(self) -> dict[str, str]:
        if self.selection == "votes":
            return {VOTE: "how well two models do on its newest data", **super().sends()}
        return {**({"PrototypeGradient": GRADIENT_SENT} if self.has_proxy else {}), **super().sends()}


# --- the client ---------------------------------------------------------------------------------------------------


class GLFC(OwnedObjective[GLFCConfig]):
    """L = lambda_1 L_GC + lambda_2 L_RD, and after an alarm the perturbed prototypes' gradients for the proxy."""

    def __init__(self, config: GLFCConfig, problem: Problem, local: ClientContext, setting: Setting) -> None:
        super().__init__(config, problem, local)
        self.setting = setting
        always = config.compensation_without_history == "weights"
        self.weighs = config.compensation and (always or problem.has_history)
        self.vote = cast_vote(problem, local)  # on the network as received
        self.noted: tuple[Prototype, ...] = ()  # what a simulated client shows of its prototypes

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        problem, config = self.problem, self.config
        teacher = problem.teacher_logits(images, rows)  # before the student, whose activations then take its memory
        logits, labels = problem.net(images), problem.targets[rows]
        each = labelled_bce(logits, labels, self.outputs())
        if self.weighs:  # by the output of a sample's own class alone, which no client lacks: own_classes changes none
            each = each * compensation_weights(gradient_measure(logits, labels), problem.old[rows])
        if teacher is None:
            return each.mean()
        distilled = distillation(config, logits, labels, teacher, self.outputs(teacher))
        return config.compensation_weight * each.mean() + config.relation_weight * distilled.mean()

    def parts(self) -> dict[str, Weighted]:
        """Return the vote, where the server asked for one."""
        return {VOTE: self.vote} if self.vote is not None else {}

    def uploads(self) -> tuple[Message, ...]:
        """Return one gradient for each class that is new to the client."""
        if not self.config.has_proxy or not self.problem.news.classes:
            return ()
        taken = take_prototypes(self.config, self.setting, self.problem, self.local)
        self.noted = taken.shown
        return tuple(map(PrototypeGradient, taken.gradients))

    def shown(self) -> tuple[Prototype, ...]:
        return self.noted


def distillation(
    config: GLFCConfig, logits: Tensor, labels: Tensor, teacher: Tensor, outputs: Tensor | None = None
) -> Tensor:
    """Return L_RD per example over all outputs or these, or its replacement in the ablation w/o CRD."""
    if not config.relation:
        return old_outputs_distillation(logits, teacher)
    divergence = relation_kl if config.divergence == "kl" else relation_bce
    return divergence(logits, relation_target(labels, teacher, logits.shape[1]), outputs)


def build(config: GLFCConfig, setting: Setting) -> Roles:
    """Return the roles of GLFC, without a proxy in the ablation w/o PRS and where participants vote."""
    objective, rule = partial(GLFC, setting=setting), teacher_rule(config.teacher)
    client = RehearsalClient(config, setting, objective, teacher=rule)
    server = VotingServer() if config.selection == "votes" else plain_server()
    return Roles(client, config.server(server), PrototypeProxy(config, setting) if config.has_proxy else None)


# --- the method and its ablations ---------------------------------------------------------------------------------


class WithoutCompensation(GLFCConfig):
    """GLFC with plain L_CE instead of L_GC."""

    compensation: Literal[False] = Field(False, description="off: this is the ablation")


class WithoutRelation(GLFCConfig):
    """GLFC with iCaRL's distillation instead of L_RD."""

    relation: Literal[False] = Field(False, description="off: this is the ablation")


class WithoutProxy(GLFCConfig):
    """GLFC with the model before the last growth as teacher, and no proxy server."""

    proxy: Literal[False] = Field(False, description="off: this is the ablation")


register_method(
    Method("glfc", "gradient compensation, relation distillation and a proxy server (CVPR 2022)", GLFCConfig, build)
)
for name, what, kind in (
    ("glfc-wo-cgc", "without class-aware gradient compensation", WithoutCompensation),
    ("glfc-wo-crd", "without class-semantic relation distillation", WithoutRelation),
    ("glfc-wo-prs", "without proxy server", WithoutProxy),
):
    register_method(Method(name, f"GLFC {what} (ablation)", kind, build, variant_of="glfc"))
