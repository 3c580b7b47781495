"""FedKD: mutual distillation with a small model that travels as low-rank factors (Wu et al., Nature Communications
2022).

Client: its own model ("mentor") and the auxiliary one ("mentee") have the loss
    CE + KL / (CE + CE') + MSE / (CE + CE'),
where CE + CE' is the sum of both models' cross-entropies: the less sure they are, the less they learn from one
another. KL has the other model as the teacher, MSE = ‖features − W_h auxiliary features‖² / K compares hidden
states; W_h is a K×K matrix of the client's own that learns beside the models and never leaves it. Every round the
auxiliary model starts from the server's. Server: unweighted mean of the auxiliary models. Prediction: largest
logit of the own model.

What travels: up and down the auxiliary model, each weight matrix as those factors of its singular value
decomposition (fedsim/equations/low_rank.py) that keep a share of its energy, which grows from T_start to T_end:
T_start + (T_end − T_start) · round / rounds. Beside them the ranks, by which the receiver reads the factors.

Deliberate choices
- Weights are factorised, as in the published runs of the comparisons that FedKD is a baseline of. The paper
  factorises what they have changed by, which needs every client to have received every round.
- The rank is the lowest that reaches the threshold. In the published code a matrix that needs its full rank gets
  rank 0 and arrives as zeros. Here a matrix whose factors are not fewer numbers than itself travels as it is, as
  most do before they are trained.
- A convolution is one matrix with a row per output channel; the published code factorises every kernel by itself.
- A loss trains its student alone, KL is averaged over samples, and the divisor is a weight without gradient. In
  the published runs a loss trains both models, KL is averaged over classes too, and the divisor has a gradient,
  towards larger cross-entropies: `detach_teacher=false`, `kl_mean=element`, `detach_divisor=false`.
- The divisor is at least 1e-6: models may be so sure that it is 0.
- T_start and T_end are the paper's. FedTGP and FedKTL compare with `energy_end=0.95`.

Dimensions: B batch, C classes, K features, f numbers that travel, p parameters.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedsim import method
from fedsim.config import Fraction, NonNegative
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.equations.low_rank import LowRankCodec
from fedsim.errors import ContractError, UserError
from fedsim.families.auxiliary_model import MutualClient, MutualConfig, auxiliary_shapes, check, new_auxiliary
from fedsim.families.uploads import client_weights
from fedsim.learning.parameters import flatten, load_flat, weighted_mean
from fedsim.method import About, Batch, ClientContext, Reported, ServerContext, Setting, Step, Upload, filled

__all__ = ["ABOUT", "Client", "Config", "Server", "check", "contract", "rehearsal_sizes", "sizes"]

ABOUT = About(title="FedKD", paper="Wu et al., Nature Communications 2022", evaluation="largest logit")

SMALLEST_DIVISOR = 1e-6


class Config(MutualConfig, frozen=True, kw_only=True):
    """FedKD's options."""

    energy_start: Fraction = 0.95
    """T_start, the share of a matrix's energy that its factors keep in the first round."""
    energy_end: Fraction = 0.98
    """T_end, the share that it grows to."""
    feature_weight: NonNegative = 1.0
    """Weight of the comparison of hidden states; 0 leaves it out."""
    detach_divisor: bool = True
    """The sum of cross-entropies that divides the other terms is not trained through them."""

    def __post_init__(self) -> None:
        if self.energy_start > self.energy_end:
            raise UserError(
                f"method.energy_start = {self.energy_start} is above method.energy_end = {self.energy_end}, but "
                "the threshold may only grow; lower the one or raise the other."
            )

    def energy(self, round: int, num_rounds: int) -> float:
        """The threshold of a round."""
        return self.energy_start + (self.energy_end - self.energy_start) * round / num_rounds


def contract(config: Config) -> Contract:
    coded = {"factors": Field(Payload.PARAMETERS, "f"), "ranks": Field(Payload.INDEX, "matrices", "int32")}
    note = "f depends on the weights; the number is for the auxiliary model before training, at energy_start"
    return Contract(up=coded, down=coded, note=note)


