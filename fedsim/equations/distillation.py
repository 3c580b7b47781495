"""The Kullback-Leibler divergence by which one model learns from another, whatever method it belongs to."""

from typing import Literal

from torch import Tensor
from torch.nn.functional import log_softmax

KLDirection = Literal["forward", "reverse"]


def divergence(
    student_BC: Tensor, teacher_BC: Tensor, direction: KLDirection = "forward", temperature: float = 1.0
) -> Tensor:
    """Mean over the batch of the divergence of the softmaxes of two logits, times T² as usual.

    forward: KL(teacher ‖ student), what distillation means as a rule. reverse: KL(student ‖ teacher).
    """
    student_BC = log_softmax(student_BC / temperature, dim=1)
    teacher_BC = log_softmax(teacher_BC / temperature, dim=1)
    first_BC, second_BC = (teacher_BC, student_BC) if direction == "forward" else (student_BC, teacher_BC)
    return (first_BC.exp() * (first_BC - second_BC)).sum(dim=1).mean() * temperature**2
