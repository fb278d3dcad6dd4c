// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/status"
)

// dnsEnvironment is what the DNS proxy reads. Whether there is one is said by
// ISTIO_META_DNS_CAPTURE, which is metadata of the node.
type dnsEnvironment struct {
	address  string
	parallel bool
	timeout  time.Duration
}

// wasmEnvironment is what the cache of Wasm modules reads.
type wasmEnvironment struct {
	convert               bool
	insecure, allowed     []string
	expiry, purge         time.Duration
	httpTimeout           time.Duration
	httpAttempts          int
	fileDir, dockerConfig string
	cacheBytes            int
}

// relayEnvironment is what the relay and what belongs to it read.
type relayEnvironment struct {
	debug            bool
	debugPort        int
	trustBundle      bool
	lastGoodAge      time.Duration
	lastGoodDir      string
	lastGoodIdentity bool
	lastGoodSecrets  bool
}

// probeEnvironment is how application probes are made, and who may run hooks.
type probeEnvironment struct {
	http2, keepAlive bool
	hookSources      []netip.Prefix
	hooksForAll      bool
}

// scrapeEnvironment is who may read metrics, where, and what is in them.
type scrapeEnvironment struct {
	securePort, secureMergedPort int
	localOnly, mergeEnvoy        bool
}

