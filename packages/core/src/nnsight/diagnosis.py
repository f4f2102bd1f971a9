"""What a check of an installation finds.

A backend class may offer `diagnose`, which `nnsight doctor` calls:

```python
@classmethod
def diagnose(cls, checkpoint: str | None = None, **engine_keywords: Any) -> list[Finding]: ...
```

With a checkpoint it starts an engine on it, with these keywords, and runs a trace; without one it only looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What was looked at, in a few words.
        status: `"error"` where nnsight cannot work as it is.
        found: What is there.
        advice: What to do about it; empty where there is nothing to do.
    """

    name: str
    status: Status
    found: str
    advice: str = ""
