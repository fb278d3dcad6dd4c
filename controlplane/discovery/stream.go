// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/mcpserver"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// stream is one connection of one proxy. Its loop owns everything but wake.
type stream struct {
	server *Server
	proxy  *model.Proxy
	// objects serves another control plane, and kinds are the types that it
	// subscribed to, in the order of its requests. objects is nil for a proxy.
	objects *mcpserver.Server
	kinds   []string
	// caller is the authenticated client, or nil if the port accepts anybody.
	// secure is true if the caller is authenticated and the stream is encrypted.
	caller  *authn.Caller
	secure  bool
	delta   bool
	sendMsg func(any) error
	quota   *quota // the stream's share of the caller's limits
	log     *slog.Logger
	verbose bool // each message is logged
	subs    map[string]*subscription
	nonces  uint64
	// mesh is the snapshot that all types of one round are generated from.
	mesh   *published
	labels labels
	// pushed is the start time of the last push that was completed.
	pushed time.Time
	// wake holds one token, which means that there may be a newer snapshot.
	// Further tokens are dropped: the loop always reads the newest snapshot.
	wake chan struct{}
	// secrets are the resources of TypeSecret, plugins those of TypeExtension.
	secrets *secrets.View
	plugins *secrets.Plugins
	// named is true once the proxy subscribed to the name table, so that workers
	// prepare it.
	named atomic.Bool
	// leaving is true once the proxy is to move to another replica, see Shed.
	leaving atomic.Bool
	// acks records which responses were sent and answered.
	acks acknowledgements
	// member is the stream's membership in the quarantine, nil for other control
	// planes; given is what the stream sends in this round.
	member *quarantine.Member
	given  given
	// returned is true if the proxy had resources before this stream.
	returned  bool
	questions *rate.Limiter
	// claimed are the versions of the routes that a reconnecting proxy has.
	claimed map[string]string
	// refused are the requested types that are not served.
	refused map[string]struct{}
	// number and connected are shown in logs and debug answers.
	number    uint64
	connected time.Time
}

// order is the order in which types are pushed: Envoy's configuration, with plugins
// before the listeners that name them; then what listeners and clusters refer to;
// then the types of the agent.
var order = slices.Concat(slices.Insert(slices.Clone(xds.Types), slices.Index(xds.Types, xds.TypeListener), xds.TypeExtension),

	[]string{xds.TypeSecret, xds.TypeNameTable, xds.TypeProxyConfig, xds.TypeBootstrap})

// notify makes the loop check for a newer snapshot. It never blocks.
func (s *stream) notify() {
	select {
	case s.wake <- struct{}{}:
	default: // a token is there already
	}
}

// loop serves the stream until ctx ends, the proxy ends the stream or a send fails.
// Its cases: the end; a request; a newer snapshot or secret; a decision about the
// right to secrets, and its expiry; the deadline of a proxy that is to move.
func (s *stream) loop(ctx context.Context, requests <-chan *request, ended <-chan error) error {
	var overdue <-chan time.Time // nil until the proxy is to move
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
				s.updateSnapshot()
				err = s.handle(q)
			}
			q.free()
		case <-s.wake:
			if err = s.denied(); err == nil {
				s.updateSnapshot()
				err = s.push()
			}
		case no := <-s.secrets.Answers():
			s.secrets.Answered(no)
			s.updateSnapshot()
			err = s.push()
		case <-s.secrets.Again():
			s.secrets.CheckAgain()
			s.updateSnapshot()
			err = s.push()
		case <-s.plugins.Again():
			s.plugins.CheckAgain()
			s.updateSnapshot()
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

// handle processes one request: a subscription, an answer to a response, or both.
func (s *stream) handle(q *request) error {
	if isDebug(q.typeURL) {
		return s.answerDebug(q)
	}
	if ignored(q.typeURL) {
		if s.objects == nil {
			s.server.report(s.proxy, s.caller, q)
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
		return s.push() // a request may be processed before the wake-up of a new snapshot
	}
	sub := s.subs[q.typeURL]
	if q.rejected != "" {
		s.server.metrics.rejects.WithLabelValues(shortType(q.typeURL)).Inc()
		kept := sub != nil && (sub.ack.accepted != 0 || sub.ack.resumed) && !strings.HasPrefix(q.rejected, report.AgentCode)
		s.log.Warn("proxy rejected configuration; "+report.Kept(shortType(q.typeURL), kept), "type_url", q.typeURL, "reason", clip.Text(q.rejected, maxReason))
	}
	current := true
	if sub != nil && q.nonce != "" {
		if q.typeURL == xds.TypeExtension {
			sub.resend(s.plugins.Answered(q.nonce, q.rejected, q.message))
		}
		if current = q.nonce == sub.ack.nonce(); current {
			sub.refused = q.rejected != ""
			reason, names := q.rejected, []string(nil)
			if q.typeURL == xds.TypeExtension {
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
	} else if current { // a rejection may extend the subscription, too
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
			sub.absent = emptyAbsent
		}
		sub.setNames(q)
		set := s.generate(q.typeURL)
		if q.nonce == "" && q.version != "" && q.version == sub.version(set) && !s.rewarms(q.typeURL) {
			sub.has(set, sub.diff(set)) // it reconnected with the current version
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
		// The proxy has seen no response of this stream yet: send everything.
		set := s.generate(q.typeURL)
		sub.resend(slices.DeleteFunc(q.names(), func(n string) bool { return set.Get(n) == nil }))
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
		sub.resend(q.subscribe) // asking again means: send again
	}
	if len(q.unsubscribe) > 0 {
		sub.removeNames(q.unsubscribe)
	}
	s.routesAsked(q)
	if sub.wildcard {
		if !first || len(sub.base.Resources) > 0 {
			return nil // push sends the difference
		}
		return s.answer(sub)
	}
	if len(q.subscribe) == 0 {
		return nil
	}
	sub.addNames(q.subscribe, s.generate(q.typeURL))
	return s.answer(sub)
}

// subscribe creates the subscription of a type.
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

// rewarms reports whether the versions that a proxy claims to have of a type must be
// ignored. Envoy needs an endpoint response after a changed cluster to finish warming
// it, even if the endpoints are the same. Clusters may be warming if some were sent
// on this stream, or if Envoy did not subscribe to clusters first, as it does unless
// some are warming.
func (s *stream) rewarms(typeURL string) bool {
	clusters := s.subs[xds.TypeCluster]
	return typeURL == xds.TypeEndpoint && (clusters == nil || clusters.ack.sent != 0)
}

// answer responds to a new or extended subscription, even if nothing differs. Types
// that may name clusters are left to push, which runs next and sends newer clusters
// first: the request may be processed before the wake-up of a new snapshot.
func (s *stream) answer(sub *subscription) error {
	sub.answerDue, sub.comparedWith = true, nil
	if namesClusters(sub.typeURL) {
		return nil
	}
	set := s.generate(sub.typeURL)
	u := s.diff(sub, set)
	if u.empty() && s.needsNoAnswer(sub) {
		sub.answerDue = false
		return nil
	}
	return s.send(sub, set, u)
}

// needsNoAnswer reports whether an empty response to a subscription is omitted,
// because the subscriber has everything that it asked for.
func (s *stream) needsNoAnswer(sub *subscription) bool {
	return sub.absent == ignoreAbsent || s.delta && !sub.wildcard
}

// id returns the name of the stream in logs and debug answers.
func (s *stream) id() string { return fmt.Sprintf("%s-%d", s.proxy.ID, s.number) }
