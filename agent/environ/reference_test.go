// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package environ

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// referenceVariables are the variables of pilot-agent 1.18 and known variables of other versions.
const referenceVariables = `
	POD_NAME POD_NAMESPACE INSTANCE_IP SERVICE_ACCOUNT HOST_IP ISTIO_CPU_LIMIT TRUST_DOMAIN CLOUD_PLATFORM GCP_METADATA GCP_QUOTA_PROJECT
	GKE_CLUSTER_URL GCE_METADATA_HOST KUBERNETES_SERVICE_HOST K_REVISION

	PROXY_CONFIG ISTIO_BOOTSTRAP ISTIO_BOOTSTRAP_OVERRIDE ENVOY_STATUS_PORT ENVOY_PROMETHEUS_PORT
	HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED ISTIO_DELTA_XDS ISTIO_DUAL_STACK DISABLE_ENVOY BOOTSTRAP_XDS_AGENT
	PROXY_CONFIG_XDS_AGENT GRPC_XDS_BOOTSTRAP EXIT_ON_ZERO_ACTIVE_CONNECTIONS MINIMUM_DRAIN_DURATION

	CA_ADDR CA_PROVIDER CA_ROOT_CA XDS_ROOT_CA PILOT_CERT_PROVIDER ISTIOD_SAN JWT_POLICY PROV_CERT OUTPUT_CERTS FILE_MOUNTED_CERTS SECRET_TTL
	SECRET_GRACE_PERIOD_RATIO FILE_DEBOUNCE_DURATION WORKLOAD_RSA_KEY_SIZE ECC_SIGNATURE_ALGORITHM ECC_CURVE PKCS8_KEY
	ISTIO_META_CERT_SIGNER ISTIO_META_CLUSTER_ID CREDENTIAL_FETCHER_TYPE CREDENTIAL_IDENTITY_PROVIDER XDS_AUTH_PROVIDER XDS_HEADER_NAME
	PROXY_XDS_DEBUG_VIA_AGENT PROXY_XDS_DEBUG_VIA_AGENT_PORT GRPC_KEEPALIVE_INTERVAL GRPC_KEEPALIVE_TIMEOUT
	ISTIO_GPRC_MAXSTREAMS ISTIO_GPRC_MAXRECVMSGSIZE PILOT_XDS_SEND_TIMEOUT XDS_AUTH PILOT_PARTIAL_FULL_PUSHES

	ISTIO_KUBE_APP_PROBERS ISTIO_PROMETHEUS_ANNOTATIONS REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION ISTIO_ENABLE_HTTP2_PROBING
	ENABLE_PROBE_KEEPALIVE_CONNECTIONS ISTIO_META_DNS_CAPTURE DNS_PROXY_ADDR DNS_FORWARD_PARALLEL
	WASM_INSECURE_REGISTRIES WASM_MODULE_EXPIRY WASM_PURGE_INTERVAL WASM_HTTP_REQUEST_TIMEOUT WASM_HTTP_REQUEST_MAX_RETRIES
	ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION DOCKER_CONFIG IPTABLES_TRACE_LOGGING ENVOY_USER
	INVALID_DROP ISTIO_AGENT_DUAL_STACK DRY_RUN_FILE_PATH ISTIO_OUTBOUND_OWNER_GROUPS ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE
	INBOUND_INTERCEPTION_MODE INBOUND_TPROXY_MARK ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR

	ISTIO_META_KEY ISTIO_METAJSON_ANY ISTIO_METAJSON_LABELS

	TERMINATION_DRAIN_DURATION_SECONDS PROXY_XDS_VIA_AGENT SKIP_PARSE_TOKEN SECRET_ROTATION_CHECK_INTERVAL OUTPUT_KEY_CERT_TO_DIRECTORY
	SECRET_GRACE_PERIOD_RATIO_JITTER WORKLOAD_IDENTITY_SOCKET_FILE
	ENVOY_SKIP_DEPRECATED_LOGS PEER_METADATA_DISCOVERY COMPLIANCE_POLICY`

// notRead returns the names of variables that have no effect according to the document: those in
// backticks in the first column of its table.
func notRead(t *testing.T) (names []string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n### Environment variables of pilot-agent that are not read\n")
	if !found {
		t.Fatal("docs/compatibility.md has no table of variables that are not read")
	}
	section, _, _ = strings.Cut(section, "\n#")
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`([A-Z0-9_]+)`").FindAllStringSubmatch(cells[1], -1) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

// TestEnvironmentOfTheReference checks that each variable of pilot-agent is either read or
// documented as not read, and that each documented variable causes a warning.
func TestEnvironmentOfTheReference(t *testing.T) {
	t.Parallel()
	reference := strings.Fields(referenceVariables)
	read := map[string]bool{}
	for _, v := range variables() {
		read[v.name] = true
	}
	inFamily := func(name string) bool {
		return slices.ContainsFunc([]string{prefixMetadata, prefixMetadataJSON, prefixHeader, prefixCAHeader}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	table := notRead(t)
	for _, name := range reference {
		switch served, excused := read[name] || inFamily(name), slices.Contains(table, name); {
		case served && excused:
			t.Errorf("%s is read, but docs/compatibility.md says that it is not", name)
		case !served && !excused:
			t.Errorf("%s is neither read nor in the table of docs/compatibility.md", name)
		}
	}
	for i, name := range table {
		switch {
		case slices.Contains(table[:i], name):
			t.Errorf("docs/compatibility.md has %s twice", name)
		case !slices.Contains(reference, name):
			t.Errorf("docs/compatibility.md says that %s is not read, but pilot-agent does not read it either", name)
		}
	}
	silent := []string{"K_REVISION"} // set in every Knative pod
	for _, v := range unservedVariables() {
		if !slices.Contains(table, v.name) && !inFamily(v.name) {
			t.Errorf("a user who sets %s is warned, but docs/compatibility.md does not have it", v.name)
		}
		silent = append(silent, v.name)
	}
	for _, name := range table {
		if !slices.Contains(silent, name) {
			t.Errorf("a user who sets %s gets no warning that it has no effect", name)
		}
	}
}

// TestUnservedVariables checks that only values that make a difference cause a warning. For names
// of other versions, the warning must say what to use instead.
func TestUnservedVariables(t *testing.T) {
	t.Parallel()
	for _, v := range unservedVariables() {
		for _, value := range append([]string{""}, v.nothing...) {
			if e, warnings := Read([]string{v.name + "=" + value}); len(e.Unserved)+len(warnings) != 0 {
				t.Errorf("%s=%s: %q, %q", v.name, value, e.Unserved, warnings)
			}
		}
		e, warnings := Read([]string{v.name + "=another"})
		switch {
		case v.instead == "" && (len(warnings) != 0 || !slices.Equal(e.Unserved, []string{v.name})):
			t.Errorf("%s: %q, %q", v.name, e.Unserved, warnings)
		case v.instead != "" && (len(e.Unserved) != 0 || len(warnings) != 1 || !strings.Contains(warnings[0], v.name+" is set but has no effect: "+v.instead)):
			t.Errorf("%s: %q, %q", v.name, e.Unserved, warnings)
		}
	}
	for _, entry := range []string{"XDS_AUTH=1", "BOOTSTRAP_XDS_AGENT=F", "PILOT_XDS_SEND_TIMEOUT=0", "WASM_PURGE_INTERVAL=60m", "TERMINATION_DRAIN_DURATION_SECONDS=5"} {
		if e, warnings := Read([]string{entry}); len(e.Unserved)+len(warnings) != 0 {
			t.Errorf("%s: %q, %q", entry, e.Unserved, warnings)
		}
	}
}
