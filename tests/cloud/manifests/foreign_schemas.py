"""Strict schemas of the kinds of the Prometheus operator and cert-manager, as far as the manifests use them.

Written from their API references (monitoring.coreos.com/v1, cert-manager.io/v1). A field that is missing here is
refused although it may exist: add it after a look at the reference.
"""

from tests.cloud.manifests.kubectl import Document

NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
DURATION = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h|d|w|y))+$"}
GO_DURATION = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...] = (), **properties: Document) -> Document:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def _list(items: Document) -> Document:
    return {"type": "array", "items": items, "minItems": 1}


def _kind(spec: Document) -> Document:
    metadata = _object(("name",), name=NAME, namespace=NAME, labels=TEXTS, annotations=TEXTS)
    text = {"type": "string"}
    return _object(("apiVersion", "kind", "metadata", "spec"), apiVersion=text, kind=text, metadata=metadata, spec=spec)


_SECRET_KEY = _object(("name", "key"), name=NAME, key={"type": "string"})
_ENDPOINT = _object(
    ("port",),
    port={"type": "string"},
    path={"type": "string", "pattern": "^/"},
    interval=DURATION,
    scrapeTimeout=DURATION,
    authorization=_object(("credentials",), type={"type": "string"}, credentials=_SECRET_KEY),
)
_ALERT = _object(
    ("alert", "expr"),
    alert={"type": "string", "pattern": "^[A-Z][A-Za-z]+$"},
    expr={"type": "string"},
    labels=TEXTS,
    annotations=TEXTS,
    **{"for": DURATION},
)
_USAGES = ["signing", "digital signature", "key encipherment", "cert sign", "crl sign", "server auth", "client auth"]

SCHEMAS: dict[tuple[str, str], Document] = {
    ("monitoring.coreos.com/v1", "PodMonitor"): _kind(
        _object(
            ("selector", "podMetricsEndpoints"),
            selector=_object(("matchLabels",), matchLabels=TEXTS),
            podMetricsEndpoints=_list(_ENDPOINT),
        )
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _kind(
        _object(("groups",), groups=_list(_object(("name", "rules"), name={"type": "string"}, rules=_list(_ALERT))))
    ),
    ("cert-manager.io/v1", "Issuer"): _kind(_object(("selfSigned",), selfSigned=_object())),
    ("cert-manager.io/v1", "Certificate"): _kind(
        _object(
            ("secretName", "issuerRef", "commonName"),
            isCA={"type": "boolean"},
            commonName={"type": "string", "maxLength": 64},
            secretName=NAME,
            duration=GO_DURATION,
            renewBefore=GO_DURATION,
            usages=_list({"enum": _USAGES}),
            issuerRef=_object(("name",), kind={"enum": ["Issuer", "ClusterIssuer"]}, name=NAME, group={}),
            privateKey=_object(
                algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
                size={"type": "integer"},
                rotationPolicy={"enum": ["Never", "Always"]},
            ),
        )
    ),
}
