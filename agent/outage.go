// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// outage is how long the workload keeps working if control plane, certificate authority
// and token issuers stay away from now on.
type outage struct {
	// Now is the time of this machine's clock, by which certificates expire.
	Now time.Time `json:"now"`
	// Connected is true while a stream of the control plane is open. Since is the time
	// when it was opened or closed; zero if it was never open.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	Parts     []lasting `json:"parts"`
}

// lasting is one thing that the workload has, and how long it works without renewal.
type lasting struct {
	What string `json:"what"`
	// Until is zero if there is no limit, or nothing that could expire.
	Until time.Time `json:"until,omitzero"`
	// Missing is true if there is nothing.
	Missing bool `json:"missing,omitempty"`
	// Then is what happens at Until, or what the outage means if there is no limit.
	Then string `json:"then"`
}

// holdings are the facts that an outage depends on.
type holdings struct {
	identity   time.Time // zero without a certificate
	external   bool      // another server manages the identity
	revocation time.Time // zero without a revocation list that has a limit
	lastGood   time.Time // when the last good configuration is too old; zero if there is none
	names      bool      // the DNS proxy has names
	relay      xdsproxy.Status
}

// outageHandler serves how long the workload keeps working in an outage.
func (b *builder) outageHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := holdings{external: b.parts.workload == nil, relay: b.parts.relay.Status()}
		if !h.external {
			h.identity, h.revocation = b.parts.workload.End(), b.parts.workload.RevocationEnd()
		}
		if store := b.parts.lastGood; store != nil && store.Usable() == nil {
			h.lastGood = store.From().Add(b.cfg.env.LastGood.MaxAge)
		}
		h.names = b.parts.dns != nil && b.parts.dns.Ready()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(h.outage(time.Now())) // a disconnected peer needs no answer
	})
}

// outage returns what lasts how long. Envoy has no time limit for configuration, which
// includes the keys of token issuers, and neither has the DNS proxy for names.
func (h holdings) outage(now time.Time) outage {
	out := outage{Now: now.UTC(), Connected: h.relay.Connected, Since: h.relay.Since}
	add := func(what string, until time.Time, missing bool, then string) {
		if !until.IsZero() {
			until = until.UTC()
		}
		out.Parts = append(out.Parts, lasting{What: what, Until: until, Missing: missing, Then: then})
	}
	if h.external {
		add("identity", time.Time{}, true, "another SDS server manages it")
	} else {
		add("identity", h.identity, h.identity.IsZero(), "new connections fail")
	}
	if !h.revocation.IsZero() {
		add("revocations", h.revocation, false, "covered peers are refused")
	}
	configured := !h.relay.LastResponse.IsZero() || h.relay.LastGood
	add("configuration", time.Time{}, !configured, "changes are missing")
	add("last good", h.lastGood, h.lastGood.IsZero(), "a new Envoy stays empty")
	add("token keys", time.Time{}, !configured, "new keys are missing")
	add("names", time.Time{}, !h.names, "changes are missing")
	return out
}
