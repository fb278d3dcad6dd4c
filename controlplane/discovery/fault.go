// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"runtime"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// A panic while one proxy is served does not affect other streams. If generating
// fails, the proxy keeps its version of all types until a later snapshot can be
// generated. A panic elsewhere ends the stream of the proxy, which reconnects. Each
// panic is counted, and logged with the source line once for each snapshot.

// errNotGenerated ends the stream of a proxy for which nothing can be generated: it
// keeps its configuration, and reconnects.
var errNotGenerated = status.Error(codes.Unavailable, "the configuration of this proxy cannot be generated, see the log of the control plane")

// generate returns the generator's resources, or an empty set if it panics.
func (s *Server) generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	set, _ := s.tryGenerate(mesh, proxy, typeURL)
	return set
}

// generateAll returns the resources of all xds.Types; ok is false if the generator
// panics for one of them.
func (s *Server) generateAll(mesh *snapshot.Mesh, proxy *model.Proxy) (all quarantine.Sets, ok bool) {
	for i, typeURL := range xds.Types {
		if all[i], ok = s.tryGenerate(mesh, proxy, typeURL); !ok {
			return quarantine.Sets{}, false
		}
	}
	return all, true
}

// tryGenerate returns the generator's resources, and logs their problems; ok is false
// if the generator panics.
func (s *Server) tryGenerate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) (set *xds.Set, ok bool) {
	defer func() {
		if cause := recover(); cause != nil {
			s.metrics.panics.WithLabelValues(shortType(typeURL)).Inc()
			s.metrics.internal.Inc()
			reason := describePanic(cause)
			if len(s.problems.record([]model.Problem{{Source: typeURL, Reason: reason}}, mesh.Sequence)) > 0 {
				s.log.Error("internal error: configuration cannot be generated; proxies keep their previous version",
					"proxy", proxy.ID, "type_url", typeURL, "reason", reason)
			}
			set, ok = noResources, false
		}
	}()
	set = s.gen.Generate(mesh, proxy, typeURL)
	for _, p := range s.problems.record(set.Problems, mesh.Sequence) {
		s.warn(p)
	}
	return set, true
}

// warn logs a problem of an object.
func (s *Server) warn(p model.Problem) {
	s.log.Warn("an object does not take full effect", "source", p.Source,
		"kind", p.Object.Kind, "name", p.Object.Name, "namespace", p.Object.Namespace, "reason", p.Reason)
}

// fault counts and logs a panic outside the generator, and returns the stream's error.
func (s *Server) fault(cause any, label string) error {
	s.metrics.panics.WithLabelValues(label).Inc()
	s.metrics.internal.Inc()
	s.log.Error("internal error while serving a proxy", "reason", describePanic(cause))
	return status.Error(codes.Internal, "internal error of the control plane, see its log")
}

// describePanic returns the value and the source line of a panic. It must be called by
// the function that recovers.
func describePanic(cause any) string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	panicked := false
	for {
		f, more := frames.Next()
		switch {
		case strings.HasPrefix(f.Function, "runtime."):
			panicked = panicked || f.Function == "runtime.gopanic"
		case panicked:
			return clipped(fmt.Sprintf("%v, in %s, line %d", cause, f.Function, f.Line))
		}
		if !more {
			return clipped(fmt.Sprint(cause))
		}
	}
}
