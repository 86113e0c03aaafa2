"""`x-kubernetes-validations`: rules in CEL that stand in the schema of a custom resource."""

import functools
from collections.abc import Iterator
from typing import Any

from .checking import shown
from .errors import Cause
from .schemas import Schema, child, item, list_key, list_keys, resolve


class InvalidRule(ValueError):
    """A rule that is no CEL expression this server can evaluate."""


@functools.lru_cache(maxsize=512)
def _program(rule: str) -> Any:
    import celpy  # takes a while to import, which a server without such rules need not
    from celpy.celparser import CELParseError

    environment = celpy.Environment()
    try:
        return environment.program(environment.compile(rule))
    except CELParseError as error:
        raise InvalidRule(f"compilation failed: {error.args[0]}: {rule}") from error


def check_rule(rule: str) -> None:
    """Raises InvalidRule for a rule that does not compile."""
    _program(rule)


def _evaluate(rule: str, value: Any, old: Any) -> Any:
    from celpy.adapter import json_to_cel

    names = {"self": json_to_cel(value)}
    if old is not None:
        names["oldSelf"] = json_to_cel(old)
    return _program(rule).evaluate(names)


def check_rules(value: Any, old: Any, schema: Schema, path: str = "") -> Iterator[Cause]:
    """Faults by the rules of `schema` and of the schemas below it.

    A rule that speaks of `oldSelf` is judged only when there is an old value to compare with.
    """
    schema = resolve(schema)
    if value is None:
        return
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" not in rule["rule"] or old is not None:
            yield from _check_rule(rule, value, old, path)
    if isinstance(value, dict):
        for key, entry in value.items():
            known = child(schema, key)
            if known is not None:
                before = old.get(key) if isinstance(old, dict) else None
                yield from check_rules(entry, before, known, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        keys = list_keys(schema)
        for index, entry in enumerate(value):
            before = _same_entry(old, entry, schema, keys) if keys else None
            yield from check_rules(entry, before, item(schema), f"{path}[{index}]")


def _same_entry(old: Any, entry: Any, schema: Schema, keys: list[str]) -> Any:
    wanted = list_key(schema, keys, entry)
    entries = old if isinstance(old, list) else []
    return next((one for one in entries if list_key(schema, keys, one) == wanted), None)


def _check_rule(rule: dict[str, Any], value: Any, old: Any, path: str) -> Iterator[Cause]:
    from celpy.evaluation import CELEvalError

    field = f"{path}{rule['fieldPath']}" if "fieldPath" in rule else path
    try:
        if bool(_evaluate(rule["rule"], value, old)):
            return
        message = rule.get("message") or f"failed rule: {rule['rule']}"
        if "messageExpression" in rule:
            message = str(_evaluate(rule["messageExpression"], value, old))
    except CELEvalError as error:
        message = f"rule {rule['rule']!r} cannot be evaluated: {error.args[0]}"
    yield Cause(field=field.lstrip("."), message=f"Invalid value: {shown(value)}: {message}")
