"""All errors of the engine. The docstring says what happened; the message says how to mend it.

EngineError
├── ConfigError        a wrong or impossible setting
├── ModelLoadError     the model folder is missing, unreadable or does not fit the code
│   └── NoChatTemplate the model has none: it completes texts only
├── AdapterLoadError   an adapter is missing, unreadable or does not fit the model
├── AdapterUnloaded    a request for an adapter that was unloaded
├── InvalidRequest     a request that can never run (prompt too long, bad parameters)
│   └── InvalidImage   an image in it that is damaged
│       ├── ImageTooLarge     too many bytes or pixels, or a side too long for the other
│       └── UnsupportedImage  no image, or of a format that is not read
├── QueueFull          admission refused: too many requests wait already
└── EngineDead         the engine process is gone or hangs
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors the engine raises."""


class ConfigError(EngineError):
    """A wrong or impossible setting."""


class ModelLoadError(EngineError):
    """The model cannot be loaded."""


class NoChatTemplate(ModelLoadError):
    """The model has no chat template."""


class AdapterLoadError(EngineError):
    """The adapter cannot be loaded."""


class AdapterUnloaded(EngineError):
    """The adapter was unloaded."""


class InvalidRequest(EngineError, ValueError):
    """A request that can never run."""


class InvalidImage(InvalidRequest):
    """An image that cannot be decoded."""


class ImageTooLarge(InvalidImage):
    """An image of too many bytes or pixels, or of a shape that the model does not see."""


class UnsupportedImage(InvalidImage):
    """No image, or one of a format that is not read."""


class QueueFull(EngineError):
    """Admission refused."""


class EngineDead(EngineError):
    """The engine process is gone or hangs."""
