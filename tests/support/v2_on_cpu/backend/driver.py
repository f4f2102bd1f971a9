"""A driver that is active and has no device of its own."""

from __future__ import annotations

from typing import Any

from triton.backends import driver


class InterpretedDriver(driver.DriverBase):
    def __init__(self) -> None:
        """Load no library."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is compiled here")

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", "interpreted", 1)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is tuned here")
