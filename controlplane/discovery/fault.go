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

// A fault of the program, a panic, met while one proxy is served ends nobody
// else's stream: what cannot be generated is not sent, and the proxy keeps what it
// has of all types until a snapshot comes that can; a fault of a stream ends that
// stream, and the proxy comes back. Each is counted, and logged once for a
// snapshot with the place in the program.

// errNotGenerated ends the stream of a proxy that nothing can be given: it keeps
// what it has, and comes back.
var errNotGenerated = status.Error(codes.Unavailable, "the configuration of this proxy cannot be generated, see the log of the control plane")

// generate returns what the generator makes, nothing where it cannot.
func (s *Server) generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	set, _ := s.try(mesh, proxy, typeURL)
	return set
}

// made returns what is generated of generate.Types; ok is false if that cannot be
// done for one of them.
func (s *Server) made(mesh *snapshot.Mesh, proxy *model.Proxy) (all quarantine.Sets, ok bool) {
	for i, typeURL := range xds.Types {
		if all[i], ok = s.try(mesh, proxy, typeURL); !ok {
			return quarantine.Sets{}, false
		}
	}
	return all, true
}

// try returns what the generator makes, and logs what it could not make; ok is
// false if it failed.
func (s *Server) try(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) (set *xds.Set, ok bool) {
	defer func() {
		if cause := recover(); cause != nil {
			s.metrics.panics.WithLabelValues(shortType(typeURL)).Inc()
			reason := describePanic(cause)
			if len(s.problems.fresh([]model.Problem{{Source: typeURL, Reason: reason}}, mesh.Sequence)) > 0 {
				s.log.Error("a fault of the program: configuration cannot be generated, proxies keep what they have",
					"proxy", proxy.ID, "type_url", typeURL, "reason", reason)
			}
			set, ok = noResources, false
		}
	}()
	set = s.gen.Generate(mesh, proxy, typeURL)
	for _, p := range s.problems.fresh(set.Problems, mesh.Sequence) {
		s.warn(p)
	}
	return set, true
}

// warn logs what is wrong with an object.
func (s *Server) warn(p model.Problem) {
	s.log.Warn("an object does not take full effect", "source", p.Source,
		"kind", p.Object.Kind, "name", p.Object.Name, "namespace", p.Object.Namespace, "reason", p.Reason)
}

// fault notes a panic outside the generator, and returns what the stream ends with.
func (s *Server) fault(cause any, label string) error {
	s.metrics.panics.WithLabelValues(label).Inc()
	s.log.Error("internal error while serving a proxy", "reason", describePanic(cause))
	return status.Error(codes.Internal, "a fault of the control plane, see its log")
}

// describePanic says what a panic was and where. It is called by what recovers.
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
