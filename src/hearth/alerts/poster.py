"""Sends one post over HTTP and says what came back. Decides nothing, retries nothing, follows no redirect, uses no proxy.

The library's own texts name the URL, which is a secret: none of them leaves this module.
"""

from __future__ import annotations

import aiohttp

from hearth.alerts.answers import Answer
from hearth.alerts.payloads import Post
from hearth.alerts.resolver import DaemonResolver, Lookup, system_lookup
from hearth.version import __version__

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024


class HttpPoster:
    """Posts over aiohttp, a connection per post: there are few, and one that was kept may be dead when it is needed.

    Args:
        timeout_s: for all of it, from the name's lookup to the end of the answer.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S, lookup: Lookup = system_lookup) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._lookup = lookup
        self._session: aiohttp.ClientSession | None = None

    async def post(self, post: Post) -> Answer:
        """Send it. What goes wrong becomes the `failure` of the answer."""
        try:
            async with self._opened().post(post.url, data=post.body, headers=post.headers, allow_redirects=False) as response:
                body = await response.content.read(MAX_ANSWER_BYTES)
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Answer(status=response.status, headers=headers, body=body)
        except TimeoutError:
            return Answer(failure="timeout")
        except aiohttp.ClientSSLError:
            return Answer(failure="tls")
        except aiohttp.ClientConnectorDNSError:
            return Answer(failure="dns")
        except aiohttp.ClientConnectorError:
            return Answer(failure="connect")
        except (aiohttp.ClientError, OSError, ValueError):
            return Answer(failure="broken")

    async def aclose(self) -> None:
        """Close what is open; a later post opens it again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(resolver=DaemonResolver(self._lookup), force_close=True)
            headers = {"User-Agent": f"hearth-gateway/{__version__}"}
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=False, headers=headers)
        return self._session
