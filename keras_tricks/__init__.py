"""What a deep-learning engineer learns the hard way about training loops, as Keras callbacks."""

__version__ = "0.1.0"

__all__ = ["__version__"]
