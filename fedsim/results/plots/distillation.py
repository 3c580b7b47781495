"""What the methods with public samples record: the server's margins by class, and where its features lie.

The margins ξ^c(t) are FedProtoKD's figure 5. The map shows its figures 2 and 4: features that the server's model
has for public samples, coloured by pseudo-label, among the global prototypes, before and after the run.

Dimensions: C classes, P public samples, n global prototypes, K features, R rounds.
"""

from pathlib import Path

import numpy as np

from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.prototypes import draw_margin_lines, scatter_classes, t_sne


def draw_server_margins(run: LoadedRun, stem: Path) -> list[Path]:
    """One line for each class: the margin that the server's prototypes were trained with."""
    recorded = run.records("class_margins")
    if not recorded:
        return []
    rounds = np.array(sorted(recorded))
    margins_RC = np.stack([recorded[round]["class_margins"] for round in rounds])
    figure = drawing.new_figure()
    axes = figure.add_subplot()
    draw_margin_lines(axes, rounds, margins_RC)
    axes.set_ylabel("margin ξ of the class")
    return drawing.save(figure, stem)


def draw_public_map(run: LoadedRun, stem: Path) -> list[Path]:
    """t-SNE of the server's features of public samples with the global prototypes, first and last round."""
    names = ("public_features", "public_labels", "global_prototypes", "global_classes")
    recorded = run.records(*names)
    if not recorded:
        return []
    figure = drawing.new_figure(width=7.6, height=3.9)
    for panel, round in enumerate((min(recorded), max(recorded))):
        features_PK, labels_P, global_nK, global_n = (recorded[round][name] for name in names)
        points_2 = t_sne(np.concatenate([features_PK.astype(np.float32), global_nK]))
        axes = figure.add_subplot(1, 2, panel + 1)
        num_samples = len(features_PK)
        scatter_classes(axes, points_2[:num_samples], labels_P[:num_samples], points_2[num_samples:], global_n)
        axes.set_title(f"round {round}")
    return drawing.save(figure, stem)
