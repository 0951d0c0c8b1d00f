"""Every error that mpiter raises of its own accord: the type names the cause, the text the remedy.

Plain values, raised in the consumer's thread.  An error that a *dataset* raises keeps its own type; what is
here is only what mpiter itself has to say.  Each class also derives from the builtin that a caller would
expect for that cause, so ``except ValueError`` goes on working.
"""


class MpiterError(Exception):
    """Base of all errors that mpiter raises of its own accord."""


class OptionError(MpiterError, ValueError):
    """An argument, or a combination of arguments, makes no sense."""


class StateError(MpiterError, ValueError):
    """A saved state cannot be loaded here; the iterator is unchanged."""


class DatasetNotPicklable(MpiterError, TypeError):
    """The dataset cannot be sent to worker processes; the text names the attribute."""


class SampleNotSendable(MpiterError, TypeError):
    """A sample cannot be brought back from a worker; the text names index and type."""


class SampleError(MpiterError, RuntimeError):
    """A dataset raised something that cannot travel (or must not, like StopIteration)."""


class WorkerStartError(MpiterError, RuntimeError):
    """A worker could not begin: import, unpickling the dataset or ``worker_init`` failed."""


def could_not_start(error: Exception) -> WorkerStartError:
    """For what the system refuses."""
    return WorkerStartError(
        f"the workers cannot be started: {error}. Look at the limits (ulimit -u, -n, -v), or use fewer."
    )


class WorkerCrashed(MpiterError, RuntimeError):
    """A sample ends its worker each time, or the workers keep dying; the text says how, and why perhaps."""


class BatchTimeout(MpiterError, RuntimeError, TimeoutError):
    """A batch did not come within the loader's ``timeout``; it may still come."""


class SharedMemoryFull(MpiterError, MemoryError):
    """The slots do not fit into memory; the text has the numbers."""


class IteratorClosed(MpiterError, NotImplementedError):
    """The iterator was closed; make a new one."""


class RemoteTraceback(Exception):
    """The traceback text of a worker, chained as ``__cause__`` of the error it belongs to."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
