"""FedGH: one head for all clients, trained on the server with their prototypes (Yi et al., ACM MM 2023).

Client: cross-entropy, with the global head as the start of its own; then it uploads the mean feature of each
class that it holds. Server: trains the head by SGD with cross-entropy on all uploaded prototypes and their
classes. The head persists from round to round. Prediction: largest logit of the client's extractor under the
global head.

What travels: up one K-vector per class held, down the weights of a head.

Deliberate choices
- One epoch in shuffled mini-batches as large as the clients', as in the runs that later papers compare with. The
  authors take one prototype at a time: `server_batch_size=1`. (In their code the head itself is never updated.)
- Prototypes are means over samples, of the freshly trained model in evaluation mode; the authors' code takes the
  mean of the means of its batches.

Dimensions: B batch, N prototypes uploaded by all clients together.
"""

import torch
from torch.nn.functional import cross_entropy

from fedsim.config import Count, NonNegative, Positive, Section
from fedsim.contract import Arrays, Contract
from fedsim.families.shared_head import HEAD, NEEDS, SharedHeadClient, SharedHeadServer, check, sizes
from fedsim.families.uploads import PROTOTYPES, Uploaded, class_means, many_steps, pack, stack_uploads
from fedsim.learning.parameters import flatten
from fedsim.method import About, Step, Upload
from fedsim.server_optimizers.threads import one_thread

__all__ = ["ABOUT", "Client", "Config", "Server", "check", "contract", "notes", "sizes"]

ABOUT = About(title="FedGH", paper="Yi et al., ACM MM 2023", needs=NEEDS, evaluation="largest logit")
notes = many_steps


class Config(Section, frozen=True, kw_only=True):
    """FedGH's options."""

    server_epochs: Positive = 1
    """Epochs over all uploaded prototypes in each round."""
    server_batch_size: Count = 0
    """Prototypes per mini-batch on the server; 0: the clients' batch size."""
    server_lr: NonNegative = 0.0
    """Learning rate of the server; 0: the clients' learning rate."""


def contract(config: Config) -> Contract:
    return Contract(up=PROTOTYPES, down={"head": HEAD})


class Client(SharedHeadClient):
    def upload(self) -> Arrays:
        return pack(class_means(self.context).means())


class Server(SharedHeadServer):
    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        task = self.context.task
        uploaded = stack_uploads(uploads, "prototypes", task.feature_dim, task.num_classes, self.context.device)
        with self.context.stopwatch.part("head"):
            first_loss, loss = self._fit(round, uploaded)
        return Step({"head": flatten(self.head)}, {"server_loss_first": first_loss, "server_loss": loss})

    def _fit(self, round: int, uploaded: Uploaded) -> tuple[float, float]:
        """Returns the mean losses of the first and of the last epoch, 0 without prototypes."""
        config, train = self.context.config, self.context.experiment.train
        num_prototypes = len(uploaded.labels_N)
        if not num_prototypes:
            return 0.0, 0.0
        optimizer = torch.optim.SGD(self.head.parameters(), lr=config.server_lr or train.lr)
        order = self.context.streams.torch("server-order", round=round)
        means = []
        with one_thread(True):
            for _ in range(config.server_epochs):
                order_N = torch.randperm(num_prototypes, generator=order).to(self.context.device)
                total = torch.zeros((), device=self.context.device)
                for rows_B in order_N.split(config.server_batch_size or train.batch_size):
                    loss = cross_entropy(self.head(uploaded.vectors_NK[rows_B]), uploaded.labels_N[rows_B])
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    total += loss.detach() * len(rows_B)
                means.append(total / num_prototypes)
        return float(means[0]), float(means[-1])
