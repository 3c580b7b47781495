"""FedProto: class prototypes averaged over clients (Tan et al., AAAI 2022; equations as in FedTGP's paper).

Client: cross-entropy + λ · φ(feature, global prototype of its class), Eq. 4; cross-entropy alone in the first
round. Server: P̄_c = mean over the clients that hold class c, Eq. 3. Prediction: nearest global prototype.

What travels: up one K-vector per class held, down one per class that any client sent this round.

Deliberate choices
- The mean is unweighted, as in all published runs; `aggregation=weighted` weighs by class counts, which then
  travel too. The further factor 1/|N_c| of Eq. 3 is left out: it would shrink every prototype.
- φ is the element-mean squared error with λ = 10 of the published runs; `distance=l2` gives the printed pair
  (Euclidean, λ = 0.1). It is taken per sample, not per class mean.
- Prototypes are the mean features of the training pass, as published; `prototypes_from=eval_pass` takes them
  after training.
"""

from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsim.families.prototypes import PrototypeClient, PrototypeConfig, PrototypeServer, prototype_contract
from fedsim.families.uploads import mean_per_class
from fedsim.method import About, Batch, Step, Upload

ABOUT = About(title="FedProto", paper="Tan et al., AAAI 2022", evaluation="nearest global prototype")
contract = prototype_contract


class Config(PrototypeConfig, frozen=True, kw_only=True):
    """FedProto's options."""

    prototypes_from: Literal["train_pass", "eval_pass"] = "train_pass"
    """train_pass: mean of the features seen in training. eval_pass: of a pass in evaluation mode after it."""
    aggregation: Literal["mean", "weighted"] = "mean"
    """mean: every client counts alike. weighted: by its samples of the class; their counts travel too."""

    @property
    def sends_counts(self) -> bool:
        return self.aggregation == "weighted"


class Client(PrototypeClient):
    def loss(self, batch: Batch) -> Tensor:
        """Eq. 4: cross-entropy + λ · φ(feature, global prototype of its class)."""
        features_BK = self.features(batch)
        own = cross_entropy(self.model.head(features_BK), batch.labels_B)
        return own + self.pull(features_BK, batch.labels_B)


class Server(PrototypeServer):
    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        """Eq. 3: the mean over the clients that hold a class."""
        uploaded = self.stack(uploads)
        with self.context.stopwatch.part("prototypes"):
            means = mean_per_class(uploaded, self.context.task.num_classes)
        return self.step(round, uploaded, means)
