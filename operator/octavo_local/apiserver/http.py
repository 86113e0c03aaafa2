"""The server's front door: who may come in, which way a path leads, and how an error looks outside.

RBAC is not enforced: there is one token, and its holder may do everything.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from . import discovery, openapi
from .errors import ApiError, bad_request, misdirected, no_such_path, too_large, unauthorized
from .resources import Object
from .store import Store
from .targets import parse_target
from .verbs import Verbs

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 3 * 1024 * 1024
_OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")
_LOCAL_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def make_app(verbs: Verbs, token: str) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.middlewares.extend([_errors_as_status, _check_host, _make_token_check(token)])
    store = verbs.store

    async def objects(request: web.Request) -> web.StreamResponse:
        return await verbs.answer(parse_target(store.kinds, request.path), request)

    async def end_streams(_: web.Application) -> None:
        verbs.end_streams()

    for path in _OPEN_PATHS[:3]:
        app.router.add_get(path, _healthy)
    app.router.add_get("/version", _version)
    _add_discovery(app, store)
    _add_openapi(app, store)
    app.router.add_route("*", "/api/{version}/{rest:.+}", objects)
    app.router.add_route("*", "/apis/{group}/{version}/{rest:.+}", objects)
    app.on_shutdown.append(end_streams)
    return app


def _add_discovery(app: web.Application, store: Store) -> None:
    kinds = store.kinds
    answers: dict[str, Callable[[web.Request], Object]] = {
        "/api": lambda _: discovery.core_versions(),
        "/apis": lambda _: discovery.group_list(kinds),
        "/api/{version}": lambda r: discovery.resource_list(kinds, "", r.match_info["version"]),
        "/apis/{group}": lambda r: discovery.group(kinds, r.match_info["group"]),
        "/apis/{group}/{version}": lambda r: discovery.resource_list(
            kinds, r.match_info["group"], r.match_info["version"]
        ),
    }
    for path, answer in answers.items():
        _add_document(app, path, answer)
        _add_document(app, f"{path}/", answer)


def _add_openapi(app: web.Application, store: Store) -> None:
    _add_document(app, "/openapi/v3", lambda _: openapi.index(store.kinds))
    _add_document(
        app,
        "/openapi/v3/{prefix:.+}",
        lambda request: openapi.document(store.kinds, request.match_info["prefix"]),
    )


def _add_document(app: web.Application, path: str, answer: Callable[[web.Request], Object]) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return _json(answer(request))

    app.router.add_get(path, handler)


async def _healthy(_: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


async def _version(_: web.Request) -> web.StreamResponse:
    return _json(discovery.version_info())


def _json(body: Object, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(body), status=status, content_type="application/json")


@web.middleware
async def _errors_as_status(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        refusal = error
    except web.HTTPRequestEntityTooLarge:
        refusal = too_large(MAX_BODY_BYTES)
    except web.HTTPNotFound:
        refusal = no_such_path()
    except web.HTTPException as error:
        refusal = ApiError(error.status, error.reason.replace(" ", ""), error.reason)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except RecursionError:
        refusal = bad_request("the body is nested too deeply")
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        refusal = ApiError(500, "InternalError", "the local API server failed; its log says how")
    return _json(refusal.status(), status=refusal.code)


@web.middleware
async def _check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A page in a browser can make any name lead to loopback; such a name is not ours."""
    if not is_local_host(request.headers.get("Host", "")):
        raise misdirected(request.headers.get("Host", ""))
    return await handler(request)


def is_local_host(header: str) -> bool:
    """Whether a Host header names this machine's loopback."""
    host = header
    if header.startswith("["):
        host = header[1:].partition("]")[0]
    elif header.count(":") == 1:
        host = header.partition(":")[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


def _make_token_check(token: str) -> Middleware:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if request.path not in _OPEN_PATHS and not hmac.compare_digest(given, expected):
            raise unauthorized()
        if any(name.lower().startswith("impersonate-") for name in request.headers):
            raise ApiError(
                403, "Forbidden", "local mode has one user and does not offer impersonation"
            )
        return await handler(request)

    return check_token
