// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// speak makes a request one of a protocol that a question names: "" is HTTP/1.1.
func speak(r *decision.Request, protocol string) error {
	set := func(name, value string) {
		if r.Header[name] == nil {
			r.Header[name] = []string{value}
		}
	}
	switch protocol {
	case "", "http/1.1":
	case "http/1.0":
		r.Version = decision.HTTP10
	case "http/2":
		r.Version = decision.HTTP2
	case "grpc":
		r.Version = decision.HTTP2
		set("content-type", "application/grpc")
		set("te", "trailers")
		r.Method = http.MethodPost
	case "websocket":
		set("connection", "Upgrade")
		set("upgrade", "websocket")
	case "tcp", "server-first":
		r.Method, r.Silent, r.ALPN = "", protocol == "server-first", []string{"istio"}
		if !r.TLS {
			r.SNI = ""
		}
	default:
		return fmt.Errorf("protocol=%s is unknown: write http/1.0, http/1.1, http/2, grpc, websocket, tcp or server-first", protocol)
	}
	if r.Version == decision.HTTP2 && r.Upgrade() != "" {
		return errors.New("HTTP/2 has no header upgrade: write protocol=websocket")
	}
	return nil
}

// notHTTP returns what an HTTP connection manager does with a connection that is not HTTP.
func notHTTP(r decision.Request) (status uint32, reason string) {
	if r.Silent {
		return 0, "the proxy reads HTTP at this port: it waits for a request, and the client for the server"
	}
	return http.StatusBadRequest, "the proxy reads HTTP at this port, and the client sends something else"
}

// text returns a duration, "" for 0.
func text(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func waitOf(w *decision.Wait) *report.Wait {
	if w == nil {
		return nil
	}
	return &report.Wait{For: text(w.For), Closes: w.Closes}
}

// versionOf returns the version of HTTP with which a cluster receives requests; "" for that of the client.
func versionOf(c *clusterv3.Cluster) string {
	options, packed := &httpv3.HttpProtocolOptions{}, c.GetTypedExtensionProtocolOptions()[cluster.HTTPOptionsKey]
	if packed == nil || packed.UnmarshalTo(options) != nil {
		return "1.1"
	}
	switch {
	case options.GetUseDownstreamProtocolConfig() != nil:
		return ""
	case options.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil:
		return decision.HTTP2
	}
	return "1.1"
}

// forwarded returns the version of HTTP with which a request is sent on. Envoy forwards HTTP/1.0 as HTTP/1.1.
func forwarded(r decision.Request, to report.Destination) string {
	version := cmp.Or(to.HTTP, r.Version)
	if version == decision.HTTP2 {
		return version
	}
	return ""
}
