// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

const (
	// accessTTL is for how long an answer of Authorize counts without asking
	// again. Nobody asks unless there is something new to give.
	accessTTL = time.Minute
	// secretRetry is when a proxy that was refused is looked at again.
	secretRetry = 10 * time.Second
	// gatewayAccountAnnotation is that of a Gateway of the Gateway API.
	gatewayAccountAnnotation = "gateway.istio.io/service-account"
	// maxRefusalLines bounds what one look logs of a proxy.
	maxRefusalLines = 8
)

// secretView is what one stream asks for and gets of secrets. The stream's loop
// owns it, but for what is atomic.
type secretView struct {
	names *nameSet // what refs were read from
	refs  []secretRef
	set   *xds.Set
	stale bool // set has to be made again
	// seen is the value of changes that set knows of.
	seen uint64
	// mesh is the snapshot that granted what is in set.
	mesh    *published
	refused map[string]refusal // why there is no secret, by name
	again   <-chan time.Time   // when to look again; nil for not by itself
	access  access

	secretWatch
}

// secretWatch hears of changes of Secrets.
type secretWatch struct {
	// watched is what to hear of, for whoever knows of a change.
	watched atomic.Pointer[[]credentials.Reference]
	// changes counts changes of what is watched.
	changes atomic.Uint64
}

// secretRef is a name that the proxy asks for, read.
type secretRef struct {
	name string
	ref  credentials.Reference
	err  error
}

// access is whether the caller of the stream may read Secrets.
type access struct {
	wanted, asking bool
	// answers has room for the one answer that is asked for.
	answers chan error
	known   time.Time // of the last answer; zero before it
	err     error     // the last answer; nil allows
}

// refusal says why a proxy does not get a secret.
type refusal struct {
	label string // for the metric; one of few
	text  string
}

func (v *secretView) needs(now time.Time) bool { return now.Sub(v.access.known) >= accessTTL }

// changed notes that a Secret changed, and reports whether the stream must look.
func (v *secretWatch) changed(namespace, name string) bool {
	refs := v.watched.Load()
	if refs == nil {
		return false
	}
	for _, r := range *refs {
		if r.Affects(namespace, name) {
			v.changes.Add(1)
			return true
		}
	}
	return false
}

// reset forgets everything: the proxy asks for no secrets any more.
func (v *secretView) reset() {
	v.watched.Store(nil)
	v.names, v.refs, v.set, v.mesh, v.refused, v.again = nil, nil, nil, nil, nil, nil
}

// read reads the names that the proxy asks for. From here on it hears of
// changes, so that none falls between this and looking at the Secrets.
func (v *secretView) read(names *nameSet, namespace string) {
	v.names, v.stale = names, true
	v.refs = make([]secretRef, 0, len(names.list))
	watched := make([]credentials.Reference, 0, len(names.list))
	for _, name := range names.list {
		r := secretRef{name: name}
		switch name {
		case "default", "ROOTCA":
			r.err = fmt.Errorf("the secret %s comes from the agent beside the proxy, over its own socket", name)
		default:
			r.ref, r.err = credentials.ParseReference(name, namespace)
		}
		if r.err == nil {
			watched = append(watched, r.ref)
		}
		v.refs = append(v.refs, r)
	}
	v.watched.Store(&watched)
}

// secretSet gives the secrets that the proxy asks for and may have. While it is
// asked whether it may, that is the set of before.
func (s *stream) secretSet() *xds.Set {
	v, sub := &s.secrets, s.subs[xds.TypeSecret]
	if sub == nil {
		return noResources
	}
	if v.set == nil {
		v.set = noResources
	}
	if v.names != sub.names {
		v.read(sub.names, s.proxy.Namespace)
	}
	if s.server.secrets.cfg.Granted != nil && v.mesh != s.mesh {
		v.mesh, v.stale = s.mesh, true
	}
	seen := v.changes.Load()
	if !v.stale && seen == v.seen || v.access.asking {
		return v.set
	}
	if s.server.secrets.cfg.Authorize != nil && v.needs(time.Now()) && s.asksOwn() {
		v.access.wanted = true // the loop asks
		v.stale = true
		return v.set
	}
	v.stale, v.seen = false, seen
	s.makeSecrets()
	return v.set
}

// asksOwn reports whether a secret is asked for that the caller's own right to
// read Secrets decides about.
func (s *stream) asksOwn() bool {
	if !s.secure {
		return false
	}
	for _, r := range s.secrets.refs {
		if r.err == nil && r.ref.Namespace == s.proxy.Namespace && !s.granted(r.ref) {
			return true
		}
	}
	return false
}

