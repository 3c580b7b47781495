"""FedAvg: clients train copies of one model, the server averages them (McMahan et al., AISTATS 2017).

Client: starts from the global model and trains it with cross-entropy. Server: w ← Σ nᵢ wᵢ / Σ nᵢ over the clients
that answered, nᵢ being their numbers of training samples. Prediction: largest logit.

What travels: up and down all weights. The first round needs no download, because all clients draw the same initial
weights from the common seed.

Deliberate choices
- The accuracy is that of the global model on each client's own test set, as in the published runs.
  `evaluation=personalised` tests the copy that a client trained last.
- Running statistics of batch normalisation stay with the clients, as in PFLlib; `buffers=averaged` shares them.
- The published runs shuffle and use a learning rate of 0.005: `train.shuffle`, `train.lr`.
- A client with fewer samples than a batch sends back what it got, and counts as the others do.
"""

from fedsim.families.whole_model import SharingClient, SharingConfig, SharingServer, adapt, check, contract, sizes
from fedsim.method import About

__all__ = ["ABOUT", "Client", "Config", "Server", "adapt", "check", "contract", "sizes"]

ABOUT = About(
    title="FedAvg",
    paper="McMahan et al., AISTATS 2017",
    needs=("equal models",),
    evaluation="largest logit of the global model",
)


class Config(SharingConfig, frozen=True, kw_only=True):
    """FedAvg's options."""


class Client(SharingClient):
    """Trains with cross-entropy alone."""


class Server(SharingServer):
    """w ← Σ nᵢ wᵢ / Σ nᵢ."""
