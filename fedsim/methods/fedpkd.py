"""FedPKD: prototype-based ensemble distillation with filtered public samples (Lyu et al., ICDCS 2023).

No code was published, and this follows the description in FedProtoKD's paper (Hossen et al. 2025), which
compares with it under the same settings; equation numbers are that paper's.

Client: FedProtoKD's (Eq. 3 and 14 to 19), but it also sends how many samples of each class it has.
Server: the clients' logits weighted by their variance (Eq. 4) and their prototypes weighted by those
numbers (Eq. 2). Of the samples of each pseudo-class it keeps the share θ whose features, by its model at
the start of the round, are nearest to the prototype; the model learns Υ (KL + CE) + (1 − Υ) MSE to the
prototypes from these alone, and clients are sent its logits for these alone. Prediction: largest logit.
`server_accuracy`: the model on the global test set.

What travels: up N_p × C logits, one K-vector and a count per class held; down the logits of the kept
samples, their numbers, and one K-vector per class that any client sent this round.

Ours: the further factor 1/|N_c| of Eq. 2 is left out, since it would shrink every prototype. The numbers
kept per class are rounded so that θ · N_p samples are kept in all. A sample whose pseudo-class has no
prototype is the farthest of all and is not pulled anywhere. All that FedProtoKD's page says of KL,
optimizer and epochs holds here too.
"""

import torch
from torch import nn

from fedsim.config import Fraction
from fedsim.contract import Arrays, Contract, Field, Payload, sample_ids
from fedsim.equations.public_distillation import (
    Lesson,
    aggregate_logits,
    distances_to_class,
    nearest_share,
    num_kept,
)
from fedsim.families import public_samples
from fedsim.families.prototypes import PrototypeServer
from fedsim.families.prototypes_and_logits import DualConfig, after_the_lesson, dual_contract
from fedsim.families.public_samples import DEFAULTS, NEEDS, stacked
from fedsim.families.server_model import ServerModel, adapt, check
from fedsim.families.uploads import mean_per_class
from fedsim.method import About, ServerContext, Setting, Step, Upload, filled
from fedsim.methods.fedprotokd import Client

__all__ = ["ABOUT", "DEFAULTS", "Client", "Config", "Server", "adapt", "check", "contract", "sizes"]

ABOUT = About(
    title="FedPKD",
    paper="Lyu et al., ICDCS 2023",
    evaluation="largest logit; server model on the global test set",
    needs=NEEDS,
)


class Config(DualConfig, frozen=True, kw_only=True):
    """FedPKD's options."""

    theta: Fraction = 0.8
    """θ, the share of the public samples of each pseudo-class that is kept."""

    @property
    def sends_counts(self) -> bool:
        return True


def contract(config: Config) -> Contract:
    base = dual_contract(config)
    kept = {"logits": Field(Payload.LOGITS, "kept C"), "sample_ids": sample_ids("kept")}
    return Contract(up=base.up, down={**base.down, **kept}, setup_down=base.setup_down)


def sizes(setting: Setting) -> dict[str, int]:
    own = public_samples.sizes(setting)
    return own | {"kept": num_kept(own["Np"], setting.config.theta)}


class Server(PrototypeServer):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        self.pupil = ServerModel(context, self.config.adam)

    def setup(self, uploads: list[Upload]) -> Arrays:
        return public_samples.setup_arrays(self.config.public_data, self.config.public_dtype, self.pupil.public)

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        if not filled(uploads):
            return Step(down={})  # nobody who answered counts, and clients go on with what they have
        config, num_classes = self.config, self.context.task.num_classes
        # 1. Prototypes weighted by the clients' numbers of samples (Eq. 2).
        uploaded = self.stack(uploads)
        with self.context.stopwatch.part("prototypes"):
            prototypes = mean_per_class(uploaded, num_classes)
        # 2. The clients' logits become one opinion on each public sample (Eq. 4), and that a pseudo-label (Eq. 8).
        opinions_PC = aggregate_logits(stacked(uploads, "logits", self.context.device), config.logit_weighting)
        labels_P = opinions_PC.argmax(dim=1)
        # 3. The filter: of each pseudo-class the share θ that is nearest to its prototype is kept.
        distances_P = distances_to_class(self.pupil.features(), labels_P, prototypes)
        rows_k = nearest_share(distances_P, labels_P, config.theta, num_classes)
        # 4. From these the server's model learns Υ (KL + CE) + (1 − Υ) MSE to the prototypes (Eq. 11 to 13).
        lesson = Lesson(
            opinions_PC,
            labels_P,
            torch.ones_like(distances_P),
            prototypes,
            config.upsilon,
            config.server_kl,
            config.temperature,
        )
        mean_loss = self.pupil.learn(round, lesson.loss, rows_k)
        # 5. Its logits for these go down beside the prototypes.
        logits_PC, metrics, records = after_the_lesson(self.pupil, mean_loss, labels_P)
        kept = {"sample_ids": rows_k.to(torch.int32).cpu().numpy()}
        return self.step(round, uploaded, prototypes).plus(
            {"logits": logits_PC[rows_k].cpu().numpy(), **kept},
            metrics | self.test(round, self.pupil.model),
            records | kept,
        )

    def modules(self) -> dict[str, nn.Module]:
        return {"server_model": self.pupil.model}
