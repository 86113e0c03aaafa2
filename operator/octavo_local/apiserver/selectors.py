"""Label selectors and field selectors, as they stand in a query string or in an object."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from .errors import bad_request
from .resources import Object

Predicate = Callable[[Object], bool]

_TERMS = re.compile(r",(?![^(]*\))")
_SET_TERM = re.compile(r"(?P<key>[^\s!=,]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^)]*)\)")
_EQUALITY_TERM = re.compile(r"(?P<key>[^\s!=,]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s!=,]*)")
_KEY_TERM = re.compile(r"(?P<negated>!?)\s*(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]*)")


def parse_label_selector(text: str) -> Callable[[Mapping[str, str]], bool]:
    """A test of labels; raises a 400 for a selector that cannot be understood."""
    tests = [_label_test(term.strip()) for term in _TERMS.split(text) if term.strip()]
    return lambda labels: all(test(labels) for test in tests)


def _label_test(term: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET_TERM.fullmatch(term):
        key = match["key"]
        values = {value.strip() for value in match["values"].split(",")}
        if match["operator"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUALITY_TERM.fullmatch(term):
        key, value = match["key"], match["value"]
        if match["operator"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _KEY_TERM.fullmatch(term):
        key, negated = match["key"], bool(match["negated"])
        return lambda labels: (key in labels) != negated
    raise bad_request(f"unable to parse requirement of the label selector: {term!r}")


def selector_text(selector: Object) -> str:
    """A `LabelSelector` object in the form of a query string, as `/scale` reports it."""
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        key, values = term["key"], ",".join(term.get("values") or [])
        terms.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[term["operator"]]
        )
    return ",".join(terms)


def parse_field_selector(text: str) -> Predicate:
    """A test of an object by values at plain paths (`metadata.name=x,status.phase!=Running`)."""
    tests: list[tuple[list[str], str, bool]] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = _EQUALITY_TERM.fullmatch(term)
        if match is None:
            raise bad_request(f"invalid field selector: {term!r}")
        tests.append((match["key"].split("."), match["value"], match["operator"] == "!="))
    return lambda obj: all((_at(obj, path) == value) != negated for path, value, negated in tests)


def _at(obj: Any, path: list[str]) -> str:
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return "" if obj is None else str(obj)
