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
    average_heads,
    check_equal_heads,
    head_sizes,
)
from fedsim.learning.parameters import flatten
from fedsim.method import About, Step, Upload, filled

ABOUT = About(title="LG-FedAvg", paper="Liang et al., 2020", needs=NEEDS, evaluation="largest logit")

check = check_equal_heads
sizes = head_sizes


class Config(HeadMeanConfig, frozen=True, kw_only=True):
    """LG-FedAvg's options."""


def contract(config: Config) -> Contract:
    return Contract(up={"head": HEAD}, down={"head": HEAD})


class Client(SharedHeadClient):
    """A client with a shared head as it is."""


class Server(SharedHeadServer):
    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        average_heads(self.head, filled(uploads), self.context.config.aggregation)
        return Step(down={"head": flatten(self.head)})
