// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package secrets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

const (
	// accessTTL is how long a result of Authorize is used. Authorize is called only when there is
	// something new to serve.
	accessTTL = time.Minute
	// gatewayAccountAnnotation is the annotation with the service account of a Gateway of the
	// Gateway API.
	gatewayAccountAnnotation = "gateway.istio.io/service-account"
	// maxRefusalLines is the maximum number of log lines for one check of a proxy.
	maxRefusalLines = 8
)

// Client is the proxy at the other end of a stream.
type Client struct {
	Namespace string
	// Caller is the authenticated peer of the stream; nil if the port does not authenticate.
	Caller *authn.Caller
	// Secure is true if the caller is proven and the stream is encrypted.
	Secure bool
	Log    *slog.Logger
}

// View contains the secrets that one stream requests and receives. The goroutine of the stream
// owns it; only Changed is safe for concurrent use.
type View struct {
	server *Server
	client Client

	names []string // the names that refs was parsed from
	refs  []secretRef
	set   *xds.Set
	stale bool // set must be built again
	// seen is the value of changes that set includes.
	seen uint64
	// mesh is the snapshot that the grants in set are based on.
	mesh    *snapshot.Mesh
	refused map[string]refusal // why a secret is missing, by name
	again   <-chan time.Time   // when to check again; nil for never
	access  access

	watch
}

// watch counts changes of Secrets.
type watch struct {
	// watched are the Secrets whose changes are counted.
	watched atomic.Pointer[[]credentials.Reference]
	changes atomic.Uint64
}

// NewView returns the view of a stream without requests.
func (s *Server) NewView(c Client) *View { return &View{server: s, client: c} }

// secretRef is a requested name and its parsed reference.
type secretRef struct {
	name string
	ref  credentials.Reference
	err  error
}

// access records whether the caller of the stream may read Secrets.
type access struct {
	wanted, asking bool
	// answers has room for the result of the pending check.
	answers chan error
	known   time.Time // time of the last result; zero before the first
	err     error     // the last result; nil means allowed
}

// refusal is the reason why a proxy does not receive a secret.
type refusal struct {
	label string // metric label; one of a fixed set
	text  string
}

func (a *access) expired(now time.Time) bool { return now.Sub(a.known) >= accessTTL }

