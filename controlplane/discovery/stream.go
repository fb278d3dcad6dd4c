// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/mcpserver"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// stream is one connection of one proxy. Its loop owns everything but wake.
type stream struct {
	server *Server
	proxy  *model.Proxy
	// objects is what another control plane gets, of kinds, in the order in
	// which it asked; nil for a proxy.
	objects *mcpserver.Server
	kinds   []string
	// caller is who opened the stream; nil if the port takes everybody. secure
	// is true if it was proved, and nobody listens.
	caller  *authn.Caller
	secure  bool
	delta   bool
	sendMsg func(any) error
	quota   *quota // what the caller holds with it
	log     *slog.Logger
	verbose bool // the log takes each message
	subs    map[string]*subscription
	nonces  uint64
	// mesh is the snapshot that all types of one round come from.
	mesh   *published
	labels labels
	// pushed is when the push began that was worked off last.
	pushed time.Time
	// wake has room for one token: a token means that there may be a newer
	// snapshot. Latest wins.
	wake chan struct{}
	// secrets is what it receives of TypeSecret, plugins of TypeExtension.
	secrets *secrets.View
	plugins *secrets.Plugins
	// named is true once the proxy asked for names: workers prepare them.
	named atomic.Bool
	// leaving is true once the proxy is to go to another replica, see Shed.
	leaving atomic.Bool
	// acks is what the proxy was sent and has answered.
	acks acknowledgements
	// member is its place in the quarantine, nil for other control planes; given is
	// what it sends in this round.
	member *quarantine.Member
	given  given
	// returned is true if the proxy had something before this stream.
	returned  bool
	questions *rate.Limiter
	// claimed are the routes that the proxy came back with.
	claimed map[string]string
	// refused are types that it asked for in vain.
	refused   map[string]struct{}
	number    uint64 // for people, as is connected
	connected time.Time
}

// order is the order in which types are pushed: Envoy's configuration, plugins before
// the listeners that name them, what those and clusters ask for, the agent's.
var order = slices.Concat(slices.Insert(slices.Clone(xds.Types), slices.Index(xds.Types, xds.TypeListener), xds.TypeExtension),
	[]string{xds.TypeSecret, xds.TypeNameTable, xds.TypeProxyConfig})

// notify tells the loop to look for a newer snapshot. It never blocks.
func (s *stream) notify() {
	select {
	case s.wake <- struct{}{}:
	default: // a token is there already
	}
}

// loop serves the stream: a request of the proxy, its end, a newer snapshot or
// secret, and what becomes of its right to secrets. It ends with ctx, too, and
// with the error of a send.
func (s *stream) loop(ctx context.Context, requests <-chan *request, ended <-chan error) error {
	var overdue <-chan time.Time // nil before it leaves
	for {
		s.secrets.Ask(ctx)
		var err error
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case q := <-requests:
			if err = s.denied(); err == nil {
				s.take()
				err = s.handle(q)
			}
			q.free()
		case <-s.wake:
			if err = s.denied(); err == nil {
				s.take()
				err = s.push()
			}
		case no := <-s.secrets.Answers():
			s.secrets.Answered(no)
			s.take()
			err = s.push()
		case <-s.secrets.Again():
			s.secrets.CheckAgain()
			s.take()
			err = s.push()
		case <-s.plugins.Again():
			s.plugins.CheckAgain()
			s.take()
			err = s.push()
		case <-overdue:
			return errMoved
		}
		if err == nil && s.leaving.Load() {
			overdue, err = s.leave(overdue)
		}
		if err != nil {
			return err
		}
	}
}

// handle takes one request: a subscription, an answer to a response, or both.
func (s *stream) handle(q *request) error {
	if isDebug(q.typeURL) {
		return s.answerDebug(q)
	}
	if ignored(q.typeURL) {
		if s.objects == nil {
			s.server.health(s.proxy, s.caller, q)
		}
		return nil
	}
	if s.objects != nil {
		if err := s.admitType(q.typeURL); err != nil {
			return err
		}
	}
	if s.objects == nil && !isServed(q.typeURL) {
		s.refuse(q.typeURL)
		return s.push() // a request may be the first that hears of a snapshot
	}
	sub := s.subs[q.typeURL]
	if q.rejected != "" {
		s.server.metrics.rejects.WithLabelValues(shortType(q.typeURL)).Inc()
		s.log.Warn("proxy rejected configuration and keeps what it had", "type_url", q.typeURL, "reason", clip.Text(q.rejected, maxReason))
	}
	current := true
	if sub != nil && q.nonce != "" {
		if current = q.nonce == sub.ack.nonce(); current {
			sub.refused = q.rejected != ""
			reason, names := q.rejected, []string(nil)
			if q.typeURL == xds.TypeExtension {
				s.plugins.Answered(q.rejected, q.message)
				names, reason = s.plugins.Rejected()
			}
			s.acks.answered(sub.ack, reason, names)
			if reason != "" && slices.Contains(configTypes, q.typeURL) {
				s.server.progressed()
			}
			s.judge(sub, q)
		} else {
			s.server.metrics.staleNonces.WithLabelValues(shortType(q.typeURL)).Inc()
		}
	}
	s.returned = s.returned || q.nonce == "" && (q.version != "" || len(q.versions) > 0)
	s.listens(q)
	err := s.reserve(q)
	if err == nil {
		err = s.give()
	}
	if err != nil {
		return err
	}
	if s.delta {
		err = s.subscribeDelta(sub, q)
	} else if current { // a rejection, too, may name more than before
		err = s.subscribeSotW(sub, q)
	}
	if err == nil {
		err = s.resized()
	}
	if err != nil {
		return err
	}
	return s.push()
}

