"""What all tests share: clients in Python read the certificates of public authorities once, not for each request. That takes 50 ms of
processor, and there are thousands of requests, none of which goes to anybody whom these authorities know."""

import functools
import os
import ssl

PUBLIC = {os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)}
try:
    import certifi

    PUBLIC.add(certifi.where())
except ImportError:  # then no client reads those
    pass

create_context = ssl.create_default_context
of_public_authorities = functools.lru_cache(maxsize=None)(create_context)


def create_context_once(*args, **options):
    once = not args and len(options) == 1 and {"cafile", "capath"} & set(options) and set(options.values()) <= PUBLIC
    return of_public_authorities(**options) if once else create_context(*args, **options)


ssl.create_default_context = create_context_once
