# To whom the key broker (KBS of Trustee 0.21) gives a resource: to a guest whose evidence its attestation service
# affirms, whose initdata is one of those named, outside of debug mode, and only what that initdata is for.
#
# `python -m kuberay.confidential` appends `released`: for each digest of an initdata (hex) the resources of its guests.
# To let a new deployment start beside an old one, put both entries into the file that you give the KBS.
package policy

import rego.v1

default allow := false

allow if {
    data.plugin == "resource"
    object.get(data, "query", {}) == {}
    count(input.submods) > 0
    every submod in input.submods {
        submod["ear.status"] == "affirming"
    }
    evidence := input.submods.cpu0["ear.veraison.annotated-evidence"].tdx
    evidence.td_attributes.debug == false
    concat("/", data["resource-path"]) in released[lower(evidence.quote.body.mr_config_id)]
}