// subscribeSotW reads a state-of-the-world request, whose names are the whole
// subscription.
func (s *stream) subscribeSotW(sub *subscription, q *request) error {
	if q.named == 0 && byName(q.typeURL) {
		delete(s.subs, q.typeURL)
		switch q.typeURL {
		case xds.TypeSecret:
			s.secrets.Reset()
		case xds.TypeExtension:
			s.plugins.Reset()
		}
		return nil
	}
	if sub == nil {
		sub = s.subscribe(q.typeURL)
		sub.wildcard = q.named == 0
		if q.typeURL == xds.TypeEndpoint {
			sub.absent = absentFilled
		}
		sub.setNames(q)
		set := s.generate(q.typeURL)
		if q.nonce == "" && q.version != "" && q.version == sub.version(set) && !s.rewarms(q.typeURL) {
			sub.has(set, sub.diff(set)) // it came back with what is current
			s.acks.resumed(sub.ack)
			return nil
		}
		return s.answer(sub)
	}
	if sub.wildcard {
		return nil
	}
	grown := sub.setNames(q)
	if q.nonce == "" {
		// It saw no response of this stream yet: it gets all that there is.
		set := s.generate(q.typeURL)
		sub.forget(slices.DeleteFunc(q.names(), func(n string) bool { return set.Get(n) == nil }))
	} else if !grown {
		return nil
	}
	return s.answer(sub)
}

// subscribeDelta reads a delta request, whose names change the subscription.
func (s *stream) subscribeDelta(sub *subscription, q *request) error {
	first := sub == nil
	if first {
		sub = s.subscribe(q.typeURL)
		sub.wildcard = len(q.subscribe) == 0 && !byName(q.typeURL) || slices.Contains(q.subscribe, "*")
		if !s.rewarms(q.typeURL) {
			sub.resume(q.versions)
		}
		s.resumeHosts(q)
	} else {
		sub.forget(q.subscribe) // asking again means: send again
	}
	if len(q.unsubscribe) > 0 {
		sub.drop(q.unsubscribe)
	}
	s.routesAsked(q)
	if sub.wildcard {
		if !first || len(sub.base.Resources) > 0 {
			return nil // push sends what differs from what it has
		}
		return s.answer(sub)
	}
	if len(q.subscribe) == 0 {
		return nil
	}
	sub.ask(q.subscribe, s.generate(q.typeURL))
	return s.answer(sub)
}

// subscribe enters the first subscription of a type.
func (s *stream) subscribe(typeURL string) *subscription {
	sub := newSubscription(typeURL, s.server.shared)
	s.subs[typeURL] = sub
	s.acks.track(sub.ack)
	switch typeURL {
	case xds.TypeNameTable:
		s.named.Store(true)
	case xds.TypeSecret, xds.TypeExtension:
		s.server.watch(s)
	}
	return sub
}

// rewarms reports whether what a proxy says it has of a type is of no use:
// Envoy warms a changed cluster with an answer that comes after it, even if it
// has the same endpoints already. Clusters may be warming when some were sent
// on this stream, or when Envoy, which asks for clusters first unless some are
// warming, did not ask for them.
func (s *stream) rewarms(typeURL string) bool {
	clusters := s.subs[xds.TypeCluster]
	return typeURL == xds.TypeEndpoint && (clusters == nil || clusters.ack.sent != 0)
}

// answer answers a new or wider subscription, even if there is nothing to
// tell. What may name clusters is left to push, which comes next and looks
// first whether the proxy has the newest: a request may be the first that hears
// of a snapshot.
func (s *stream) answer(sub *subscription) error {
	sub.owed, sub.at = true, nil
	if namesClusters(sub.typeURL) {
		return nil
	}
	set := s.generate(sub.typeURL)
	u := s.diff(sub, set)
	if u.empty() && s.hasAll(sub) {
		sub.owed = false
		return nil
	}
	return s.send(sub, set, u)
}

// hasAll reports whether a subscriber to whom there is nothing to tell is not
// answered: it has all that it asks for.
func (s *stream) hasAll(sub *subscription) bool {
	return sub.absent == absentKept || s.delta && !sub.wildcard
}

