"""Fakes of the outside world: seeded, faulty on demand, and fast."""

from sulina.testing.clock import VirtualClock
from sulina.testing.files import Crashed, SimulatedFile, SimulatedFiles

__all__ = ["Crashed", "SimulatedFile", "SimulatedFiles", "VirtualClock"]
