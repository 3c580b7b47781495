"""What the methods with one head for all clients share: LG-FedAvg, FedGen and FedGH.

Extractors stay private and may differ; heads must be alike. All clients begin with the same head, drawn from the
common seed, where the published runs send around that of the first client. A client evaluates with the head that
it has just received, before its own training changes it.
"""

from torch import nn

from fedsim import models
from fedsim.config import Section
from fedsim.contract import Arrays, Field, Payload
from fedsim.errors import UserError
from fedsim.families.uploads import Aggregation, mean_of
from fedsim.learning.parameters import flatten, load_flat, num_parameters
from fedsim.method import Client, ClientContext, Server, ServerContext, Setting, Upload
from fedsim.models import groups
from fedsim.models.heads import make_head

NEEDS = ("equal heads",)
HEAD = Field(Payload.PARAMETERS, "head")


class HeadMeanConfig(Section, frozen=True, kw_only=True):
    """Options of the methods whose server averages heads."""

    aggregation: Aggregation = "weighted"
    """weighted: a client counts by its number of training samples. mean: every client counts alike."""


def sizes(setting: Setting) -> dict[str, int]:
    """The letter for the weights of a head."""
    return {"head": num_parameters(setting.model(0).head)}


def check(setting: Setting) -> None:
    first = setting.model(0)
    for client in range(1, setting.task.num_clients):
        other = setting.model(client)
        # The text of a module names its layers and their sizes; sizes alone would not tell ReLU from Tanh.
        if str(other.head) != str(first.head):
            raise UserError(
                f"{setting.experiment.method_name} shares one head among all clients, but in model.group = "
                f"{setting.experiment.model.group} the heads of {first.name} and {other.name} differ; "
                "choose a group with equal heads, such as HtFE8."
            )


def initial_head(context: ClientContext | ServerContext) -> nn.Module:
    """The head that everyone has before the first aggregation."""
    model, task = context.experiment.model, context.task
    entry = groups.entry(model, 0)
    with context.streams.seeded("shared-head"):
        if entry.is_elsewhere:  # it may have brought a head of its own
            head = models.build(model, 0, task.input_shape, task.num_classes).head
        else:
            head = make_head(entry, model, task.num_classes)
    return head.to(context.device)


class SharedHeadClient(Client):
    """Trains extractor and head with cross-entropy, and uploads the head."""

    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.model.head = initial_head(context)

    def receive(self, round: int, down: Arrays) -> None:
        if down:
            load_flat(self.model.head, down["head"])

    def upload(self) -> Arrays:
        return {"head": flatten(self.model.head)}


class SharedHeadServer(Server):
    """Keeps the head that goes down."""

    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.head = initial_head(context)

    def average_heads(self, uploads: list[Upload]) -> None:
        """Makes it the mean of the uploaded ones; it stays as it is where nobody uploaded."""
        if uploads:
            load_flat(self.head, mean_of(uploads, "head", self.context.config.aggregation))

    def modules(self) -> dict[str, nn.Module]:
        return {"head": self.head}
