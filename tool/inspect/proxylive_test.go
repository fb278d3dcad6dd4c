// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// dynamicEnvoys runs an Envoy with an active and a warming cluster, and one with an active and a warming listener,
// because listeners wait until no cluster warms. Both have roots, and a filter that they request by name.
func dynamicEnvoys(t *testing.T, roots string) (clusters, listeners string) {
	t.Helper()
	dir := t.TempDir()
	type fields = map[string]any
	typed := func(name string, of fields) fields {
		of["@type"] = "type.googleapis.com/envoy." + name
		return of
	}
	file := func(name string, resources ...any) fields {
		text, err := json.Marshal(fields{"version_info": "1", "resources": resources})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fields{"path_config_source": fields{"path": filepath.Join(dir, name)}, "resource_api_version": "V3"}
	}
	never := fields{"api_config_source": fields{"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": []any{fields{"envoy_grpc": fields{"cluster_name": "nowhere"}}}}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}
	limits := file("ecds.json", typed("config.core.v3.TypedExtensionConfig", fields{"name": "shop.limits", "typed_config": typed("extensions.filters.http.rbac.v3.RBAC", fields{})}))
	requested := fields{"name": "shop.limits", "config_discovery": fields{"config_source": limits, "type_urls": []any{"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"}}}
	router := fields{"name": "router", "typed_config": typed("extensions.filters.http.router.v3.Router", fields{})}
	listener := func(name string, routes fields) fields {
		manager := fields{"stat_prefix": "a", "http_filters": []any{requested, router}}
		for key, value := range routes {
			manager[key] = value
		}
		return fields{"name": name, "address": socket("127.0.0.1", 0), "filter_chains": []any{
			fields{"filters": []any{fields{"name": "http", "typed_config": typed("extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", manager)}}},
		}}
	}
	h2 := fields{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed("extensions.upstreams.http.v3.HttpProtocolOptions", fields{"explicit_http_config": fields{"http2_protocol_options": fields{}}})}
	with := func(dynamic fields) string {
		return runEnvoy(t, fields{
			"node":              fields{"id": "a", "cluster": "a"},
			"admin":             fields{"address": socket("127.0.0.1", 0)},
			"dynamic_resources": dynamic,
			"static_resources": fields{
				"listeners": []any{listener("ready", fields{"route_config": fields{"name": "here"}})},
				"clusters":  []any{fields{"name": "nowhere", "type": "STATIC", "typed_extension_protocol_options": h2}},
				"secrets":   []any{fields{"name": rootsName, "validation_context": fields{"trusted_ca": fields{"inline_string": roots}}}},
			},
		})
	}
	ready := typed("config.cluster.v3.Cluster", fields{"name": "outbound|80||ready.shop", "type": "STATIC"})
	waits := typed("config.cluster.v3.Cluster", fields{"name": "outbound|80||waits.shop", "type": "EDS", "eds_cluster_config": fields{"eds_config": never}})
	later := typed("config.listener.v3.Listener", listener("waits", fields{"rds": fields{"route_config_name": "never", "config_source": never}}))
	return with(fields{"cds_config": file("cds.json", ready, waits)}), with(fields{"lds_config": file("lds.json", later)})
}

// TestProxyLive asks a real Envoy for what is active and what warms, for a filter that it requests by name, and
// compares its roots with those of others.
func TestProxyLive(t *testing.T) {
	t.Parallel()
	one, _ := keyPair(t, 0xabc, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	two, _ := keyPair(t, 0xdef, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	admin, second := dynamicEnvoys(t, one+two)
	other := func(roots string) string {
		s := &tlsv3.Secret{Name: rootsName, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: roots}},
		}}}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, dumpOf(&adminv3.SecretsConfigDump{StaticSecrets: []*adminv3.SecretsConfigDump_StaticSecret{{Name: rootsName, Secret: packed(s)}}})) // the test sees what is missing
		}))
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	for _, tc := range []struct {
		args string
		code int
		has  string
	}{
		{"clusters -o wide --admin " + admin, 0, "ready.shop 80 - outbound STATIC ACTIVE|waits.shop 80 - outbound EDS WARMING|nowhere - - - STATIC ACTIVE"},
		{"clusters --fqdn ready --admin " + admin, 0, "DIRECTION TYPE ready.shop 80 - outbound STATIC"},
		{"listeners -o wide --admin " + second, 0, "Route: never WARMING|Inline Route: ACTIVE"},
		{"ecds --admin " + second, 0, "ECDS NAME TYPE shop.limits type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"},
		{"ec -o json --admin " + second, 0, `"name": "shop.limits"`},
		{"all --admin " + second, 0, "WARMING|shop.limits"},
		{"rootca-compare " + admin + " " + other(two+one), 0, "have the same roots|0abc|0def|both"},
		{"rootca-compare " + admin + " " + second, 0, "have the same roots"},
		{"rootca-compare " + admin + " " + other(two), 1, "have different roots, and 1 root in common"},
		{"rootca-compare " + other(one) + " " + other(two), 1, "have no root in common"},
		{"rc -o json " + other(one) + " " + other(two), 1, `"equal": false|"serial_number": "0abc"`},
		{"rc " + other(one) + " " + other("no certificate"), 1, "has no certificate in the secret ROOTCA"},
		{"log --admin " + admin + " --level info,rb", 0, "info,rbac="},
		{"clusters --admin " + admin + " --fqdn r", 0, "ready.shop"},
		{"listeners --admin " + second + " --name w", 0, "waits"},
		{"rc " + admin, 2, "write two proxies"},
	} {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // an Envoy may still start
			args := append([]string{"proxy"}, strings.Fields(tc.args)...)
			if i := len(args) - 2; strings.HasPrefix(args[i], "--") && args[i] != "--admin" {
				args = append([]string{"__complete"}, args...)
			}
			out, errs, code := run(t, args...)
			text := strings.Join(strings.Fields(out+errs), " ")
			lacks := slices.ContainsFunc(strings.Split(tc.has, "|"), func(want string) bool { return !strings.Contains(text, want) })
			if code == tc.code && !lacks {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: code %d, want %d with %q:\n%s%s", tc.args, code, tc.code, tc.has, out, errs)
				break
			}
		}
	}
}
