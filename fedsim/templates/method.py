"""NAME: every client's mean feature is pulled towards the mean over all clients. An example to start from.

Say here which paper it is, its equations, and every deliberate deviation.
What travels: up and down one K-vector. Evaluation: largest logit.

Try it:  fedsim check ./FILE
Run it:  fedsim run --method ./FILE --set method.pull=0.5
"""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fedsim import method
from fedsim.config import NonNegative, Section
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.learning.evaluation import outputs
from fedsim.method import Batch, Step, Upload, filled

# Letters of shapes and of names: B samples of a batch, K features.


class Config(Section, frozen=True, kw_only=True):
    """The method's options; every one has a default, and its values are checked."""

    pull: NonNegative = 1.0
    """Weight of the distance to the common mean."""


def contract(config: Config) -> Contract:
    """Everything that may travel. Anything else is refused, and the cost of a round follows from this."""
    mean = {"mean": Field(Payload.PROTOTYPES, "K")}
    return Contract(up=mean, down=mean)


class Client(method.Client):
    """A round is: receive, evaluate, train, upload. Whatever is not defined here is that of a client by itself."""

    target_K: torch.Tensor | None = None  # comes with every round, so it need not be saved

    def receive(self, round: int, down: Arrays) -> None:
        """Nothing has come down before the first aggregation, and after a round in which nobody answered."""
        self.target_K = torch.from_numpy(down["mean"]).to(self.context.device) if down else None

    def loss(self, batch: Batch) -> torch.Tensor:
        """What training lowers; the epochs, batches and learning rate are the experiment's."""
        features_BK = self.model.features(batch.inputs)
        value = cross_entropy(self.model.head(features_BK), batch.labels_B)
        if self.target_K is not None:
            value = value + self.context.config.pull * (features_BK - self.target_K).square().mean()
        return value

    def upload(self) -> Arrays:
        batches = outputs(self.model, self.data.train, self.context.device, forward=self.model.features)
        return {"mean": torch.cat([features_BK for features_BK, _ in batches]).mean(dim=0).cpu().numpy()}


class Server(method.Server):
    """Uploads come sorted by client. What is kept between rounds must be in modules() or state()."""

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        sent = filled(uploads)  # whoever dropped or was late is there too, with nothing in its arrays
        if not sent:
            return Step(down={})  # there is no mean of nothing
        mean_K = np.stack([upload.arrays["mean"] for upload in sent]).mean(axis=0)
        return Step(down={"mean": mean_K}, metrics={"mean_norm": float(np.linalg.norm(mean_K))})
