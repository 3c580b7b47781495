"""LG-FedAvg: private extractors, one head averaged over clients (Liang et al., 2020).

Client: cross-entropy, with the global head as the start of its own. Server: h = Σ (nᵢ / Σn) hᵢ over the clients
of the round. Prediction: largest logit of the client's extractor under the global head.

What travels: up and down the weights of a head, K·C + C numbers where it is one linear layer.

Deliberate choices
- Clients count by their training samples, as in the runs that later papers compare with; `aggregation=mean` is
  the plain mean of the authors' code.
- Training starts from random weights. The authors start from models trained by FedAvg, which need one
  architecture for all.
"""

from fedsim.contract import Contract
from fedsim.families.shared_head import (
    HEAD,
    NEEDS,
    HeadMeanConfig,
    SharedHeadClient,
    SharedHeadServer,
    check,
    sizes,
)
from fedsim.learning.parameters import flatten
from fedsim.method import About, Step, Upload, filled

__all__ = ["ABOUT", "Client", "Config", "Server", "check", "contract", "sizes"]

ABOUT = About(title="LG-FedAvg", paper="Liang et al., 2020", needs=NEEDS, evaluation="largest logit")


class Config(HeadMeanConfig, frozen=True, kw_only=True):
    """LG-FedAvg's options."""


def contract(config: Config) -> Contract:
    return Contract(up={"head": HEAD}, down={"head": HEAD})


class Client(SharedHeadClient):
    """Trains with cross-entropy alone."""


class Server(SharedHeadServer):
    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        self.average_heads(filled(uploads))
        return Step(down={"head": flatten(self.head)})
