"""dlrun takes a serial training script to a thousand ranks: port, verify, launch, tune."""

__version__ = "1.0.0"
