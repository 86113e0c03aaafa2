"""Objects as the `Table` that `kubectl get` prints."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from .columns import BUILTIN_COLUMNS, NAME_AND_AGE, Column, age_of
from .jsonpath import value_at
from .kinds import Kind
from .resources import Object

META = "meta.k8s.io/v1"


def columns_of(kind: Kind) -> list[Column]:
    if not kind.resource.custom:
        return BUILTIN_COLUMNS.get(kind.resource.table, NAME_AND_AGE)
    return [NAME_AND_AGE[0], *map(_custom_column, kind.columns)]


def _custom_column(column: Object) -> Column:
    path, type_ = column["jsonPath"], column["type"]

    def cell(obj: Object, now: datetime) -> Any:
        value = value_at(obj, path)
        if value is None:
            return "<unknown>" if type_ == "date" else None
        if type_ == "date":
            return age_of(str(value), now)
        if type_ in ("integer", "number", "boolean"):
            return value
        return value if isinstance(value, str) else _compact(value)

    return Column(column["name"], cell, type_, wide=column.get("priority", 0) > 0)


def _compact(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{' '.join(map(_compact, value))}]"
    return str(value)


def make_table(
    kind: Kind,
    objects: Sequence[Object],
    *,
    metadata: Object,
    now: datetime,
    include_object: str = "Metadata",
    header: bool = True,
) -> Object:
    """`include_object` is None, Metadata or Object; watches send the header once only."""
    columns = columns_of(kind)
    table: Object = {"kind": "Table", "apiVersion": META, "metadata": metadata}
    table["columnDefinitions"] = (
        [
            {
                "name": column.name,
                "type": column.type,
                "format": "name" if column.name == "Name" and index == 0 else "",
                "description": "",
                "priority": 1 if column.wide else 0,
            }
            for index, column in enumerate(columns)
        ]
        if header
        else None
    )
    table["rows"] = [
        {
            "cells": [column.cell(obj, now) for column in columns],
            "object": _row_object(obj, include_object),
        }
        for obj in objects
    ]
    return table


def _row_object(obj: Object, include_object: str) -> Object | None:
    if include_object == "None":
        return None
    if include_object == "Object":
        return obj
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": obj["metadata"]}
