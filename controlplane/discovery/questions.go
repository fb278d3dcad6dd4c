// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Debug configures the answers to debug questions. It must be called once, before the
// server is used.
func (s *Server) Debug(cfg debug.Config) {
	s.questions.Store(debug.New(cfg, source{s}))
	s.watchMesh(cfg.Registerer)
}

// DebugHandler serves debug questions over HTTP, see [debug.Handler].
func (s *Server) DebugHandler() http.Handler { return debug.Handler(s.questions.Load) }

// isDebug reports whether a request is a debug question.
func isDebug(typeURL string) bool {
	return typeURL == debug.Type || strings.HasPrefix(typeURL, debug.Type+"/")
}

// answerDebug answers a debug question on its stream.
func (s *stream) answerDebug(q *request) error {
	if q.nonce != "" || q.rejected != "" {
		return nil // an acknowledgement
	}
	names := q.subscribe
	if !s.delta {
		names = q.names()
	}
	if s.questions == nil {
		s.questions = rate.NewLimiter(rate.Every(debug.Every), debug.Burst)
	}
	question := debug.Question{Mesh: s.mesh.Mesh, Stream: s.state(), Type: q.typeURL, Names: names}
	if s.secure {
		question.Caller = s.caller
		question.Allowed = s.questions.Allow()
	}
	resources, err := s.server.questions.Load().Answer(question)
	if err != nil {
		return err // impossible: the answer is text
	}
	s.nonces++
	r := &response{typeURL: q.typeURL, nonce: nonceOf(s.nonces), body: encode(resources, s.delta)}
	return s.sendMsg(r.frame())
}

// state returns the state of a stream. Any goroutine may call it.
func (s *stream) state() *debug.Stream {
	standing, follows := s.acks.standing()
	out := &debug.Stream{
		ID: s.id(), Number: s.number, Proxy: s.view(), Caller: s.caller, Secure: s.secure, Delta: s.delta, Connected: s.connected,
		Objects: s.objects != nil, Follows: follows, Settled: standing.Settled, Given: s.acks.gives.Load(), Withheld: s.member.Withheld,
		Types: make([]debug.TypeState, len(order)),
	}
	for i, typeURL := range order {
		out.Types[i] = s.typeState(typeURL)
	}
	for _, r := range standing.Rejections {
		out.Rejections = append(out.Rejections, debug.Rejection{Type: r.Type, After: r.After, UpTo: r.UpTo, Reason: r.Reason, Names: r.Names})
	}
	return out
}

// typeState returns the state of a type. Any goroutine may call it.
func (s *stream) typeState(typeURL string) debug.TypeState {
	a := s.acks.of(typeURL)
	return debug.TypeState{
		TypeURL: typeURL, Name: shortType(typeURL), Sent: a.sent, Acked: a.accepted, Rejected: a.rejected, Reason: a.reason, Since: a.since, Resumed: a.resumed,
	}
}

// source implements [debug.Source].
type source struct{ server *Server }

func (s source) Snapshot() (*snapshot.Mesh, time.Time) {
	if m := s.server.mesh.Load(); m != nil {
		return m.Mesh, m.since
	}
	return nil, time.Time{}
}

func (s source) Streams() []*debug.Stream {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	out := make([]*debug.Stream, 0, len(s.server.streams))
	for st := range s.server.streams {
		out = append(out, st.state())
	}
	return out
}

func (s source) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	return s.server.generate(mesh, proxy, typeURL)
}

func (s source) Problems() (out []debug.KnownProblem) {
	s.server.problems.each(s.server.oldest(), func(p model.Problem, since time.Time) {
		out = append(out, debug.KnownProblem{Problem: p, Since: since})
	})
	return out
}

func (s source) RejectedResources() int { return len(s.server.Rejected()) }

func (s source) Missing(sequence uint64) (all []string, missing map[string]bool) {
	d := s.server.Distribution()
	missing = map[string]bool{}
	for _, p := range d.Missing(sequence) {
		missing[p.ID] = true
	}
	for _, p := range d.proxies {
		all = append(all, p.ID)
	}
	return all, missing
}

func (s source) DenyList(problem string) *report.DenyList { return s.server.denyList(problem) }

func (s source) CredentialFault(mesh *snapshot.Mesh, st *debug.Stream, name string) error {
	return s.server.secrets.Fault(mesh, secrets.Client{Namespace: st.Proxy.Namespace, Caller: st.Caller, Secure: st.Secure}, name)
}
