"""unhang under the name that the scripts of the MIOpen bypass import."""

from unhang._bypass import *  # noqa: F403
from unhang._bypass import __all__ as __all__
