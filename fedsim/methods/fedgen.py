"""FedGen: a generator of features, trained on the server, teaches the clients' heads (Zhu et al., ICML 2021).

The generator G turns a label and uniform noise into a feature vector: Linear, BatchNorm, ReLU, Linear. Server:
trains G so that the clients' heads together recognise what it makes,

    CE( Σ (nᵢ / Σn) hᵢ(G(y)), y ),  labels y drawn as often as all clients together hold them,

then averages the heads as LG-FedAvg does. Client: cross-entropy on its own samples + CE(h(G(ỹ)), ỹ) for a batch
of drawn labels ỹ. Prediction: largest logit of the client's extractor under the global head.

What travels: once at the start, up how many training samples of each class a client holds, down their sums over
all clients; in each round up the weights of a head, down those of the head and of G.

Deliberate choices
- This is the form of the runs that later papers compare with: only heads are shared. The authors share whole
  models, and add a term for the diversity of features and a distillation term.
- G keeps what it learned from round to round. In the published code the trained G was never stored, so clients
  always had the random one of the start: `frozen_generator=true`. The published learning rate of 0.1 was
  therefore without effect there. Here it makes losses on generated features that rise into the hundreds and fall
  again; with `generator_lr=0.005` they stay small.
- That first G comes from the common seed, and clients use it from the first round on, as published.
- G is normalised by each batch, on clients too, so it has no running statistics to send.
- Counts are of all training samples; the published code leaves out those that `drop_last` leaves out.

Dimensions: B batch, C classes, K features, Z noise, m uploads.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy, one_hot

from fedsim.config import AboveZero, Count, NonNegative, Positive
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.data.feeding import to_device
from fedsim.errors import ContractError, UserError
from fedsim.families import shared_head
from fedsim.families.shared_head import HEAD, NEEDS, HeadMeanConfig, SharedHeadClient, SharedHeadServer
from fedsim.families.uploads import client_weights
from fedsim.learning.parameters import flatten, load_flat, num_parameters
from fedsim.method import (
    About,
    Batch,
    ClientContext,
    Metrics,
    Reported,
    ServerContext,
    Setting,
    State,
    Step,
    Task,
    Upload,
    filled,
)
from fedsim.server_optimizers.threads import one_thread

ABOUT = About(title="FedGen", paper="Zhu et al., ICML 2021", needs=NEEDS, evaluation="largest logit")


class Config(HeadMeanConfig, frozen=True, kw_only=True):
    """FedGen's options."""

    generated_weight: NonNegative = 1.0
    """The weight of the loss on generated features."""
    generated_batch_size: Count = 0
    """Labels drawn for each step, on clients and server, at least 2; 0: the clients' batch size."""
    noise_dim: Positive = 32
    """Z, the size of the generator's noise."""
    hidden_dim: Count = 0
    """The size of the generator's hidden layer; 0: K."""
    server_steps: Positive = 100
    """Mini-batches that the generator is trained with in each round."""
    generator_lr: AboveZero = 0.1
    """Learning rate of Adam, which is made anew in each round."""
    frozen_generator: bool = False
    """Never train the generator: clients keep getting the random one of the start, as in the published runs."""


def contract(config: Config) -> Contract:
    return Contract(
        up={"head": HEAD},
        down={"head": HEAD, "generator": Field(Payload.PARAMETERS, "gen")},
        setup_up={"counts": Field(Payload.COUNTS, "C", "int32")},
        setup_down={"counts": Field(Payload.COUNTS, "C", "int64")},
    )


def sizes(setting: Setting) -> dict[str, int]:
    with torch.device("meta"):
        generator = Generator(setting.config, setting.task)
    return {**shared_head.sizes(setting), "gen": num_parameters(generator)}


def check(setting: Setting) -> None:
    shared_head.check(setting)
    batch_size = setting.config.generated_batch_size or setting.experiment.train.batch_size
    if batch_size < 2:
        raise UserError(
            "fedgen normalises generated features over a batch, which needs at least 2 of them; "
            "set method.generated_batch_size = 2 or more."
        )


class Generator(nn.Module):
    """Labels and noise in, features out. Its weights are drawn from torch's global generator."""

    def __init__(self, config: Config, task: Task):
        super().__init__()
        self.num_classes, self.noise_dim = task.num_classes, config.noise_dim
        hidden_dim = config.hidden_dim or task.feature_dim
        # Normalisation takes this layer's bias out again; it is here because the published cost counts it.
        self.hidden = nn.Linear(self.noise_dim + self.num_classes, hidden_dim)
        self.norm = nn.BatchNorm1d(hidden_dim, track_running_stats=False)
        self.output = nn.Linear(hidden_dim, task.feature_dim)

    def forward(self, labels_B: Tensor, noise_BZ: Tensor) -> Tensor:
        inputs = torch.cat([noise_BZ, one_hot(labels_B, self.num_classes).to(noise_BZ.dtype)], dim=1)
        return self.output(torch.relu(self.norm(self.hidden(inputs))))


def initial_generator(context: ClientContext | ServerContext) -> Generator:
    with context.streams.seeded("feature-generator"):
        generator = Generator(context.config, context.task)
    return generator.to(context.device)


