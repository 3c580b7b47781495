"""FedNH: unit features and class prototypes that lie far apart on the sphere from the start (Dai et al., AAAI
2023).

Client: the head is C prototypes of length one, W, which a client does not train. Logits are s · ⟨z, W_c⟩ with
z = features / ‖features‖ and a scale s that is trained with the extractor. Loss: cross-entropy. After training the
client uploads, for each class held, the direction μ of the mean of its z, and how many samples it has of it.

Server: averages the extractors and scales, and moves the prototypes slowly towards the classes,
W_c ← unit(ρ W_c + (1 − ρ) unit(Σ nᵢ_c μᵢ_c / Σ nᵢ_c)). At first the rows of W are orthonormal, so C ≤ K. A class
that nobody uploaded keeps its W_c. Prediction: largest logit.

What travels: up the extractor and s, one K-vector per class held and its number of samples; down the extractor, s
and all C prototypes. The first prototypes come from the common seed, so nothing is sent for them.

Deliberate choices
- ρ = 0.9 and gradients clipped at norm 10, as published.
- Models are averaged unweighted and with their running statistics, as published; `aggregation`, `buffers`.
- s starts from 1, as in the published CNNs, and learns slowly. Their ResNets start from 20: `scale`.
- Published with momentum 0.9, weight decay 1e-5 and 5 local epochs of batches of 64 in random order, and with
  `lr_schedule=diminishing`; none of it is set here: the section `train` holds for all methods alike.

Dimensions: B batch, C classes, K features, n classes held.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedsim.config import AboveZero, NonNegative
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.errors import UserError
from fedsim.families import whole_model
from fedsim.families.uploads import COUNTS, PROTOTYPES, class_means, mean_per_class, pack, stack_uploads
from fedsim.families.whole_model import SharingClient, SharingConfig, SharingServer, load_shared
from fedsim.learning.parameters import num_parameters
from fedsim.method import About, ClientContext, ServerContext, Setting, State, Task, Upload
from fedsim.models import SplitModel
from fedsim.seeds import Streams

ABOUT = About(
    title="FedNH",
    paper="Dai et al., AAAI 2023",
    needs=("equal models", "C ≤ K"),
    evaluation="largest cosine of the global model and its prototypes",
)


class Config(SharingConfig, frozen=True, kw_only=True):
    """FedNH's options."""

    smoothing: Annotated[float, Meta(ge=0, le=1)] = 0.9
    """ρ, how much of a prototype stays in a round."""
    scale: AboveZero = 1.0
    """s, the factor on cosines, at the start."""
    trainable_scale: bool = True
    """Whether clients train s; false keeps it, published as an option with 30."""
    aggregation: Literal["weighted", "mean"] = "mean"
    """mean: every client counts alike, as published. weighted: by each client's number of training samples."""
    buffers: Literal["local", "averaged"] = "averaged"
    """The running statistics of batch normalisation; published as averaged."""
    clip_norm: NonNegative = 10.0
    """Largest norm of a batch's gradient; 0: not clipped."""


def contract(config: Config) -> Contract:
    model = Field(Payload.PARAMETERS, "model")
    return Contract(
        up={"model": model, **PROTOTYPES, "counts": COUNTS},
        down={"model": model, "prototypes": Field(Payload.PROTOTYPES, "C K")},
    )


def sizes(setting: Setting) -> dict[str, int]:
    """The prototypes are in the place of the model's own head."""
    own_head = num_parameters(setting.model(0).head)
    return {"model": whole_model.sizes(setting)["model"] - own_head + int(setting.config.trainable_scale)}


adapt = whole_model.adapt


def check(setting: Setting) -> None:
    whole_model.check(setting)
    num_classes, feature_dim = setting.task.num_classes, setting.task.feature_dim
    if num_classes > feature_dim:
        raise UserError(
            f"{ABOUT.title} needs orthonormal prototypes, but model.feature_dim = {feature_dim} has no room for "
            f"the {num_classes} classes of {setting.experiment.data.dataset}; set it to at least {num_classes}."
        )


def first_prototypes(task: Task, streams: Streams) -> Tensor:
    """(C, K), random rows that are orthonormal; the same on every node.

    In double precision, so that the number of threads does not show in the result.
    """
    rows_CK = torch.empty(task.num_classes, task.feature_dim, dtype=torch.float64)
    with streams.seeded("orthonormal-prototypes"):
        nn.init.orthogonal_(rows_CK)
    return rows_CK.float()


class PrototypeHead(nn.Module):
    """(B, K) features → (B, C) scaled cosines with prototypes that no gradient changes."""

    prototypes_CK: Tensor
    scale: Tensor

    def __init__(self, prototypes_CK: Tensor, scale: float, *, trainable_scale: bool):
        super().__init__()
        self.register_buffer("prototypes_CK", prototypes_CK)
        if trainable_scale:
            self.scale = nn.Parameter(torch.tensor(scale))
        else:
            self.register_buffer("scale", torch.tensor(scale))

    def forward(self, features_BK: Tensor) -> Tensor:
        return self.scale * (normalize(features_BK, dim=1) @ self.prototypes_CK.T)


def give_head(model: SplitModel, context: ClientContext | ServerContext) -> None:
    """Put a prototype head in the place of the model's own."""
    config: Config = context.config
    prototypes_CK = first_prototypes(context.task, context.streams)
    head = PrototypeHead(prototypes_CK, config.scale, trainable_scale=config.trainable_scale)
    model.head = head.to(context.device)


def load_with_prototypes(model: SplitModel, config: SharingConfig, down: Arrays) -> None:
    load_shared(model, config, down)
    assert isinstance(model.head, PrototypeHead)
    model.head.prototypes_CK.copy_(torch.from_numpy(down["prototypes"]))


class Client(SharingClient):
    load = staticmethod(load_with_prototypes)

    def __init__(self, context: ClientContext):
        super().__init__(context)
        give_head(self.model, context)

    def upload(self) -> Arrays:
        """The model, and the direction of each class's mean unit feature with its number of samples."""
        means = class_means(self.context, lambda inputs: normalize(self.model.features(inputs), dim=1))
        packed = pack(means.means(), means.weights_C)
        packed["prototypes"] = normalize(torch.from_numpy(packed["prototypes"]), dim=1).numpy()
        return super().upload() | packed


class Server(SharingServer):
    load = staticmethod(load_with_prototypes)

    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.prototypes_CK = first_prototypes(context.task, context.streams).to(context.device)

    def combine(self, uploads: Sequence[Upload]) -> Arrays:
        task, rho = self.context.task, self.context.config.smoothing
        uploaded = stack_uploads(
            list(uploads), "prototypes", task.feature_dim, task.num_classes, self.context.device
        )
        means = mean_per_class(uploaded, task.num_classes)
        moved_CK = normalize(rho * self.prototypes_CK + (1 - rho) * normalize(means.vectors_CK, dim=1), dim=1)
        self.prototypes_CK = torch.where(means.present_C[:, None], moved_CK, self.prototypes_CK)
        return super().combine(uploads) | {"prototypes": self.prototypes_CK.cpu().numpy()}

    def build_model(self) -> SplitModel:
        model = super().build_model()
        give_head(model, self.context)
        return model

    def state(self) -> State:
        return super().state() | {"prototypes": self.prototypes_CK.cpu().numpy()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.prototypes_CK = torch.from_numpy(state["prototypes"].copy()).to(self.context.device)
