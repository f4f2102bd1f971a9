"""What stands for a variable of an invoke in the code around it, until the invoke has run."""

from __future__ import annotations

from typing import Any, NoReturn

from nnsight.errors import OutsideTraceError


class Pending:
    """The value of a variable that an invoke binds, in the trace's own code and in later invokes.

    It can be passed on by name to a later invoke of the same trace, which is given the value. All other uses are
    refused: the value is not there before the trace ends.

    Attributes:
        trace: What the invokes of one trace share.
        invoke: Number of the invoke in its trace.
        name: Name of the variable in it.
        displaced: What the variable held before; `MISSING` where it was unbound.
    """

    __slots__ = ("displaced", "invoke", "name", "trace")

    def __init__(self, trace: object, invoke: int, name: str, displaced: object) -> None:
        """Stand for variable `name` of an invoke."""
        self.trace = trace
        self.invoke = invoke
        self.name = name
        self.displaced = displaced

    def refusal(self) -> OutsideTraceError:
        """Say why the value cannot be used here."""
        return OutsideTraceError(
            f"`{self.name}` is bound in invoke {self.invoke} of this trace, which runs when the trace ends, so its "
            "value is not here yet: name it in a later invoke of the same trace, or save it in its invoke and use it "
            "after the trace"
        )

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse to be used."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.refusal()

    def __repr__(self) -> str:
        """Say what it stands for."""
        return f"<{self.name} of invoke {self.invoke}, which runs when its trace ends>"

    def _refuse(self, *args: object) -> Any:
        raise self.refusal()

    __hash__ = object.__hash__
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = __delitem__ = _refuse
    __int__ = __float__ = __index__ = __neg__ = __pos__ = __abs__ = __invert__ = __enter__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = _refuse
    __rshift__ = __rrshift__ = _refuse
