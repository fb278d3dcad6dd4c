// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// settingsOf returns the settings of one proxy. It reads only the fields of its
// ProxyConfig that are used here: agents of other versions have other fields.
func settingsOf(meta *node.Metadata) (*model.ProxySettings, error) {
	s := model.ProxySettings{
		Configured: len(meta.ProxyConfig) > 0, HTTP10: meta.HTTP10 == "1", DeniedBy: meta.DeniedByHeader == "1",
		InboundBalance: bool(meta.InboundListenerExactBalance), OutboundBalance: bool(meta.OutboundListenerExactBalance),
		Records: recordedHeaders(meta.Records), ReportsKeys: bool(meta.ReportsKeys), DelimitedStats: delimitsStats(meta),
	}
	if meta.UnprivilegedPod != "" {
		on, err := strconv.ParseBool(meta.UnprivilegedPod)
		if err != nil {
			return nil, fmt.Errorf("UNPRIVILEGED_POD is %q; it must be true or false", meta.UnprivilegedPod)
		}
		s.Unprivileged = on
	}
	if meta.IdleTimeout != "" {
		d, err := time.ParseDuration(meta.IdleTimeout)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("IDLE_TIMEOUT is %q; it must be a duration such as 30s", meta.IdleTimeout)
		}
		s.IdleTimeout = d
	}
	if !s.Configured {
		return s.Keyed(), nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(meta.ProxyConfig, &fields); err != nil {
		return nil, fmt.Errorf("PROXY_CONFIG is not a JSON object: %w", err)
	}
	used := map[string]json.RawMessage{}
	for name, value := range fields {
		switch strings.ToLower(strings.ReplaceAll(name, "_", "")) {
		case "gatewaytopology", "proxyheaders", "tracing":
			used[name] = value
		}
	}
	if len(used) == 0 {
		return s.Keyed(), nil
	}
	doc, err := json.Marshal(used)
	if err != nil {
		return nil, fmt.Errorf("PROXY_CONFIG: %w", err)
	}
	config, err := meshconfig.ApplyProxyConfig(&meshv1alpha1.ProxyConfig{}, string(doc))
	if err != nil {
		return nil, fmt.Errorf("PROXY_CONFIG: %w", err)
	}
	s.Topology, s.Headers, s.Tracing = config.GetGatewayTopology(), config.GetProxyHeaders(), config.GetTracing()
	return s.Keyed(), nil
}

// delimitsStats reports whether the Envoy of a proxy splits the names of stats at a semicolon. The
// agents of Istio do since 1.23. Versions of development builds have no number.
func delimitsStats(meta *node.Metadata) bool {
	switch {
	case meta.Generator == generatorGRPC:
		return false
	case bool(meta.DelimitedStats):
		return true
	case meta.IstioVersion == "":
		return false
	}
	var major, minor int
	n, _ := fmt.Sscanf(meta.IstioVersion, "%d.%d", &major, &minor) // n says what was read
	return n < 2 || major > 1 || major == 1 && minor >= 23
}

// Limits of the headers that a proxy records.
const (
	maxRecorded     = 32
	maxRecordedName = 128 // bytes
)

// recordedHeaders returns the headers that a proxy records. It leaves out what is not the name of a
// header, which Envoy would refuse.
func recordedHeaders(names []string) (out []string) {
	for _, name := range names {
		name = strings.ToLower(strings.TrimSpace(name))
		if len(name) <= maxRecordedName && (name == ":method" || httpguts.ValidHeaderFieldName(name)) && len(out) < maxRecorded {
			out = append(out, name)
		}
	}
	return out
}
