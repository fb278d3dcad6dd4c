// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	// Credentials are Envoy's other secrets, those that end first.
	Credentials []lasting `json:"credentials,omitempty"`
}

// lasting is one thing that the workload has, and how long it works without renewal.
type lasting struct {
	What string `json:"what"`
	// Until is zero if there is no limit, or nothing that could expire.
	Until time.Time `json:"until,omitzero"`
	// Missing is true if there is nothing. Unknown is true, too, if it is not known whether there is.
	Missing bool `json:"missing,omitempty"`
	Unknown bool `json:"unknown,omitempty"`
	// Then is what happens at Until, or what the outage means if there is no limit.
	Then string `json:"then"`
	// By says who must renew it; empty if the agent or the control plane does.
	By string `json:"by,omitempty"`
}

// holdings are the facts that an outage depends on.
type holdings struct {
	identity   time.Time // zero without a certificate
	external   bool      // another server manages the identity
	revocation time.Time // zero without a revocation list that has a limit
	lastGood   time.Time // when the last good configuration is too old; zero if there is none
	names      bool      // the DNS proxy has names
	relay      xdsproxy.Status
	// credentials are Envoy's other secrets; unknown is why they are not known.
	credentials []credential
	unknown     error
}

// outageHandler serves how long the workload keeps working in an outage.
func (b *builder) outageHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(b.holdings().outage(time.Now())) // a disconnected peer needs no answer
	})
}

// holdings returns the facts of now.
func (b *builder) holdings() holdings {
	h := b.kept()
	h.relay = b.parts.relay.Status()
	h.names = b.parts.dns != nil && b.parts.dns.Ready()
	h.credentials, h.unknown = b.parts.credentials.all()
	return h
}

// kept returns the facts about what expires.
func (b *builder) kept() holdings {
	h := holdings{external: b.parts.workload == nil}
	if !h.external {
		h.identity, h.revocation = b.parts.workload.End(), b.parts.workload.RevocationEnd()
	}
	if store := b.parts.lastGood; store != nil && !store.From().IsZero() {
		end := store.From().Add(b.cfg.env.LastGood.MaxAge)
		if store.Usable() == nil || end.Before(time.Now()) {
			h.lastGood = end
		}
	}
	return h
}

// outageCollector collects how long the workload keeps working in an outage.
type outageCollector struct{ holdings func() holdings }

func outageDesc() *prometheus.Desc {
	return prometheus.NewDesc("outrigger_agent_outage_left_seconds",
		"How long a part of the workload lasts if control plane, certificate authority and token issuers stay away from now on, in seconds: +Inf without a limit, negative once it has ended, absent while there is none.",
		[]string{"part"}, nil)
}

// Describe implements prometheus.Collector.
func (c outageCollector) Describe(ch chan<- *prometheus.Desc) { ch <- outageDesc() }

// Collect implements prometheus.Collector.
func (c outageCollector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	all := c.holdings().outage(now)
	for _, p := range slices.Concat(all.Parts, all.Credentials) {
		left := math.Inf(1)
		if !p.Until.IsZero() {
			left = p.Until.Sub(now).Seconds()
		}
		if !p.Missing {
			ch <- prometheus.MustNewConstMetric(outageDesc(), prometheus.GaugeValue, left, strings.ReplaceAll(p.What, " ", "_"))
		}
	}
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
		add("revocations", h.revocation, false, coveredRefused)
	}
	configured := !h.relay.LastResponse.IsZero() || h.relay.LastGood
	add("configuration", time.Time{}, !configured, "changes are missing")
	add("last good", h.lastGood, h.lastGood.IsZero(), "a new Envoy stays empty")
	add("token keys", time.Time{}, !configured, "new keys are missing")
	add("names", time.Time{}, !h.names, "changes are missing")
	out.Credentials = lastingOf(h.credentials, now)
	if h.unknown != nil {
		out.Credentials = append(out.Credentials, lasting{What: "credentials", Missing: true, Unknown: true, Then: h.unknown.Error()})
	}
	return out
}
