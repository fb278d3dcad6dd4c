// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	// maxSkew is how much the clocks may differ before it is worth a warning.
	maxSkew = time.Minute
	// maxBackdate is by how much an authority may be expected to date the start
	// of a certificate back.
	maxBackdate = 10 * time.Minute
	// halfSecond is the middle of what times in whole seconds leave open.
	halfSecond = 500 * time.Millisecond
)

// clock is what a call tells about the clock of the authority.
type clock struct {
	start, end time.Time // of the call, by our clock
	date       string    // header of the answer, if there is one
	chain      []string  // of the answer, the leaf first
	ttl        int64     // life that was asked for, in seconds
}

// skew returns by how much our clock is ahead, if that is known.
func (c clock) skew() (ahead time.Duration, known bool) {
	ours := c.start.Add(c.end.Sub(c.start) / 2)
	if date, err := http.ParseTime(c.date); err == nil {
		return ours.Sub(date.Add(halfSecond)), true
	}
	if len(c.chain) == 0 {
		return 0, false
	}
	leaf, err := certs.ParseChain([]byte(c.chain[0]))
	if err != nil {
		return 0, false // the workload says so
	}
	// An authority that grants the requested life counts it from now,
	// and dates the start back. One that does not leaves its time open.
	ttl := time.Duration(c.ttl) * time.Second
	backdate := leaf[0].NotAfter.Sub(leaf[0].NotBefore) - ttl
	if backdate > 0 && backdate <= maxBackdate {
		return ours.Sub(leaf[0].NotAfter.Add(halfSecond - ttl)), true
	}
	// The start is never in the authority's future.
	if behind := leaf[0].NotBefore.Sub(c.end); behind > 0 {
		return -behind, true
	}
	return 0, false
}

// observeClock measures, exports and logs how the clocks differ.
func (c *Client) observeClock(m clock) {
	ahead, known := m.skew()
	if !known {
		return
	}
	seconds := ahead.Seconds()
	c.metrics.skew.seconds.Store(&seconds)
	switch large := ahead.Abs() > maxSkew; {
	case large && !c.skewed.Swap(true):
		direction := "ahead of"
		if ahead < 0 {
			direction = "behind"
		}
		c.cfg.Logger.Warn("our clock is "+direction+" that of the certificate authority: certificates may be taken for run out or not yet valid; set the clocks by NTP",
			"duration", ahead.Abs().Round(time.Second).String(), "address", c.cfg.Address)
	case !large && c.skewed.Swap(false):
		c.cfg.Logger.Info("our clock and that of the certificate authority agree again", "address", c.cfg.Address)
	}
}

// skewCollector shows the last measurement; nothing before the first.
type skewCollector struct {
	seconds atomic.Pointer[float64]
}

func skewDesc() *prometheus.Desc {
	return prometheus.NewDesc("outrigger_agent_ca_clock_skew_seconds",
		"By how much our clock is ahead of that of the certificate authority, in seconds; negative when it is behind.", nil, nil)
}

// Describe implements prometheus.Collector.
func (s *skewCollector) Describe(ch chan<- *prometheus.Desc) { ch <- skewDesc() }

// Collect implements prometheus.Collector.
func (s *skewCollector) Collect(ch chan<- prometheus.Metric) {
	if v := s.seconds.Load(); v != nil {
		ch <- prometheus.MustNewConstMetric(skewDesc(), prometheus.GaugeValue, *v)
	}
}
