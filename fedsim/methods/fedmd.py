"""FedMD: clients that agree on what they say of public samples (Li and Wang, NeurIPS workshop 2019).

Server: the consensus is the mean of the clients' logits on each public sample. Client: it first learns to say the
same (digest), then goes back to its own samples with cross-entropy (revisit), and sends its logits on all public
samples. Prediction: largest logit, after the digest; `trained_accuracy` is how good clients were just before it.

What travels: up and down N_p × C logits.

Deliberate choices
- The paper's clients begin with public samples and their labels. Here public samples have no labels, so they begin
  with their own.
- The digest lowers the mean absolute difference of logits, as the authors' code does; the paper leaves it open.
  `digest_loss=mse` and `kl` (of softmaxes at `temperature`) are other choices.
- All public samples are used in every round; the authors draw 5,000 of them each time.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import l1_loss, mse_loss

from fedsim import method
from fedsim.config import AboveZero, Positive, Section
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.equations.distillation import divergence
from fedsim.families import public_samples
from fedsim.families.prototypes_and_logits import Student
from fedsim.families.public_samples import DEFAULTS, adapt, sizes, stacked
from fedsim.families.public_samples import check_samples as check
from fedsim.method import About, ClientContext, Metrics, Step, Upload, filled

__all__ = ["ABOUT", "DEFAULTS", "Client", "Config", "Server", "adapt", "check", "contract", "sizes"]

ABOUT = About(
    title="FedMD",
    paper="Li and Wang, NeurIPS workshop 2019",
    evaluation="largest logit",
    needs=("public samples",),
)


class Config(Section, frozen=True, kw_only=True):
    """FedMD's options."""

    digest_loss: Literal["l1", "mse", "kl"] = "l1"
    """l1, mse: mean absolute or squared difference of logits. kl: KL(consensus ‖ client) of softmaxes."""
    temperature: AboveZero = 1.0
    """Of these softmaxes."""
    distill_epochs: Positive = 1
    """Epochs of the digest over the public samples."""
    evaluate_after: Literal["distillation", "training"] = "distillation"
    """Which clients `accuracy` is of: those that have just digested, or as their own training left them."""
    public_data: Literal["known", "sent"] = "known"
    """known: clients own the data set and know the public samples by number. sent: once, at set-up."""
    public_dtype: Literal["float32", "uint8", "int32"] = "float32"
    """How public samples travel if they do: images as floats or bytes, texts as int32."""


def contract(config: Config) -> Contract:
    logits = {"logits": Field(Payload.LOGITS, "Np C")}
    setup_down = public_samples.setup_fields(config.public_data, config.public_dtype)
    return Contract(up=logits, down=logits, setup_down=setup_down)


def digest_loss(logits_BC: Tensor, consensus_BC: Tensor, config: Config) -> Tensor:
    match config.digest_loss:
        case "l1":
            return l1_loss(logits_BC, consensus_BC)
        case "mse":
            return mse_loss(logits_BC, consensus_BC)
        case "kl":
            return divergence(logits_BC, consensus_BC, temperature=config.temperature)


class Client(method.Client):
    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.student = Student(self)

    def receive_setup(self, down: Arrays) -> None:
        self.student.public.receive(down)

    def receive(self, round: int, down: Arrays) -> None:
        """The digest."""
        self.student.learn(round, down, self.digest, test=super().evaluate)

    def digest(self, logits_BC: Tensor, consensus_BC: Tensor) -> Tensor:
        return digest_loss(logits_BC, consensus_BC, self.context.config)

    def evaluate(self) -> Metrics:
        return self.student.before_and_after(super().evaluate())

    def upload(self) -> Arrays:
        return {"logits": self.student.public.logits()}


class Server(method.Server):
    """The consensus is all that the next round needs."""

    def setup(self, uploads: list[Upload]) -> Arrays:
        config = self.context.config
        return public_samples.setup_arrays(config.public_data, config.public_dtype, self.context.federation.public)

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        if not filled(uploads):
            return Step(down={})
        logits_MPC = stacked(uploads, "logits", self.context.device)
        consensus_PC = logits_MPC.mean(dim=0)
        agree = (logits_MPC.argmax(dim=2) == consensus_PC.argmax(dim=1)).float().mean()
        return Step({"logits": consensus_PC.cpu().numpy()}, {"agreement": float(agree)})