// namesClusters reports whether a type names clusters, itself or through others.
func namesClusters(typeURL string) bool {
	return typeURL == xds.TypeListener || typeURL == xds.TypeRoute || typeURL == xds.TypeVirtualHost
}

// push sends what differs between the newest snapshot and what the proxy has,
// in a fixed order, so that nothing is named that the proxy does
// not have (make before break): routes and listeners wait while clusters or
// endpoints are unanswered, virtual hosts while routes are, and what is gone is
// removed when no route names it any more. The answer to each response brings
// push here again.
func (s *stream) push() error {
	if err := s.give(); err != nil {
		return err
	}
	return s.round()
}

// round sends what differs from what the proxy is given in this round.
func (s *stream) round() error {
	settled := s.routesSettled()
	for _, typeURL := range s.types() {
		sub := s.subs[typeURL]
		if sub == nil || sub.ack.waiting() || s.waits(typeURL) {
			continue
		}
		set := s.generate(typeURL)
		if typeURL == xds.TypeCluster && !settled {
			set = sub.keeping(set)
		}
		if sub.at == set {
			continue // compared before
		}
		u := s.diff(sub, set)
		// That something asked for by name is gone is said when nothing uses
		// it; without delta it cannot be said.
		later := typeURL == xds.TypeEndpoint && !sub.wildcard && !settled && len(u.removed) > 0
		if later || !sub.wildcard && !s.delta && !wholeState(typeURL) {
			u.kept, u.removed = slices.Concat(u.kept, u.removed), nil
		}
		if u.empty() && (!sub.owed || s.hasAll(sub)) {
			sub.owed = false
			sub.has(set, u)
			if sub.ack.sent == 0 && sub.hasSome() {
				s.acks.resumed(sub.ack)
			}
		} else if err := s.send(sub, set, u); err != nil {
			return err
		}
		if later {
			sub.at = nil
		}
	}
	if !settled && s.routesSettled() {
		return s.round() // no answer will come that makes it remove what is gone
	}
	s.noteProgress()
	if s.given.Trying && !s.waiting() {
		s.member.Confirm() // what it had already, too
	}
	if !s.waiting() && !s.given.Open && s.pushed != s.mesh.since {
		s.pushed = s.mesh.since
		s.server.metrics.convergence.Observe(time.Since(s.pushed).Seconds())
	}
	return nil
}

// routesSettled reports whether the proxy has, and has taken, the newest
// listeners and routes. One that comes back may hold old ones until it has
// asked for them on this stream.
func (s *stream) routesSettled() bool {
	for _, typeURL := range []string{xds.TypeListener, xds.TypeRoute, xds.TypeVirtualHost} {
		if typeURL == xds.TypeVirtualHost && s.subs[xds.TypeRoute] == nil {
			continue // it has no routes that they could belong to
		}
		sub, set := s.subs[typeURL], s.generate(typeURL)
		if sub == nil && len(set.Resources) > 0 || sub != nil && (sub.ack.waiting() || sub.refused || sub.at != set) {
			return false
		}
	}
	return true
}

// waits reports whether a type has to wait: because it may name clusters that
// the proxy does not have yet, and virtual hosts for their routes.
func (s *stream) waits(typeURL string) bool {
	switch typeURL {
	case xds.TypeListener, xds.TypeRoute:
	case xds.TypeVirtualHost:
		if s.waitsForRoutes() {
			return true
		}
	default:
		return false
	}
	for _, before := range []string{xds.TypeCluster, xds.TypeEndpoint, xds.TypeExtension} {
		if sub := s.subs[before]; sub != nil && sub.ack.waiting() {
			return true
		}
	}
	return false
}

// waiting reports whether any response is unanswered.
func (s *stream) waiting() bool {
	for _, sub := range s.subs {
		if sub.ack.waiting() {
			return true
		}
	}
	return false
}

func (s *stream) generate(typeURL string) *xds.Set {
	if s.objects != nil {
		return s.objects.Resources(s.mesh.Mesh, typeURL)
	}
	if typeURL == xds.TypeSecret {
		if sub := s.subs[typeURL]; sub != nil {
			return s.secrets.Set(sub.names.list, s.mesh.Mesh)
		}
		return noResources
	}
	if i := slices.Index(xds.Types, typeURL); i >= 0 && s.given.mesh == s.mesh {
		return s.given.Sets[i]
	}
	set, ok := s.server.try(s.mesh.Mesh, s.view(), typeURL)
	if sub := s.subs[typeURL]; !ok && sub != nil {
		return sub.base // as it was
	}
	if typeURL == xds.TypeExtension {
		return s.plugins.Set(set, s.mesh.Mesh)
	}
	return set
}

// id names a stream in logs and answers.
func (s *stream) id() string { return fmt.Sprintf("%s-%d", s.proxy.ID, s.number) }
