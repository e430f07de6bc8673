"""The exceptions of kvark. Each has a `kind`, the name that the Rust library gives the error."""


class KvarkError(Exception):
    """An error of kvark."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class InvalidArgumentError(KvarkError, ValueError):
    """An argument that is wrong: a name, a shape, a token id, an option."""


class ModelError(KvarkError):
    """A model file that cannot be read or run."""


class TextError(KvarkError):
    """A tokenizer or chat template that is missing or fails."""


class CacheError(KvarkError, RuntimeError):
    """A cache operation that the KV cache refuses, such as a rewind to rows that are gone."""


class ContextFullError(CacheError):
    """More tokens than the context has room for."""


class BackendError(KvarkError):
    """A failure of the device."""


class MemoryShortfallError(KvarkError, MemoryError):
    """A memory plan that exceeds the limit."""


class SnapshotError(KvarkError):
    """A snapshot that cannot be written, read or used with this model."""


class GrammarError(KvarkError, ValueError):
    """A grammar that cannot be used."""


class HubError(KvarkError):
    """A model that cannot be found or downloaded."""


class EngineError(KvarkError):
    """An engine that stops or whose queue is full."""


class ClosedError(KvarkError, ValueError):
    """A model, a session or a generation that was closed."""
