"""Local training only: no client learns anything from another. The baseline that every method must beat.

Loss: cross-entropy. What travels: nothing. Evaluation: largest logit.
"""

from fedsim import method
from fedsim.config import Section
from fedsim.contract import Contract
from fedsim.method import About

ABOUT = About(title="Local", paper="every client by itself", evaluation="largest logit")


class Config(Section, frozen=True, kw_only=True):
    """There is nothing to choose."""


def contract(config: Config) -> Contract:
    return Contract()


class Client(method.Client):
    """Cross-entropy, and the largest logit, are what every client has unless its method says otherwise."""


class Server(method.Server):
    """Has nothing to do."""
