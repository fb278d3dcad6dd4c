// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap"
)

func TestMetricsPorts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ []string
		want    string // part of the error; empty if the ports are valid
	}{
		"nothing":           {},
		"both":              {environ: []string{"ENVOY_SECURE_METRICS_PORT=15091", "ENVOY_SECURE_MERGED_METRICS_PORT=15092"}},
		"off":               {environ: []string{"ENVOY_SECURE_METRICS_PORT=0"}},
		"local only":        {environ: []string{"METRICS_LOCALHOST_ACCESS_ONLY=true"}},
		"local on loopback": {environ: []string{"METRICS_LOCALHOST_ACCESS_ONLY=true", "OUTRIGGER_BIND_ADDRESS=127.0.0.9"}},
		"the same":          {environ: []string{"ENVOY_SECURE_METRICS_PORT=15092", "ENVOY_SECURE_MERGED_METRICS_PORT=15092"}, want: "ENVOY_SECURE_MERGED_METRICS_PORT is 15092, which is the port of ENVOY_SECURE_METRICS_PORT: choose another"},
		"the usual one":     {environ: []string{"ENVOY_SECURE_METRICS_PORT=15090"}, want: "which is the port of ENVOY_PROMETHEUS_PORT"},
		"readiness":         {environ: []string{"ENVOY_SECURE_METRICS_PORT=15021"}, want: "which is the port of ENVOY_STATUS_PORT"},
		"the agent's":       {environ: []string{"ENVOY_SECURE_METRICS_PORT=15020"}, want: "which is the port of statusPort of ProxyConfig"},
		"the admin port":    {environ: []string{"ENVOY_SECURE_METRICS_PORT=15000"}, want: "which is the port of proxyAdminPort of ProxyConfig"},
		"the debug port":    {environ: []string{"ENVOY_SECURE_METRICS_PORT=15004"}, want: "which is the port of PROXY_XDS_DEBUG_VIA_AGENT_PORT"},
		"no debug port":     {environ: []string{"ENVOY_SECURE_METRICS_PORT=15004", "PROXY_XDS_DEBUG_VIA_AGENT=false"}},
		"no status port":    {environ: []string{"ENVOY_SECURE_MERGED_METRICS_PORT=15092", "PROXY_CONFIG={statusPort: 0}"}, want: "statusPort of ProxyConfig is 0, so there are no merged metrics"},
		"local for all":     {environ: []string{"METRICS_LOCALHOST_ACCESS_ONLY=true", "OUTRIGGER_BIND_ADDRESS=10.0.0.9"}, want: "METRICS_LOCALHOST_ACCESS_ONLY is true, but OUTRIGGER_BIND_ADDRESS is 10.0.0.9, where other hosts reach all ports"},
	} {
		_, _, err := resolve(t.Context(), testSources(nil, c.environ...))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if e, warnings := environ.Read([]string{"ENVOY_SECURE_METRICS_PORT=65536"}); bootstrapMetrics(e.Metrics) != (bootstrap.Metrics{}) || len(warnings) != 1 {
		t.Errorf("%+v, %q", e.Metrics, warnings)
	}
}

// TestOwnPorts checks that connections of probes and scrapes do not delay a drain.
func TestOwnPorts(t *testing.T) {
	t.Parallel()
	cfg, _, err := resolve(t.Context(), testSources(nil, "ENVOY_SECURE_MERGED_METRICS_PORT=15092"))
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.drain().IgnorePorts; !slices.Equal(got, []int{15021, 15090, 15092}) {
		t.Errorf("ports %v", got)
	}
}
