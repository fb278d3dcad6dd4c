// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// The ports with a certificate of the control plane.
const (
	xdsPort     = "xDS port"
	webhookPort = "webhook port"
)

// soonAtMost is the longest time before an end that counts as soon.
const soonAtMost = 30 * 24 * time.Hour

// served is the certificate of a port.
type served struct {
	port string
	file string // empty if the authority issues it
	get  func(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// ends returns the credentials of the control plane that end, the first one first. Keys of
// RequestAuthentications are not among them: those that cannot be fetched again stay in force.
func (s *Server) ends() (list []report.Credential) {
	now := time.Now()
	add := func(what string, until time.Time, whole time.Duration, then, by string) {
		list = append(list, report.Credential{What: what, Until: until.UTC(), Soon: until.Sub(now) < min(whole/5, soonAtMost), Then: then, By: by})
	}
	lasts := func(c *x509.Certificate) time.Duration { return c.NotAfter.Sub(c.NotBefore) }
	if s.identity.authority != nil {
		for _, e := range s.identity.authority.Ends() {
			then := "no certificate is signed, and those of workloads have ended"
			if strings.HasPrefix(e.What, "additional ") {
				then = "peers below it are refused"
			}
			add(e.What, e.Certificate.NotAfter, lasts(e.Certificate), then, e.By)
		}
	}
	for _, p := range s.identity.served {
		first := p.first()
		if first == nil {
			continue // the authority has ended
		}
		then, by := "agents do not connect again", ""
		if p.port == webhookPort {
			then = "the API server refuses the answers about injection and validation"
		}
		if p.file != "" {
			by = "the program that writes " + p.file
		}
		add("certificate of the "+p.port, first.NotAfter, lasts(first), then, by)
	}
	for _, t := range s.identity.tokens {
		if issuer, until, whole := t.KeysUntil(); !until.IsZero() {
			add("token keys of "+issuer, until, whole, "tokens of the issuer are refused", "the issuer, whose keys have to be fetched again")
		}
	}
	slices.SortStableFunc(list, func(a, b report.Credential) int { return a.Until.Compare(b.Until) })
	return list
}

// first returns the certificate of the served chain that ends first, nil if there is none.
func (p served) first() (first *x509.Certificate) {
	chain, err := p.get(nil)
	if err != nil {
		return nil
	}
	for _, raw := range chain.Certificate {
		if c, err := x509.ParseCertificate(raw); err == nil && (first == nil || c.NotAfter.Before(first.NotAfter)) {
			first = c
		}
	}
	return first
}

// endsCollector collects how long the credentials of the control plane last.
type endsCollector struct{ ends func() []report.Credential }

func endsDesc() *prometheus.Desc {
	return prometheus.NewDesc("outrigger_control_outage_left_seconds",
		"How long a certificate or the keys of an issuer last that the control plane needs, in seconds, if nobody renews them; negative once they have ended.", []string{"part"}, nil)
}

// Describe implements prometheus.Collector.
func (c endsCollector) Describe(ch chan<- *prometheus.Desc) { ch <- endsDesc() }

// Collect implements prometheus.Collector. Of several parts with one name it collects the first to end.
func (c endsCollector) Collect(ch chan<- prometheus.Metric) {
	known := map[string]bool{}
	for _, e := range c.ends() {
		if part := strings.ReplaceAll(e.What, " ", "_"); !known[part] {
			known[part] = true
			ch <- prometheus.MustNewConstMetric(endsDesc(), prometheus.GaugeValue, time.Until(e.Until).Seconds(), part)
		}
	}
}
