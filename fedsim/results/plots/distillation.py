"""What the methods with public samples record: the server's margins by class, and where its features lie.

The margins ξ^c(t) are FedProtoKD's figure 5. The map shows its figures 2 and 4: features that the server's model
has for public samples, coloured by pseudo-label, among the global prototypes, before and after the run.

Dimensions: C classes, P public samples, n global prototypes, K features, R rounds.
"""

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import plot
from fedsim.results.plots.prototypes import draw_embedded, draw_margin_lines, t_sne


@plot(
    "server_margins", "Margins that the server trained with",
    "One for each class: how far the server's prototype of a class is kept from those of the others.",
)  # fmt: skip
def draw_server_margins(run: LoadedRun) -> Figure | None:
    recorded = run.records("class_margins")
    if not recorded:
        return None
    figure, axes = drawing.new_axes()
    margins_RC = DataFrame([arrays["class_margins"] for arrays in recorded.values()], index=list(recorded))
    draw_margin_lines(axes, margins_RC, "margin ξ of the class")
    return figure


@plot(
    "public_map", "What the server's model makes of public samples",
    "t-SNE of its features, coloured by pseudo-label; triangles are the global prototypes.", wide=True,
)  # fmt: skip
def draw_public_map(run: LoadedRun) -> Figure | None:
    """In the first and the last round that has them."""
    names = ("public_features", "public_labels", "global_prototypes", "global_classes", "prototype_scale")
    recorded = run.records(*names)
    if not recorded:
        return None
    figure = drawing.new_figure(width=7.6, height=3.9)
    for axes, round in zip(figure.subplots(1, 2), (min(recorded), max(recorded)), strict=True):
        features_PK, labels_P, global_nK, global_n, scale = (recorded[round][name] for name in names)
        labels_P = labels_P[: len(features_PK)]
        # Clients scale the prototypes up, and so they are recorded; the server's model learns them as they are.
        draw_embedded(axes, t_sne, features_PK.astype(np.float32), labels_P, global_nK / scale, global_n)
        axes.set_title(f"round {round}")
    return figure
