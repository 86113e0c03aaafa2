"""The JSONPath of printer columns and of `/scale`: fields, indexes and equality filters."""

import functools
import re
from typing import Any

_STEP = re.compile(
    r"\.(?P<field>(?:[^.\[\]\\]|\\.)+)"
    r"|\[(?P<index>-?\d+)\]"
    r"|\[['\"](?P<quoted>[^'\"]+)['\"]\]"
    r"|\[\?\(\s*@\.(?P<filter_field>[\w.]+)\s*==\s*['\"](?P<filter_value>[^'\"]*)['\"]\s*\)\]"
)

Step = str | int | tuple[str, str]


class InvalidPath(ValueError):
    """A JSONPath that this server does not understand."""


@functools.lru_cache(maxsize=256)
def parse_path(path: str) -> tuple[Step, ...]:
    """Steps of a path: a field, an index, or (field, value) that picks the matching list entry."""
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise InvalidPath(f"cannot read {path[position:]!r} in the JSONPath {path!r}")
        position = match.end()
        if match["field"] is not None:
            steps.append(re.sub(r"\\(.)", r"\1", match["field"]))
        elif match["index"] is not None:
            steps.append(int(match["index"]))
        elif match["quoted"] is not None:
            steps.append(match["quoted"])
        else:
            steps.append((match["filter_field"], match["filter_value"]))
    return tuple(steps)


def value_at(obj: Any, path: str) -> Any:
    """The value at a path, None if there is none."""
    for step in parse_path(path):
        if isinstance(step, str):
            obj = obj.get(step) if isinstance(obj, dict) else None
        elif not isinstance(obj, list):
            return None
        elif isinstance(step, int):
            obj = obj[step] if -len(obj) <= step < len(obj) else None
        else:
            field, wanted = step
            obj = next(
                (one for one in obj if isinstance(one, dict) and str(one.get(field)) == wanted),
                None,
            )
    return obj


def set_value_at(obj: dict[str, Any], path: str, value: Any) -> None:
    """Writes at a path of plain fields, making the objects on the way."""
    *way, last = parse_path(path)
    for step in way:
        assert isinstance(step, str), path
        obj = obj.setdefault(step, {})
    assert isinstance(last, str), path
    obj[last] = value