// granted reports whether the proven identity may have a Secret without the
// right to read those of its namespace.
func (s *stream) granted(ref credentials.Reference) bool {
	granted := s.server.secrets.cfg.Granted
	return granted != nil && s.secure && granted(s.mesh.Mesh, s.caller, ref)
}

// makeSecrets brings the set up to date, and tells what it lacks.
func (s *stream) makeSecrets() {
	v := &s.secrets
	var resources []*xds.Resource
	refused := map[string]refusal{}
	v.again = nil
	for _, r := range v.refs {
		res, no := s.secret(r)
		if no.label == "" {
			resources = append(resources, res)
			continue
		}
		refused[r.name] = no
		if no.label == refusedLoading || no.label == refusedUnauthorized {
			v.again = time.After(s.server.secretRetry)
		}
	}
	v.set = xds.NewSet(v.set, resources, nil)
	s.tellRefusals(refused)
	v.refused = refused
}

// The labels of the metric of refused secrets.
const (
	refusedPlaintext    = "plaintext"
	refusedName         = "name"
	refusedNamespace    = "namespace"
	refusedUnauthorized = "unauthorized"
	refusedLoading      = "loading"
	refusedMissing      = "missing"
	refusedBroken       = "broken"
)

// secret gives one secret, or why the proxy does not get it.
func (s *stream) secret(r secretRef) (*xds.Resource, refusal) {
	if !s.secure {
		return nil, refusal{refusedPlaintext, "secrets are given only over TLS, to a proxy that has shown who it is; use the TLS port"}
	}
	if s.server.secrets.cfg.Source == nil {
		return nil, refusal{refusedMissing, "this control plane reads no Secrets"}
	}
	if r.err != nil {
		return nil, refusal{refusedName, r.err.Error()}
	}
	if err := r.ref.CheckNamespace(s.proxy.Namespace, s.granted); err != nil {
		return nil, refusal{refusedNamespace, err.Error() + s.cure(r.ref)}
	}
	if err := s.secrets.access.err; err != nil && !s.granted(r.ref) {
		return nil, refusal{refusedUnauthorized, err.Error() + s.cure(r.ref)}
	}
	res, err := s.server.secrets.get(r.name, r.ref)
	switch {
	case err == nil:
		return res, refusal{}
	case errors.Is(err, errLoading):
		return nil, refusal{refusedLoading, err.Error()}
	case errors.Is(err, credentials.ErrNotFound):
		return nil, refusal{refusedMissing, err.Error()}
	}
	return nil, refusal{refusedBroken, err.Error()}
}

// cure returns what else would let the caller have a Secret of a Gateway.
func (s *stream) cure(ref credentials.Reference) string {
	if ref.Scheme != credentials.SchemeGateway {
		return ""
	}
	return fmt.Sprintf("; a listener of a Gateway whose service account is %s/%s may refer to it: that account is called <gateway>-<class>, or named by the annotation %s of the Gateway",
		s.caller.ID.Namespace, s.caller.ID.ServiceAccount, gatewayAccountAnnotation)
}

// tellRefusals logs and counts what was not refused before for the same reason.
func (s *stream) tellRefusals(refused map[string]refusal) {
	lines := 0
	for _, r := range s.secrets.refs {
		no, ok := refused[r.name]
		if !ok || no == s.secrets.refused[r.name] || no.label == refusedLoading {
			continue
		}
		s.server.metrics.refusedSecrets.WithLabelValues(no.label).Inc()
		if lines++; lines <= maxRefusalLines {
			s.log.Warn("a proxy does not get a secret, and keeps what it has", "resource", clip(r.name), "reason", no.text)
		}
	}
	if lines > maxRefusalLines {
		s.log.Warn("a proxy does not get more secrets", "count", lines-maxRefusalLines)
	}
}

// ask starts the check whether the caller may read Secrets, if a result is wanted.
// The goroutine ends with the result, which ctx bounds. A panic counts as an
// error of the check.
func (s *stream) ask(ctx context.Context) {
	a := &s.secrets.access
	if !a.wanted || a.asking {
		return
	}
	a.wanted, a.asking = false, true
	a.answers = make(chan error, 1)
	go func(answers chan<- error) {
		defer func() {
			if cause := recover(); cause != nil {
				answers <- s.server.fault(cause, "other")
			}
		}()
		answers <- s.server.secrets.cfg.Authorize(ctx, s.caller)
	}(a.answers)
}

// answered takes the answer.
func (s *stream) answered(err error) error {
	a := &s.secrets.access
	a.asking, a.answers, a.known, a.err = false, nil, time.Now(), err
	s.secrets.stale = true
	s.take()
	return s.push()
}

// lookAgain looks whether what was refused is allowed now.
func (s *stream) lookAgain() error {
	v := &s.secrets
	v.again, v.stale, v.access.known = nil, true, time.Time{}
	s.take()
	return s.push()
}
