"""FML, federated mutual learning: a small model travels, and teaches the own one (Shen et al. 2020).

Client: its own model learns with α · CE + (1 − α) · KL(auxiliary ‖ own), the auxiliary model ("meme") with
β · CE + (1 − β) · KL(own ‖ auxiliary), both in the same step. Every round the auxiliary model starts from the
server's. Server: unweighted mean of the auxiliary models. Prediction: largest logit of the own model.

What travels: up and down all weights of the auxiliary model. The first one comes from the common seed.

Deliberate choices
- A loss trains its student alone, and KL is averaged over samples. In the published runs it trains both models,
  and is averaged over classes too: `detach_teacher=false`, `kl_mean=element`.
- Running statistics of batch normalisation do not travel, as in the published runs.
"""

from typing import Annotated

from msgspec import Meta
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsim import method
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.families.auxiliary_model import MutualClient, MutualConfig, auxiliary_shapes, check
from fedsim.families.uploads import mean_of
from fedsim.learning.parameters import flatten, load_flat, num_parameters
from fedsim.method import About, Batch, Setting, Step, Upload, filled

__all__ = ["ABOUT", "Client", "Config", "Server", "check", "contract", "sizes"]

ABOUT = About(title="FML", paper="Shen et al., 2020", evaluation="largest logit")


class Config(MutualConfig, frozen=True, kw_only=True):
    """FML's options."""

    task_weight: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """α, the share of cross-entropy in the own model's loss; 1: no distillation."""
    auxiliary_task_weight: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """β, the same for the auxiliary model."""


def contract(config: Config) -> Contract:
    weights = {"auxiliary": Field(Payload.PARAMETERS, "aux")}
    return Contract(up=weights, down=weights)


def sizes(setting: Setting) -> dict[str, int]:
    return {"aux": num_parameters(auxiliary_shapes(setting))}


class Client(MutualClient):
    def receive(self, round: int, down: Arrays) -> None:
        if down:
            load_flat(self.auxiliary, down["auxiliary"])

    def upload(self) -> Arrays:
        return {"auxiliary": flatten(self.auxiliary)}

    def loss(self, batch: Batch) -> Tensor:
        """α · CE + (1 − α) · KL of the own model and β · CE + (1 − β) · KL of the auxiliary one."""
        config: Config = self.context.config
        alpha, beta = config.task_weight, config.auxiliary_task_weight
        own_BC, auxiliary_BC = self.model(batch.inputs), self.auxiliary(batch.inputs)
        own = alpha * cross_entropy(own_BC, batch.labels_B) + (1 - alpha) * self.kl(own_BC, auxiliary_BC)
        auxiliary = beta * cross_entropy(auxiliary_BC, batch.labels_B) + (1 - beta) * self.kl(auxiliary_BC, own_BC)
        return own + auxiliary


class Server(method.Server):
    """The mean is all that the next round needs."""

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        uploads = filled(uploads)
        if not uploads:
            return Step(down={})
        return Step(down={"auxiliary": mean_of(uploads, "auxiliary", self.context.config.aggregation)})