class Draws:
    """Labels, as often as all clients together hold them, and noise for the generator."""

    def __init__(self, context: ClientContext | ServerContext, counts_C: np.ndarray, random: torch.Generator):
        config: Config = context.config
        self.num = config.generated_batch_size or context.experiment.train.batch_size
        self.noise_dim = config.noise_dim
        self.device, self.random = context.device, random
        self.weights_C = torch.from_numpy(counts_C).double()

    def batch(self) -> tuple[Tensor, Tensor]:
        """(B,) labels and (B, Z) noise."""
        labels_B = torch.multinomial(self.weights_C, self.num, replacement=True, generator=self.random)
        noise_BZ = torch.rand(self.num, self.noise_dim, generator=self.random)
        return to_device(labels_B, self.device), to_device(noise_BZ, self.device)


class Client(SharedHeadClient):
    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.generator = initial_generator(context)
        self.counts_C = self.data.class_counts  # its own, until it is told everyone's

    def setup(self) -> Arrays:
        return {"counts": self.data.class_counts.astype(np.int32)}

    def receive_setup(self, down: Arrays) -> None:
        self.counts_C = down["counts"]

    def receive(self, round: int, down: Arrays) -> None:
        super().receive(round, down)
        if down:
            load_flat(self.generator, down["generator"])

    def train(self, round: int) -> Reported:
        context = self.context
        random = context.streams.torch("generated", client=context.client, round=round)
        self.draws = Draws(context, self.counts_C, random)
        return super().train(round)

    def loss(self, batch: Batch) -> Tensor:
        """CE(h(f(x)), y) + CE(h(G(ỹ)), ỹ) for as many drawn labels ỹ."""
        labels_B, noise_BZ = self.draws.batch()
        with torch.no_grad():  # the generator is trained on the server only
            generated_BK = self.generator(labels_B, noise_BZ)
        own = cross_entropy(self.model(batch.inputs), batch.labels_B)
        generated = cross_entropy(self.model.head(generated_BK), labels_B)
        return own + self.context.config.generated_weight * generated

    def state(self) -> State:
        # The generator comes again with every round.
        return super().state() | {"counts": self.counts_C}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.counts_C = state["counts"].copy()


class Server(SharedHeadServer):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        self.head.requires_grad_(False)  # it is averaged; only the generator is trained here
        self.generator = initial_generator(context)
        self.counts_C = np.ones(context.task.num_classes, np.int64)  # until clients tell theirs

    def setup(self, uploads: list[Upload]) -> Arrays:
        counts_mC = np.stack([upload.arrays["counts"] for upload in uploads])
        if counts_mC.min() < 0:
            client = uploads[int(counts_mC.min(axis=1).argmin())].client
            raise ContractError(f"client {client}: field 'counts' must not be negative")
        self.counts_C = counts_mC.sum(axis=0, dtype=np.int64)
        return {"counts": self.counts_C}

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        uploads = filled(uploads)
        self.average_heads(uploads)
        metrics: Metrics = {}
        if uploads and not self.config.frozen_generator:
            with self.context.stopwatch.part("generator"):
                metrics = self._fit(round, self._ensemble(uploads))
        return Step({"head": flatten(self.head), "generator": flatten(self.generator)}, metrics)

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | {"generator": self.generator}

    def state(self) -> State:
        return super().state() | {"counts": self.counts_C}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.counts_C = state["counts"].copy()

    def _ensemble(self, uploads: list[Upload]) -> Callable[[Tensor], Tensor]:
        """Features to Σ (wᵢ / Σw) hᵢ(features). Of linear heads that is the averaged head."""
        if isinstance(self.head, nn.Linear):
            return self.head
        device = self.context.device
        weights = client_weights(uploads, self.config.aggregation)
        shares_m = torch.tensor(weights, dtype=torch.float32, device=device) / sum(weights)
        vectors_mp = torch.from_numpy(np.stack([upload.arrays["head"] for upload in uploads])).to(device)
        named = dict(self.head.named_parameters())
        pieces = vectors_mp.split([weight.numel() for weight in named.values()], dim=1)
        stacked = {
            name: piece.reshape(-1, *weight.shape)
            for (name, weight), piece in zip(named.items(), pieces, strict=True)
        }

        def logits(features_BK: Tensor) -> Tensor:
            logits_mBC = vmap(lambda weights: functional_call(self.head, weights, (features_BK,)))(stacked)
            return torch.tensordot(shares_m, logits_mBC, dims=1)

        return logits

    def _fit(self, round: int, ensemble: Callable[[Tensor], Tensor]) -> Metrics:
        """Train the generator against the heads."""
        context, config = self.context, self.config
        draws = Draws(context, self.counts_C, context.streams.torch("generated", round=round))
        optimizer = torch.optim.Adam(self.generator.parameters(), lr=config.generator_lr)
        losses = []
        with one_thread(True):
            for _ in range(config.server_steps):
                labels_B, noise_BZ = draws.batch()
                loss = cross_entropy(ensemble(self.generator(labels_B, noise_BZ)), labels_B)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        optimizer.zero_grad(set_to_none=True)
        return {"server_loss_first": float(losses[0]), "server_loss": float(torch.stack(losses).mean())}
