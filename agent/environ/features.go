// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package environ

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/outrigger-mesh/outrigger/status"
)

// featureVariables are the rows of the table for parts that can be left out.
func featureVariables() []variable {
	return []variable{
		{"ISTIO_ENABLE_HTTP2_PROBING", kindBool, "true", "let application probes over TLS speak HTTP/2", boolean(func(e *Values) *bool { return &e.Probe.HTTP2 })},
		{"ENABLE_PROBE_KEEPALIVE_CONNECTIONS", kindBool, "false", "keep the connections of application probes open", boolean(func(e *Values) *bool { return &e.Probe.KeepAlive })},
		{"OUTRIGGER_HOOK_SOURCES", kindText, "", "addresses or CIDRs that may run the application's lifecycle hooks at the status port, with commas between, in addition to HOST_IP, the default gateway and this network namespace; any: all peers, as in Istio", func(e *Values, s string) (err error) {
			e.Probe.HookSources, e.Probe.HooksForAll, err = status.ParseHookSources(s)
			return err
		}},
		{"ENVOY_SECURE_METRICS_PORT", kindPort, "0", "port of Envoy that answers `/stats/prometheus` with Envoy's metrics, over TLS, to peers with a certificate of the mesh; 0: none", portOrNone(func(e *Values) *int { return &e.Metrics.SecurePort })},
		{"ENVOY_SECURE_MERGED_METRICS_PORT", kindPort, "0", "the same with the merged metrics of the status port, at `/stats/prometheus` and `/metrics`; 0: none", portOrNone(func(e *Values) *int { return &e.Metrics.SecureMergedPort })},
		{"METRICS_LOCALHOST_ACCESS_ONLY", kindBool, "false", "metrics without a certificate for peers on this machine only: ENVOY_PROMETHEUS_PORT binds to the loopback address, the status port refuses others", boolean(func(e *Values) *bool { return &e.Metrics.LocalOnly })},
		{"PILOT_AGENT_MERGE_ENVOY_STATS", kindBool, "true", "have Envoy's metrics among those of the status port", boolean(func(e *Values) *bool { return &e.Metrics.MergeEnvoy })},
		{"DNS_PROXY_ADDR", kindAddress, "localhost:15053", "where the DNS proxy of `ISTIO_META_DNS_CAPTURE` listens, UDP and TCP; localhost stands for the loopback addresses of the families that the system's resolvers have", text(func(e *Values) *string { return &e.DNS.Address })},
		{"DNS_FORWARD_PARALLEL", kindBool, "false", "query all resolvers of the system at once and use the first answer", boolean(func(e *Values) *bool { return &e.DNS.Parallel })},
		{"DNS_FORWARD_TIMEOUT", kindDuration, "5s", "how long a query may wait for the resolvers of the system", duration(func(e *Values) *time.Duration { return &e.DNS.Timeout })},
		{"ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", kindBool, "true", "load the Wasm modules that extensions name, and pass their files to Envoy", boolean(func(e *Values) *bool { return &e.Wasm.Convert })},
		{"WASM_INSECURE_REGISTRIES", kindText, "", "hosts, with ports, whose certificate is not verified and which may speak plaintext, with commas between; * means all", list(func(e *Values) *[]string { return &e.Wasm.InsecureRegistries })},
		{"WASM_MODULE_EXPIRY", kindDuration, "24h", "a Wasm module that was not used for so long is deleted", duration(func(e *Values) *time.Duration { return &e.Wasm.Expiry })},
		{"WASM_PURGE_INTERVAL", kindDuration, "1h", "how often to look for unused Wasm modules", duration(func(e *Values) *time.Duration { return &e.Wasm.PurgeInterval })},
		{"WASM_HTTP_REQUEST_TIMEOUT", kindDuration, "15s", "time of one request for a Wasm module", duration(func(e *Values) *time.Duration { return &e.Wasm.HTTPTimeout })},
		{"WASM_HTTP_REQUEST_MAX_RETRIES", kindNumber, "5", "requests for a Wasm module before it counts as unavailable", number(func(e *Values) *int { return &e.Wasm.HTTPAttempts })},
		{"DOCKER_CONFIG", kindPath, "", "directory of the config.json with the credentials of registries, for Wasm modules without a pull secret of their own", text(func(e *Values) *string { return &e.Wasm.DockerConfigDir })},
		{"OUTRIGGER_WASM_ALLOWED_HOSTS", kindText, "", "hosts, host:port, addresses or CIDRs on loopback, link-local and metadata addresses that Wasm modules may come from, with commas between", list(func(e *Values) *[]string { return &e.Wasm.AllowedHosts })},
		{"OUTRIGGER_WASM_FILE_DIR", kindPath, "", "directory below which local files must lie that Wasm extensions have as their modules (default: they are refused)", text(func(e *Values) *string { return &e.Wasm.FileDir })},
		{"OUTRIGGER_WASM_CACHE_BYTES", kindNumber, "1073741824", "size of the cache of Wasm modules, in bytes", number(func(e *Values) *int { return &e.Wasm.CacheBytes })},
		{"PROXY_XDS_DEBUG_VIA_AGENT", kindBool, "true", "serve the debug port, for peers on this machine", boolean(func(e *Values) *bool { return &e.Debug.Enabled })},
		{"PROXY_XDS_DEBUG_VIA_AGENT_PORT", kindPort, "15004", "the debug port: forwards requests for `/debug/…` to the control plane", port(func(e *Values) *int { return &e.Debug.Port })},
		{"PROXY_CONFIG_XDS_AGENT", kindBool, "false", "get more roots from the control plane, as a ProxyConfig over xDS", boolean(func(e *Values) *bool { return &e.Upstream.TrustBundle })},
		{"OUTRIGGER_ALLOW_UNSAFE_ENVOY", kindBool, "false", "run an Envoy with known bypasses of authorization policies; otherwise the agent ends and names them", boolean(func(e *Values) *bool { return &e.AllowUnsafeEnvoy })},
		{"OUTRIGGER_RECORD_HEADERS", kindText, "", "headers that `outrigger policy record` writes besides those of the access log, with commas between: those that policies compare", recordHeaders},
		{"OUTRIGGER_RECORD_CLAIMS", kindText, "", "claims of tokens that `outrigger policy record` writes besides iss and aud, with commas between: those that policies compare (default: it writes no claims)", list(func(e *Values) *[]string { return &e.RecordClaims })},
		{"OUTRIGGER_LAST_GOOD_MAX_AGE", kindDuration, "24h", "how old the kept configuration may be that Envoy starts with while no control plane can be reached; 0 keeps none", duration(func(e *Values) *time.Duration { return &e.LastGood.MaxAge })},
		{"OUTRIGGER_LAST_GOOD_DIR", kindPath, "", "where it is kept, sealed (default: `./var/lib/istio/data/last-good`)", text(func(e *Values) *string { return &e.LastGood.Dir })},
		{"OUTRIGGER_LAST_GOOD_IDENTITY", kindBool, "false", "keep the private key and certificate of the workload there too, sealed, so that mutual TLS works at once", boolean(func(e *Values) *bool { return &e.LastGood.Identity })},
		{"OUTRIGGER_LAST_GOOD_KEY_FD", kindNumber, "0", "descriptor of a file in memory that the supervisor of the agent created and passes to it, as `outrigger up` does: the identity of the workload is kept, sealed with the key in it, so that a restarted agent has its identity at once; 0: none", number(func(e *Values) *int { return &e.LastGood.KeyFD })},
		{"OUTRIGGER_LAST_GOOD_SECRETS", kindBool, "false", "keep secrets of the control plane, such as the keys of gateways, and resources with private keys there too, sealed; without it they are missing until the control plane is back", boolean(func(e *Values) *bool { return &e.LastGood.Secrets })},
	}
}

// list reads words with commas between.
func list(field func(*Values) *[]string) func(*Values, string) error {
	return func(e *Values, s string) error {
		var words []string
		for word := range strings.SplitSeq(s, ",") {
			if word = strings.TrimSpace(word); word != "" {
				words = append(words, word)
			}
		}
		*field(e) = words
		return nil
	}
}

// portOrNone takes a port, or 0 for none.
func portOrNone(field func(*Values) *int) func(*Values, string) error {
	return func(e *Values, s string) error {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is not a port from 0 (none) to 65535", s)
		}
		*field(e) = int(n)
		return nil
	}
}

// secretHeaders are headers with credentials, which no file of records may hold.
var secretHeaders = []string{"authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key", "x-amz-security-token", "x-auth-token", "x-csrf-token"}

// recordHeaders takes the names of headers without credentials.
func recordHeaders(e *Values, s string) error {
	if err := list(func(e *Values) *[]string { return &e.RecordHeaders })(e, strings.ToLower(s)); err != nil {
		return err
	}
	for _, name := range e.RecordHeaders {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%q is not the name of a header", name)
		}
		if slices.Contains(secretHeaders, name) {
			return fmt.Errorf("%q carries credentials, which are not recorded", name)
		}
	}
	return nil
}
