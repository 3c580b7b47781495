"""FedMRL: a small common model whose features are joined with the own ones (Yi et al., NeurIPS 2024).

Client: the features of the common model, K_s numbers, and of its own, K numbers, are joined; a private linear
layer, the projection, makes K of K_s + K. Like nested dolls, the first K_s of these are a representation of
their own:

    CE(own head on all K, y) + CE(common head on the first K_s, y)

trains all three. Server: mean of the common models. Prediction: largest logit of the own head, with the common
model that has just come down.

What travels: up and down all weights of the common model. The first one comes from the common seed.

Deliberate choices
- Means are weighted by the clients' numbers of samples, and gradients clipped at 50, as the authors have it; with
  `train.momentum=0.9` as theirs. The common library counts clients alike: `aggregation=mean`.
- A client keeps its projection. The common library never saves the trained one, so that every round starts from,
  and every test is of, the random one of the start: `forget_projection=true`.
- The common model is what FML and FedKD take for theirs, with K_s features.

Dimensions: B batch, C classes, K features, S features of the common model (K_s).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedsim import method
from fedsim.config import NonNegative, Positive, Section
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.errors import UserError
from fedsim.families import auxiliary_model
from fedsim.families.auxiliary_model import new_auxiliary
from fedsim.families.uploads import Aggregation, mean_of
from fedsim.learning.evaluation import count_correct
from fedsim.learning.parameters import flatten, load_flat, num_parameters
from fedsim.method import About, Batch, ClientContext, Metrics, Reported, Setting, Step, Task, Upload, filled

ABOUT = About(title="FedMRL", paper="Yi et al., NeurIPS 2024", evaluation="largest logit")


class Config(Section, frozen=True, kw_only=True):
    """FedMRL's options."""

    auxiliary: str = "published"
    """The common model: the name of any single model, or published, as with FML and FedKD."""
    common_dim: Positive | Literal["auto"] = "auto"
    """K_s, the features of the common model, at most K; auto: a quarter of K, as the published 128 of 512."""
    aggregation: Aggregation = "weighted"
    """weighted: by the clients' numbers of training samples. mean: all count alike."""
    clip_norm: NonNegative = 50.0
    """Largest gradient norm of each network; 0: any."""
    forget_projection: bool = False
    """Begin every round, and test, with the random projection of the start, as the common library does."""

    def dim(self, task: Task) -> int:
        """K_s"""
        return max(1, task.feature_dim // 4) if self.common_dim == "auto" else self.common_dim


def contract(config: Config) -> Contract:
    weights = {"common": Field(Payload.PARAMETERS, "common")}
    return Contract(up=weights, down=weights)


def sizes(setting: Setting) -> dict[str, int]:
    with torch.device("meta"):
        return {"common": num_parameters(new_auxiliary(setting, setting.config.dim(setting.task)))}


def check(setting: Setting) -> None:
    auxiliary_model.check(setting, setting.config.dim(setting.task))
    if setting.config.dim(setting.task) > setting.task.feature_dim:
        raise UserError(
            f"method.common_dim = {setting.config.common_dim} is more than the {setting.task.feature_dim} "
            "features of which they are the first; lower it, or raise model.feature_dim."
        )


class Client(method.Client):
    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: Config = context.config
        self.dim = self.config.dim(context.task)
        self.common = new_auxiliary(context, self.dim).to(context.device)
        self.projection = self._new_projection()

    def _new_projection(self) -> nn.Linear:
        dim = self.context.task.feature_dim
        with self.context.streams.seeded("projection"):
            return nn.Linear(self.dim + dim, dim).to(self.context.device)

    def modules(self) -> dict[str, nn.Module]:
        """The received weights come again, but running statistics of batch normalisation stay with a client."""
        return {"model": self.model, "common": self.common, "projection": self.projection}

    def receive(self, round: int, down: Arrays) -> None:
        if down:
            load_flat(self.common, down["common"])

    def joined(self, inputs: Tensor) -> Tensor:
        """(B, K), whose first S columns are the smaller representation."""
        return self.projection(torch.cat([self.common.features(inputs), self.model.features(inputs)], dim=1))

    def loss(self, batch: Batch) -> Tensor:
        """CE(own head on all K) + CE(common head on the first S)."""
        joined_BK = self.joined(batch.inputs)
        common_BC = self.common.head(joined_BK[:, : self.dim])
        return cross_entropy(self.model.head(joined_BK), batch.labels_B) + cross_entropy(common_BC, batch.labels_B)

    def train(self, round: int) -> Reported:
        modules = list(self.modules().values())
        loss = self.train_locally(round, modules=modules, clip_norm=self.config.clip_norm)
        if self.config.forget_projection:
            self.projection = self._new_projection()
        return {"loss": loss}

    def evaluate(self) -> Metrics:
        all_three = nn.ModuleList(self.modules().values())
        return count_correct(
            all_three,
            self.data.test,
            self.context.device,
            forward=lambda inputs: self.model.head(self.joined(inputs)),
            further=self.measures_further,
        )

    def upload(self) -> Arrays:
        return {"common": flatten(self.common)}


class Server(method.Server):
    """The mean is all that the next round needs."""

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        uploads = filled(uploads)
        if not uploads:
            return Step(down={})
        return Step(down={"common": mean_of(uploads, "common", self.context.config.aggregation)})
