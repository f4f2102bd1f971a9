"""Private names of a class mean in a block what they mean around it."""

from __future__ import annotations

from typing import Any

import torch

from nnsight import NNsight

MODEL = NNsight(torch.nn.Linear(2, 2))
STATES = torch.ones(1, 2)
_Holder__number = 1


class Holder:
    """Its method has a block in which every kind of statement binds a private name."""

    __factor = 3

    def plain(self) -> dict[str, Any]:
        return {"factor": self.__factor}

    def traced(self) -> dict[str, Any]:
        with MODEL.trace(STATES):
            import math as __math

            def __half(__value: float) -> float:
                return __value / 2

            class __Kept:
                __own = 5

                def read(self) -> int:
                    return self.__own

            try:
                raise KeyError("lost")
            except KeyError as __error:
                text = str(__error).save()
            match [1, 2, 3]:
                case [__first, *__rest]:
                    parts = (__first, __rest).save()
            match {"a": 1, "b": 2}:
                case {"a": __one, **__others}:
                    others = (__one, __others).save()
            root = __math.sqrt(16).save()
            half = __half(self.__factor).save()
            kept = __Kept().read().save()
            outer = __number.save()  # noqa: F821 - the global of the mangled name
            MODEL.output
        return {
            "text": text,
            "parts": parts,
            "others": others,
            "root": root,
            "half": half,
            "kept": kept,
            "outer": outer,
        }


def test_private_names_are_mangled_as_around_the_block() -> None:
    assert Holder().plain() == {"factor": 3}
    assert Holder().traced() == {
        "text": "'lost'",
        "parts": (1, [2, 3]),
        "others": (1, {"b": 2}),
        "root": 4.0,
        "half": 1.5,
        "kept": 5,
        "outer": 1,
    }