// featureVariables are the rows of the table for parts that can be left out.
func featureVariables() []variable {
	return []variable{
		{"ISTIO_ENABLE_HTTP2_PROBING", kindBool, "true", "let application probes over TLS speak HTTP/2", boolean(func(e *environment) *bool { return &e.probe.http2 })},
		{"ENABLE_PROBE_KEEPALIVE_CONNECTIONS", kindBool, "false", "keep the connections of application probes open", boolean(func(e *environment) *bool { return &e.probe.keepAlive })},
		{"OUTRIGGER_HOOK_SOURCES", kindText, "", "addresses or CIDRs that may run the application's lifecycle hooks at the status port, with commas between, in addition to HOST_IP, the default gateway and this network namespace; any: everybody, as in Istio", func(e *environment, s string) (err error) {
			e.probe.hookSources, e.probe.hooksForAll, err = status.ParseHookSources(s)
			return err
		}},
		{nameSecureMetrics, kindPort, "0", "port of Envoy that answers `/stats/prometheus` with Envoy's metrics, over TLS, to peers with a certificate of the mesh; 0: none", portOrNone(func(e *environment) *int { return &e.scrape.securePort })},
		{nameSecureMerged, kindPort, "0", "the same with the merged metrics of the status port, at `/stats/prometheus` and `/metrics`; 0: none", portOrNone(func(e *environment) *int { return &e.scrape.secureMergedPort })},
		{nameMetricsLocal, kindBool, "false", "metrics without a certificate for peers on this machine only: ENVOY_PROMETHEUS_PORT binds to the loopback address, the status port refuses others", boolean(func(e *environment) *bool { return &e.scrape.localOnly })},
		{"PILOT_AGENT_MERGE_ENVOY_STATS", kindBool, "true", "have Envoy's metrics among those of the status port", boolean(func(e *environment) *bool { return &e.scrape.mergeEnvoy })},
		{"DNS_PROXY_ADDR", kindAddress, "localhost:15053", "where the DNS proxy of `ISTIO_META_DNS_CAPTURE` listens, UDP and TCP; localhost stands for the loopback addresses of the families that the system's resolvers have", text(func(e *environment) *string { return &e.dns.address })},
		{"DNS_FORWARD_PARALLEL", kindBool, "false", "ask all resolvers of the system at once and take the first answer", boolean(func(e *environment) *bool { return &e.dns.parallel })},
		{"DNS_FORWARD_TIMEOUT", kindDuration, "5s", "how long a query may wait for the resolvers of the system", duration(func(e *environment) *time.Duration { return &e.dns.timeout })},
		{"ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", kindBool, "true", "load the Wasm modules that extensions name, and hand Envoy their files", boolean(func(e *environment) *bool { return &e.wasm.convert })},
		{"WASM_INSECURE_REGISTRIES", kindText, "", "hosts, with ports, whose certificate is not verified and which may speak plaintext, with commas between; * means all", list(func(e *environment) *[]string { return &e.wasm.insecure })},
		{"WASM_MODULE_EXPIRY", kindDuration, "24h", "a Wasm module that was not used for so long is deleted", duration(func(e *environment) *time.Duration { return &e.wasm.expiry })},
		{"WASM_PURGE_INTERVAL", kindDuration, "1h", "how often Wasm modules are looked at for that", duration(func(e *environment) *time.Duration { return &e.wasm.purge })},
		{"WASM_HTTP_REQUEST_TIMEOUT", kindDuration, "15s", "time of one request for a Wasm module", duration(func(e *environment) *time.Duration { return &e.wasm.httpTimeout })},
		{"WASM_HTTP_REQUEST_MAX_RETRIES", kindNumber, "5", "requests for a Wasm module before it counts as not to be had", number(func(e *environment) *int { return &e.wasm.httpAttempts })},
		{"DOCKER_CONFIG", kindPath, "", "directory of the config.json with the credentials of registries, for Wasm modules without a pull secret of their own", text(func(e *environment) *string { return &e.wasm.dockerConfig })},
		{"OUTRIGGER_WASM_ALLOWED_HOSTS", kindText, "", "hosts, host:port, addresses or CIDRs on loopback, link-local and metadata addresses that Wasm modules may come from, with commas between", list(func(e *environment) *[]string { return &e.wasm.allowed })},
		{"OUTRIGGER_WASM_FILE_DIR", kindPath, "", "directory below which local files must lie that Wasm extensions have as their modules (default: they are refused)", text(func(e *environment) *string { return &e.wasm.fileDir })},
		{"OUTRIGGER_WASM_CACHE_BYTES", kindNumber, "1073741824", "size of the cache of Wasm modules, in bytes", number(func(e *environment) *int { return &e.wasm.cacheBytes })},
		{"PROXY_XDS_DEBUG_VIA_AGENT", kindBool, "true", "serve the debug port, for peers on this machine", boolean(func(e *environment) *bool { return &e.relay.debug })},
		{"PROXY_XDS_DEBUG_VIA_AGENT_PORT", kindPort, "15004", "the debug port: hands requests for `/debug/…` on to the control plane", port(func(e *environment) *int { return &e.relay.debugPort })},
		{"PROXY_CONFIG_XDS_AGENT", kindBool, "false", "get more roots from the control plane, as a ProxyConfig over xDS", boolean(func(e *environment) *bool { return &e.relay.trustBundle })},
		{"OUTRIGGER_LAST_GOOD_MAX_AGE", kindDuration, "24h", "how old the kept configuration may be that Envoy starts with while no control plane can be reached; 0 keeps none", duration(func(e *environment) *time.Duration { return &e.relay.lastGoodAge })},
		{"OUTRIGGER_LAST_GOOD_DIR", kindPath, "", "where it is kept, sealed (default: `./var/lib/istio/data/last-good`)", text(func(e *environment) *string { return &e.relay.lastGoodDir })},
		{"OUTRIGGER_LAST_GOOD_IDENTITY", kindBool, "false", "keep the private key and certificate of the workload there too, sealed, so that mutual TLS works at once", boolean(func(e *environment) *bool { return &e.relay.lastGoodIdentity })},
		{"OUTRIGGER_LAST_GOOD_SECRETS", kindBool, "false", "keep secrets of the control plane, such as the keys of gateways, and resources with private keys there too, sealed; without it they are missing until the control plane is back", boolean(func(e *environment) *bool { return &e.relay.lastGoodSecrets })},
	}
}

// list reads words with commas between.
func list(field func(*environment) *[]string) func(*environment, string) error {
	return func(e *environment, s string) error {
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

// checkFeatures refuses what no part could use.
func checkFeatures(e environment) error {
	if e.wasm.httpAttempts < 1 {
		return errors.New("environment variable WASM_HTTP_REQUEST_MAX_RETRIES is 0, it must be 1 or more: it counts the first request too")
	}
	if e.wasm.cacheBytes < 1<<20 {
		return fmt.Errorf("environment variable OUTRIGGER_WASM_CACHE_BYTES is %s, it must be a megabyte or more", strconv.Itoa(e.wasm.cacheBytes))
	}
	return nil
}
