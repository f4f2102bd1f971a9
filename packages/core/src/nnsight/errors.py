"""Every error and warning that nnsight raises.

```
NNsightError
├── CaptureError                    the block cannot be taken from its source
│   ├── SourceNotFoundError         no source text for the running code
│   └── BlockEscapeError            return, break, yield or await across the block's edge
├── OutsideTraceError               a value of the model read outside a block
├── UnknownLocationError            no module, op or value of that name
├── OutOfOrderError                 a location read or written after the model moved on
├── MismatchedValueError            a replacement that does not fit its rows
├── ReadOnlyError                   an edit by a program that was sent as read-only
├── SharedValueError                an edit of a value that other requests use too
├── UntransferableValueError        a captured or saved value that cannot travel
├── WireError                       bytes that are not a valid message
├── BudgetExceededError             a block that ran or held more than it may
├── InvalidRequestError             a prompt, keyword or invoke that cannot be run
├── UnsupportedFeatureError         a combination that is refused by name
├── RequestFailedError              a block failed and its own exception cannot be rebuilt here
├── HandoverError                   an invoke needs a value of one that failed or did not bind it
├── EngineError                     the engine failed to start, died, or came up uninstrumented
│   └── MissingMainGuardError       a script started its engine outside `if __name__ == "__main__"`
├── PluginLoadError                 an installed plugin failed to load
├── PluginAnswerError               a plugin answered a hook with what it does not take
├── BackendNotFoundError            no backend or engine of that name is registered
├── UnsupportedVersionError         an installed version outside the tested range
└── DistributionConflictError       another distribution owns the same import package

NNsightWarning
├── ConflictingChangesWarning       several invokes assigned one place of a container
└── LoopEndedEarlyWarning           a loop over steps asked for more steps than the request ran
```

Each message says what happened, the value seen, and what to do instead. An error that ends a request keeps what the
block had saved before it, in `error.saves`.
"""

from __future__ import annotations


class NNsightError(Exception):
    """Root of every error that nnsight raises by itself."""


class CaptureError(NNsightError):
    """The block of a `with` statement, or a function that travels, cannot be taken from its source."""


class SourceNotFoundError(CaptureError, OSError):
    """No source text belongs to the running code, or the text found is not the one that runs."""


class BlockEscapeError(CaptureError, SyntaxError):
    """A `return`, `break`, `continue`, `yield` or `await` crosses the edge of a block."""


class OutsideTraceError(NNsightError, RuntimeError):
    """A value of the model was asked for outside a running block."""


class UnknownLocationError(NNsightError, AttributeError):
    """The model has no module, op or value of that name."""


class OutOfOrderError(NNsightError, RuntimeError):
    """A location was read or written after the model had passed it."""


class MismatchedValueError(NNsightError, ValueError):
    """A replacement does not fit the rows that it replaces."""


class ReadOnlyError(NNsightError, RuntimeError):
    """A program that was sent as read-only changed a value of the model."""


class SharedValueError(NNsightError, RuntimeError):
    """A block changed a value that every request of the batch uses."""


class UntransferableValueError(NNsightError, TypeError):
    """A value named by a block, or saved by it, cannot travel between processes."""


class WireError(NNsightError, ValueError):
    """Bytes are not a message of this version, or break its limits."""


class BudgetExceededError(NNsightError, RuntimeError):
    """A block ran more iterations and calls, or held more memory, than its budget."""


class InvalidRequestError(NNsightError, ValueError):
    """A prompt, keyword or invoke cannot be run."""


class UnsupportedFeatureError(NNsightError, NotImplementedError):
    """A feature or a combination of features is refused by name."""


class RequestFailedError(NNsightError, RuntimeError):
    """A block failed with an exception that cannot be rebuilt in this process."""


class HandoverError(NNsightError, RuntimeError):
    """An invoke needs a variable of an earlier one of its trace, which failed or ended without binding it."""


class EngineError(NNsightError, RuntimeError):
    """The engine failed to start, died, or came up without its instrumentation."""


class MissingMainGuardError(EngineError):
    """A script builds its engine at the top level, where spawned processes would build it again."""


class PluginLoadError(NNsightError, ImportError):
    """An installed plugin failed to load."""


class PluginAnswerError(NNsightError, TypeError):
    """A plugin answered a hook with something that the hook does not take."""


class BackendNotFoundError(NNsightError, LookupError):
    """No backend or engine of that name is registered."""


class UnsupportedVersionError(NNsightError, ImportError):
    """An installed package is outside the range that nnsight was tested with."""


class DistributionConflictError(NNsightError, ImportError):
    """Another installed distribution owns the same import package."""


class NNsightWarning(UserWarning):
    """Root of every warning that nnsight gives."""


class ConflictingChangesWarning(NNsightWarning):
    """Several invokes of a trace assigned one place of a container, and only the last assignment is left."""


class LoopEndedEarlyWarning(NNsightWarning):
    """A loop over steps asked for more steps than the request ran."""


__all__ = [name for name, value in list(globals().items()) if isinstance(value, type) and value.__module__ == __name__]
