"""Names of environment variables: which are well-formed, and which look like credentials.

The second rule has to hold in three places that must agree: in the API server (CEL, whose regular
expressions are RE2 and know no lookaround), in Python, and in the agent when it reads an image's
own environment. So it is one regular expression in the common subset of RE2 and Python, made here
from word lists; nothing else decides.

It looks for words, not for letters. `MYTOKEN`, `APIKEY` and `KEY_API` are credentials though
nothing separates their words; `MAX_TOKENS`, `KEYBOARD_LAYOUT` and `SECRETARIAT_REGION` are not,
because what follows the word makes another word of it.
"""

import re
from collections.abc import Iterable

NAME_PATTERN = "^[A-Za-z_][A-Za-z0-9_]*$"
"""What a name must be: RE2, anchored."""

MAX_NAME_LENGTH = 256
MAX_VALUE_BYTES = 32 * 1024

_END = "$"  # in the word lists below: the end of the name


def _not_followed_by(words: Iterable[str]) -> str:
    """A pattern for whatever may follow when none of `words` follows; RE2 has no `(?!…)`."""
    heads: dict[str, list[str]] = {}
    for word in words:
        heads.setdefault(word[:1], []).append(word[1:])
    others = "".join(sorted(head for head in heads if head != _END))
    alternatives = [f"[^{others}]"] if others else ["."]
    if _END not in heads:
        alternatives.append(_END)
    for head, rests in sorted(heads.items()):
        if head != _END and "" not in rests:
            alternatives.append(head + _not_followed_by(rests))
    return f"(?:{'|'.join(alternatives)})"


_GAP = "[^A-Za-z0-9]*"
_ACCOUNTS = (
    "admin|database|db|ftp|imap|ldap|mail|mongo|mongodb|mysql|oracle|pg|pgsql|postgres|proxy|rabbitmq"
    "|redis|root|smtp|sql|ssh|sudo|svn|user"
)
_KEYS = (
    "access|account|api|app|auth|client|crypt|decryption|deploy|encryption|license|master"
    "|private|secret|service|shared|signing|ssh|ssl|tls|vault"
)
_TOKEN_OWNERS = (
    "access|api|app|auth|bearer|bot|deploy|github|gitlab|hf|npm|oauth|personal|pypi|refresh"
    "|registry|session|slack|vault"
)
_AFTER_TOKEN = (
    "s",
    "iz",
    "is",
    *(f"{gap}{word}{end}" for gap in ("", "_") for word in ("id", "ids") for end in ("$", "_")),
    *(f"_{word}" for word in ("budget", "count", "length", "limit", "per_", "rate", "size")),
)
_WORDS = (
    # A number of tokens, the ids of some, a tokenizer: not credentials.
    "token" + _not_followed_by(_AFTER_TOKEN),
    f"(?:{_TOKEN_OWNERS}){_GAP}tokens[0-9_]*$",
    "secret" + _not_followed_by(("ar", "ion")),
    "passw(?:or)?d" + _not_followed_by(("less",)),
    f"pass{_GAP}(?:phrase|code|key)",
    f"(?:{_ACCOUNTS}){_GAP}(?:pass|pwd|pw)[0-9_]*$",
    "credential",
    "(?:^|[^a-z])creds?(?:$|[^a-z])",
    f"(?:{_KEYS}){_GAP}key" + _not_followed_by(("board", "map", "ring", "space", "stroke", "word")),
    f"(?:^|[^a-z])key{_GAP}api",
)

CREDENTIAL_PATTERN = f"(?i){'|'.join(_WORDS)}"
"""Searched for anywhere in a name, in any case; RE2."""

_NAME = re.compile(NAME_PATTERN.rstrip("$") + r"\Z")
_CREDENTIAL = re.compile(CREDENTIAL_PATTERN, re.ASCII)


def is_name(name: str) -> bool:
    """Whether `name` can name an environment variable here."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.match(name) is not None


def looks_like_credential(name: str) -> bool:
    """Whether a plain value under this name is refused, because the name speaks of a secret."""
    return _CREDENTIAL.search(name) is not None
