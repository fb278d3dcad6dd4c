// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	mongov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/mongo_proxy/v3"
	redisv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/redis_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// redisTimeout is how long Envoy waits for the response to a command.
const redisTimeout = 5 * time.Second

// Protocols configures which protocols of databases Envoy reads. The zero value reads those that
// Istio reads by default.
type Protocols struct {
	// PlainMongo forwards MongoDB without counting its operations.
	PlainMongo bool
	// Redis forwards each command of Redis on its own.
	Redis bool
	// MySQL reports the ports of MySQL, for which stock Envoy has no filter.
	MySQL bool
}

// Forward returns the network filters that forward the connections of a protocol.
func (p Protocols) Forward(protocol model.Protocol, s Stream) []*listenerv3.Filter {
	switch {
	case protocol == model.ProtocolMongo && !p.PlainMongo:
		return []*listenerv3.Filter{networkFilter("envoy.filters.network.mongo_proxy", &mongov3.MongoProxy{StatPrefix: s.StatPrefix}), TCPProxy(s)}
	case p.SplitsCommands(protocol) && s.redisFault() == "" && s.Targets[0].Cluster != BlackHoleCluster:
		return []*listenerv3.Filter{networkFilter("envoy.filters.network.redis_proxy", &redisv3.RedisProxy{
			StatPrefix: s.StatPrefix, LatencyInMicros: true,
			Settings:     &redisv3.RedisProxy_ConnPoolSettings{OpTimeout: durationpb.New(redisTimeout)},
			PrefixRoutes: &redisv3.RedisProxy_PrefixRoutes{CatchAllRoute: &redisv3.RedisProxy_PrefixRoutes_Route{Cluster: s.Targets[0].Cluster}},
		})}
	}
	return []*listenerv3.Filter{TCPProxy(s)}
}

// SplitsCommands reports whether Envoy chooses an endpoint for each command of a protocol, by its
// key.
func (p Protocols) SplitsCommands(protocol model.Protocol) bool {
	return p.Redis && protocol == model.ProtocolRedis
}

// Fault returns why connections of a protocol are forwarded as TCP although p says otherwise, or "".
func (p Protocols) Fault(protocol model.Protocol, s Stream) string {
	switch {
	case protocol == model.ProtocolMySQL && p.MySQL:
		return "stock Envoy has no filter for MySQL, so the connections are forwarded as TCP: remove PILOT_ENABLE_MYSQL_FILTER"
	case p.SplitsCommands(protocol):
		return s.redisFault()
	}
	return ""
}

// redisFault returns why Envoy's filter of Redis cannot forward the connections, or "".
func (s Stream) redisFault() string {
	switch {
	case len(s.Targets) > 1:
		return "Envoy sends the commands of Redis to one destination, and the route has several, so the connections are forwarded as TCP: write one destination"
	case s.Tunnel != nil:
		return "Envoy sends no commands of Redis through a tunnel, so the connections are forwarded as TCP: remove trafficPolicy.tunnel"
	}
	return ""
}

func networkFilter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(config)}}
}
