"""ValidatingAdmissionPolicies: what depends on who asks or on another object.

They are CEL that the API server runs itself: there is no webhook that can be down.
"""

from typing import Any

from isolet.api import policy_class, policy_identity


def files() -> dict[str, list[dict[str, Any]]]:
    """All documents by the file in `deploy/admission/` they are written to."""
    return {
        "identities.yaml": policy_identity.identities(),
        "reserved.yaml": policy_identity.reserved(),
        "status.yaml": policy_identity.status(),
        "class.yaml": [
            *policy_class.executions(),
            *policy_class.processes(),
            *policy_class.one_default(),
        ],
    }


def documents() -> list[dict[str, Any]]:
    """All documents."""
    return [document for found in files().values() for document in found]