// Changed records that a Secret has changed and reports whether the stream must wake.
func (v *watch) Changed(namespace, name string) bool {
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

// Reset ends the subscription: the proxy no longer requests secrets.
func (v *View) Reset() {
	v.watched.Store(nil)
	v.names, v.refs, v.set, v.mesh, v.refused, v.again = nil, nil, nil, nil, nil, nil
}

// read parses the requested names. Changes are counted from here on, so that none is missed while
// the Secrets are read.
func (v *View) read(names []string, namespace string) {
	v.names, v.stale = names, true
	v.refs = make([]secretRef, 0, len(names))
	watched := make([]credentials.Reference, 0, len(names))
	for _, name := range names {
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

// noResources is the set of a view that serves nothing. It must not be modified.
var noResources = &xds.Set{}

// Set returns the requested secrets that the proxy may receive. While the caller's access is being
// checked, it returns the previous set. It does not modify names.
func (v *View) Set(names []string, mesh *snapshot.Mesh) *xds.Set {
	if v.set == nil {
		v.set, v.stale = noResources, true
	}
	if !slices.Equal(v.names, names) {
		v.read(names, v.client.Namespace)
	}
	if v.server.cfg.Granted != nil && v.mesh != mesh {
		v.stale = true
	}
	v.mesh = mesh
	seen := v.changes.Load()
	if !v.stale && seen == v.seen || v.access.asking {
		return v.set
	}
	if v.server.cfg.Authorize != nil && v.access.expired(time.Now()) && v.asksOwn() {
		v.access.wanted, v.stale = true, true // Ask starts the check
		return v.set
	}
	v.stale, v.seen = false, seen
	v.update()
	return v.set
}

// asksOwn reports whether a requested secret depends on the caller's own permission to read
// Secrets.
func (v *View) asksOwn() bool {
	if !v.client.Secure {
		return false
	}
	for _, r := range v.refs {
		if r.err == nil && r.ref.Namespace == v.client.Namespace && !v.granted(r.ref) {
			return true
		}
	}
	return false
}

// granted reports whether the proven identity may read a Secret without permission to read those
// of its namespace.
func (v *View) granted(ref credentials.Reference) bool {
	return v.server.grants(v.mesh, v.client, ref)
}

func (s *Server) grants(mesh *snapshot.Mesh, c Client, ref credentials.Reference) bool {
	return s.cfg.Granted != nil && c.Secure && s.cfg.Granted(mesh, c.Caller, ref)
}

// update rebuilds the set and logs what it lacks.
func (v *View) update() {
	var resources []*xds.Resource
	refused := map[string]refusal{}
	v.again = nil
	for _, r := range v.refs {
		res, no := v.secret(r)
		if no.label == "" {
			resources = append(resources, res)
			continue
		}
		refused[r.name] = no
		if no.label == refusedLoading || no.label == refusedUnauthorized {
			v.again = time.After(v.server.cfg.Retry)
		}
	}
	v.set = xds.NewSet(v.set, resources, nil)
	v.logRefusals(refused)
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

// secret returns one secret, or why the proxy does not receive it.
func (v *View) secret(r secretRef) (*xds.Resource, refusal) {
	if !v.client.Secure {
		return nil, refusal{refusedPlaintext, "secrets are sent only over TLS, to an authenticated proxy; use the TLS port"}
	}
	if v.server.cfg.Source == nil {
		return nil, refusal{refusedMissing, "this control plane reads no Secrets"}
	}
	if r.err != nil {
		return nil, refusal{refusedName, r.err.Error()}
	}
	if r.ref.Scheme == credentials.SchemeConfigMap && !v.granted(r.ref) {
		return nil, refusal{refusedNamespace, fmt.Sprintf("no BackendTLSPolicy or Gateway names the ConfigMap %s/%s", r.ref.Namespace, r.ref.Name)}
	}
	if err := r.ref.CheckNamespace(v.client.Namespace, v.granted); err != nil {
		return nil, refusal{refusedNamespace, err.Error() + v.cure(r.ref)}
	}
	if err := v.access.err; err != nil && !v.granted(r.ref) {
		return nil, refusal{refusedUnauthorized, err.Error() + v.cure(r.ref)}
	}
	res, err := v.server.get(r.name, r.ref)
	switch {
	case err == nil:
		return res, refusal{}
	case errors.Is(err, credentials.ErrLoading):
		return nil, refusal{refusedLoading, err.Error()}
	case errors.Is(err, credentials.ErrNotFound):
		return nil, refusal{refusedMissing, err.Error()}
	}
	return nil, refusal{refusedBroken, err.Error()}
}

// cure returns an alternative way to let the caller read a Secret of a Gateway.
func (v *View) cure(ref credentials.Reference) string {
	if ref.Scheme != credentials.SchemeGateway {
		return ""
	}
	return fmt.Sprintf("; a listener of a Gateway whose service account is %s/%s may refer to it: that account is named <gateway>-<class>, or by the annotation %s of the Gateway",
		v.client.Caller.ID.Namespace, v.client.Caller.ID.ServiceAccount, gatewayAccountAnnotation)
}

// logRefusals logs and counts refusals that are new or whose reason has changed.
func (v *View) logRefusals(refused map[string]refusal) {
	lines := 0
	for _, r := range v.refs {
		no, ok := refused[r.name]
		if !ok || no == v.refused[r.name] || no.label == refusedLoading {
			continue
		}
		v.server.refused.WithLabelValues(no.label).Inc()
		if lines++; lines <= maxRefusalLines {
			v.client.Log.Warn("a secret is not sent to a proxy, which keeps its previous version", "resource", clip.Text(r.name, maxLogged), "reason", no.text)
		}
	}
	if lines > maxRefusalLines {
		v.client.Log.Warn("further secrets are not sent to a proxy", "count", lines-maxRefusalLines)
	}
}

// maxLogged is the maximum length of a name in the log, in bytes.
const maxLogged = 300

// Ask starts the authorization check of the caller if Set needs its result, which arrives on
// Answers. The goroutine ends with the result, and ctx limits its duration. A panic counts as an
// error of the check.
func (v *View) Ask(ctx context.Context) {
	a := &v.access
	if !a.wanted || a.asking {
		return
	}
	a.wanted, a.asking = false, true
	a.answers = make(chan error, 1)
	go func(answers chan<- error) {
		defer func() {
			if cause := recover(); cause != nil {
				answers <- v.server.recovered(cause)
			}
		}()
		answers <- v.server.cfg.Authorize(ctx, v.client.Caller)
	}(a.answers)
}

// Answers returns the channel of the result of the check that Ask started, or nil if there is
// none.
func (v *View) Answers() <-chan error { return v.access.answers }

// Answered records the result of a check.
func (v *View) Answered(err error) {
	a := &v.access
	a.asking, a.answers, a.known, a.err = false, nil, time.Now(), err
	v.stale = true
}

// Again returns a channel that receives when CheckAgain must be called, or nil for never.
func (v *View) Again() <-chan time.Time { return v.again }

// CheckAgain makes Set check refused secrets again.
func (v *View) CheckAgain() { v.again, v.stale, v.access.known = nil, true, time.Time{} }

// Fault returns why a client would not receive a certificate with the given name. It returns nil
// if the Secret allows it, or if the Secrets are not known yet.
func (s *Server) Fault(mesh *snapshot.Mesh, c Client, name string) error {
	if s.cfg.Source == nil {
		return nil
	}
	select {
	case <-s.cfg.Source.Synced():
	default:
		return nil // nothing is known of Secrets yet
	}
	ref, err := credentials.ParseReference(name, c.Namespace)
	if err != nil {
		return err
	}
	granted := func(r credentials.Reference) bool { return s.grants(mesh, c, r) }
	if err := ref.CheckNamespace(c.Namespace, granted); err != nil {
		return err
	}
	_, err = credentials.KeyPairOf(s.source(ref), ref)
	return err
}
