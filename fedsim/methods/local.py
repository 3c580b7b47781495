"""Local training only: no client learns anything from another. The baseline that every method must beat.

Loss: cross-entropy. What travels: nothing. Evaluation: largest logit.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsim import method
from fedsim.config import Section
from fedsim.contract import Contract
from fedsim.learning.evaluation import count_correct
from fedsim.learning.training import Batch, train_locally
from fedsim.method import About, Metrics

ABOUT = About(title="Local", paper="every client by itself", evaluation="largest logit")


class Config(Section, frozen=True, kw_only=True):
    """There is nothing to choose."""


def contract(config: Config) -> Contract:
    return Contract()


class Client(method.Client):
    def evaluate(self) -> Metrics:
        return count_correct(self.model, self.data.test, self.context.device)

    def train(self, round: int) -> Metrics:
        def loss(batch: Batch) -> Tensor:
            return cross_entropy(self.model(batch.inputs), batch.labels_B)

        return {"loss": train_locally(self.context, round, loss)}


class Server(method.Server):
    """Has nothing to do."""