def sizes(setting: Setting) -> dict[str, int]:
    return {"matrices": LowRankCodec.of(auxiliary_shapes(setting)).num_matrices}


def rehearsal_sizes(setting: Setting) -> dict[str, int]:
    auxiliary = new_auxiliary(setting)
    factors_f, _ = LowRankCodec.of(auxiliary).encode(flatten(auxiliary), setting.config.energy(0, 1))
    return {"f": len(factors_f)}


def decoded(codec: LowRankCodec, arrays: Arrays, where: str) -> np.ndarray:
    """(p,), the weights in a message; the border does not know what its two arrays say of each other."""
    try:
        return codec.decode(arrays["factors"], arrays["ranks"])
    except ValueError as error:
        raise ContractError(f"{where}: {error}") from None


class Client(MutualClient):
    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: Config = context.config
        self.codec = LowRankCodec.of(self.auxiliary)
        self.round = 0
        dim = context.task.feature_dim
        with context.streams.seeded("hidden-projection"):
            self.projection = nn.Linear(dim, dim, bias=False).to(context.device)  # W_h

    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules(), "projection": self.projection}

    def receive(self, round: int, down: Arrays) -> None:
        if down:
            where = f"client {self.context.client}, round {round}, down"
            load_flat(self.auxiliary, decoded(self.codec, down, where))

    def train(self, round: int) -> Reported:
        self.round = round
        return super().train(round)

    def upload(self) -> Arrays:
        energy = self.config.energy(self.round, self.context.experiment.run.rounds)
        factors_f, ranks_m = self.codec.encode(flatten(self.auxiliary), energy)
        return {"factors": factors_f, "ranks": ranks_m}

    def loss(self, batch: Batch) -> Tensor:
        """CE + KL / (CE + CE') + MSE / (CE + CE') of both models together."""
        features_BK, auxiliary_BK = self.model.features(batch.inputs), self.auxiliary.features(batch.inputs)
        own_BC, auxiliary_BC = self.model.head(features_BK), self.auxiliary.head(auxiliary_BK)
        own_task, own_kl = cross_entropy(own_BC, batch.labels_B), self.kl(own_BC, auxiliary_BC)
        auxiliary_task, auxiliary_kl = cross_entropy(auxiliary_BC, batch.labels_B), self.kl(auxiliary_BC, own_BC)
        task, shared = own_task + auxiliary_task, own_kl + auxiliary_kl
        if self.config.feature_weight:
            shared = shared + self.config.feature_weight * self._hidden_losses(features_BK, auxiliary_BK)
        divisor = task.detach() if self.config.detach_divisor else task
        return task + shared / divisor.clamp_min(SMALLEST_DIVISOR)

    def _hidden_losses(self, features_BK: Tensor, auxiliary_BK: Tensor) -> Tensor:
        """The same distance for both models; each moves only its own end of it if teachers are detached."""
        projected_BK = self.projection(auxiliary_BK)
        if not self.config.detach_teacher:
            return 2 * mse_loss(features_BK, projected_BK)
        return mse_loss(features_BK, projected_BK.detach()) + mse_loss(projected_BK, features_BK.detach())


class Server(method.Server):
    """Keeps nothing: the mean is all that the next round needs."""

    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        self.codec = LowRankCodec.of(auxiliary_shapes(context))

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        uploads = filled(uploads)
        if not uploads:
            return Step(down={})
        vectors = [
            decoded(self.codec, upload.arrays, f"client {upload.client}, round {round}, up") for upload in uploads
        ]
        mean_p = weighted_mean(vectors, client_weights(uploads, self.config.aggregation))
        energy = self.config.energy(round, self.context.experiment.run.rounds)
        factors_f, ranks_m = self.codec.encode(mean_p, energy)
        uploaded = [len(upload.arrays["factors"]) for upload in uploads]
        metrics = {
            "energy_threshold": energy,
            "uploaded_share": sum(uploaded) / (len(uploaded) * len(mean_p)),
            "downloaded_share": len(factors_f) / len(mean_p),
        }
        return Step(down={"factors": factors_f, "ranks": ranks_m}, metrics=metrics)
