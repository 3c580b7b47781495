"""What FML and FedKD have in common: a small auxiliary model that all clients share, and that every client's own
model learns from while it learns from the own model. FedMRL takes its common model from here.

Each model has its task loss, and a distillation loss KL(teacher ‖ student) in which the other one is the teacher.
The own model never leaves its client; the auxiliary one is averaged by the server and comes back every round.

Dimensions: B batch, C classes, p parameters of the auxiliary model.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
from torch import Tensor, nn

from fedsim import method, models
from fedsim.config import AboveZero, NonNegative, Section
from fedsim.data.inputs import described
from fedsim.equations.distillation import divergence
from fedsim.errors import UserError
from fedsim.families.uploads import Aggregation
from fedsim.method import ClientContext, Reported, ServerContext, Setting
from fedsim.models import SplitModel, groups
from fedsim.models.base import SMALLEST
from fedsim.seeds import Streams


class MutualConfig(Section, frozen=True, kw_only=True):
    """Options of both methods."""

    auxiliary: str = "published"
    """The model that all clients share: the name of any single model, or published. That is the first of the
    group, as a rule its smallest (not so in HtCNN8, where CNN2 is smaller); the 4-layer CNN where all clients have
    the same extractor (a single model), or fastText for texts and HARCNN-s2 for signals; MLP for vectors."""
    auxiliary_lr: AboveZero | Literal["auto"] = "auto"
    """Learning rate of the auxiliary model; auto: train.lr."""
    aggregation: Aggregation = "mean"
    """Auxiliary models count alike, as in the published runs, or by the clients' numbers of samples."""
    detach_teacher: bool = True
    """A loss trains its student only. In the published runs it trains the teacher too, towards its student."""
    kl_mean: Literal["batch", "element"] = "batch"
    """Whether KL is summed over classes and then averaged, or averaged over classes too, which makes it C times
    smaller. The published runs do the latter."""
    clip_norm: NonNegative = 10.0
    """Largest gradient norm of each network; 0: any."""


def auxiliary_name(context: ClientContext | ServerContext | Setting) -> str:
    """The architecture of the auxiliary model."""
    wanted = context.config.auxiliary
    if wanted != "published":
        if len(groups.entries(wanted)) != 1:
            raise UserError(
                f"method.auxiliary = {wanted!r} is more than one model, but all clients share the same; "
                "give the name of a single model, such as CNN."
            )
        return groups.entries(wanted)[0].group
    kind = described(context.task.input_shape).kind
    if kind == "vector":
        return SMALLEST[kind]
    extractors = [entry.model for entry in groups.entries(context.experiment.model.group)]
    if len(set(extractors)) == 1 and extractors[0] != "MLP":
        return SMALLEST[kind]
    return extractors[0]  # without the hidden layers that its head may have (HtFE8-HtC4)


def new_auxiliary(context: ClientContext | ServerContext | Setting, feature_dim: int = 0) -> SplitModel:
    """The auxiliary model as it is before the first round: everywhere the same, so that it need not be sent. It
    has K features unless another number is given."""
    model = context.experiment.model
    config = msgspec.structs.replace(
        model, group=auxiliary_name(context), feature_dim=feature_dim or model.feature_dim
    )
    with Streams(context.experiment.run.seed).seeded("auxiliary-init"):
        return models.build(config, 0, context.task.input_shape, context.task.num_classes)


def auxiliary_shapes(context: ClientContext | ServerContext | Setting, feature_dim: int = 0) -> SplitModel:
    """The auxiliary model without memory for its weights."""
    with torch.device("meta"):
        return new_auxiliary(context, feature_dim)


def check(setting: Setting, feature_dim: int = 0) -> None:
    """Whether there is such a model, and whether it can take these data."""
    name = auxiliary_name(setting)
    try:
        auxiliary_shapes(setting, feature_dim)
    except UserError as error:
        reason = str(error).rstrip(".").split(";")[0]
        raise UserError(f"method.auxiliary cannot be {name}: {reason}; name another model.") from None


class MutualClient(method.Client):
    """A client with its own model, which is evaluated, and its copy of the auxiliary one, which travels."""

    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.auxiliary = new_auxiliary(context).to(context.device)

    def kl(self, student_BC: Tensor, teacher_BC: Tensor) -> Tensor:
        """KL(teacher ‖ student) as the options want it."""
        config: MutualConfig = self.context.config
        mean = divergence(student_BC, teacher_BC.detach() if config.detach_teacher else teacher_BC)
        return mean / student_BC.shape[1] if config.kl_mean == "element" else mean

    def modules(self) -> dict[str, nn.Module]:
        """The received weights come again, but running statistics of batch normalisation stay with a client."""
        return {"model": self.model, "auxiliary": self.auxiliary}

    def train(self, round: int) -> Reported:
        """One optimizer step of all modules for each batch; a method's loss is the sum over both models."""
        config: MutualConfig = self.context.config
        lr = self.context.experiment.train.lr
        special = {"auxiliary": lr if config.auxiliary_lr == "auto" else config.auxiliary_lr}
        mean_loss = self.train_locally(
            round,
            modules=list(self.modules().values()),
            learning_rates=[special.get(name, lr) for name in self.modules()],
            clip_norm=config.clip_norm,
        )
        return {"loss": mean_loss}
