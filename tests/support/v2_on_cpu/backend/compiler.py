"""A compiler that is never asked to compile, since every kernel is interpreted."""

from __future__ import annotations

from typing import Any

# Imported as a module: Triton takes the one subclass that it finds among the names of this one.
from triton.backends import compiler


class InterpretedBackend(compiler.BaseBackend):
    @staticmethod
    def supports_target(target: Any) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "interpreted"

    def parse_options(self, options: Any) -> Any:
        raise NotImplementedError("set TRITON_INTERPRET=1 before triton is imported")

    def add_stages(self, stages: Any, options: Any, language: Any = None) -> Any:
        raise NotImplementedError("set TRITON_INTERPRET=1 before triton is imported")

    def load_dialects(self, context: Any) -> None:
        return None

    def get_module_map(self) -> dict[str, Any]:
        return {}
