// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"maps"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// maxCombinations is the number of combinations of labels that a filter chain counts at most. Each is
// one counter and three histograms of requests, or four counters of connections. Envoy counts what it
// drops in server.stats_overflow_counter and _histogram. A limit that loggers share makes Envoy 1.39
// and 1.40 crash when they validate a configuration.
const maxCombinations = 500

// Chain is a filter chain whose requests or connections are recorded.
type Chain struct {
	// Server is nil for requests that a workload sends, or that a gateway forwards.
	Server *Server
}

// Server describes a chain that receives requests for a workload.
type Server struct {
	// MutualTLS is true if clients prove their identity.
	MutualTLS bool
	// Host, Name and Namespace are those of the service that is reached at the port, or empty.
	Host, Name, Namespace string
}

// Observe returns what to put into a filter chain.
func (e Effective) Observe(to Chain) envoyconf.Observed {
	m, l, t := e.client, e.clientLogs, e.clientTracing
	if to.Server != nil {
		m, l, t = e.server, e.serverLogs, e.serverTracing
	}
	out := envoyconf.Observed{}
	l.add(e.mesh, e.envoy, &out)
	out.Tracing, out.RequestID = t.messages(e)
	if e.Labelled && to.Server == nil {
		out.Early = announce()
	}
	if !m.on {
		return out
	}
	requests := e.logger(m, to, false)
	out.RequestLog, out.StreamLog = slices.Concat(out.RequestLog, requests), slices.Concat(out.StreamLog, e.logger(m, to, true))
	if len(requests) > 0 {
		out.Keep = keep(to.Server != nil && to.Server.MutualTLS && e.envoy == bounded)
	}
	return out
}

// logger returns the access logger that counts requests, or connections.
func (e Effective) logger(m metrics, to Chain, stream bool) []*accesslogv3.AccessLog {
	tags, counters := tagsOf(to, stream), uint32(maxCombinations)
	if stream {
		counters *= 4
	}
	config := &statsv3.Config{}
	if e.envoy == bounded {
		config.StatsScope = &typev3.Scope{
			Prefix: node.StatsPrefix, EnableEviction: true,
			MaxCounters: wrapperspb.UInt32(counters), MaxHistograms: wrapperspb.UInt32(3 * maxCombinations),
		}
	} else {
		//lint:ignore SA1019 Envoy before 1.39 has no other field
		config.StatPrefix = node.StatsPrefix
	}
	all := shapes()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s, o := all[name], m.overrides[name]
		if s.stream != stream || o.disabled {
			continue
		}
		stat := &statsv3.Config_Stat{Name: name}
		for _, t := range change(tags, o.tags) {
			stat.Tags = append(stat.Tags, &statsv3.Config_Tag{Name: t.name, ValueFormat: t.format})
		}
		switch {
		case s.unit != statsv3.Config_Histogram_Unspecified:
			config.Histograms = append(config.Histograms, &statsv3.Config_Histogram{Stat: stat, Unit: s.unit, ValueFormat: s.value})
		case s.value != "":
			config.Counters = append(config.Counters, &statsv3.Config_Counter{Stat: stat, ValueFormat: s.value})
		default:
			config.Counters = append(config.Counters, &statsv3.Config_Counter{Stat: stat, ValueFixed: wrapperspb.UInt64(1)})
		}
	}
	if len(config.GetCounters())+len(config.GetHistograms()) == 0 {
		return nil
	}
	return []*accesslogv3.AccessLog{{
		Name:       "envoy.access_loggers.stats",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: envoyconf.Pack(config)},
	}}
}
