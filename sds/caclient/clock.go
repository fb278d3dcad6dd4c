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
	// maxSkew is the clock difference above which a warning is logged.
	maxSkew = time.Minute
	// maxBackdate is the maximum time by which an authority is expected to backdate the start of a
	// certificate.
	maxBackdate = 10 * time.Minute
	// halfSecond is half of the resolution of times in whole seconds.
	halfSecond = 500 * time.Millisecond
)

// clock contains the data of a call from which the authority's clock can be estimated.
type clock struct {
	start, end time.Time // of the call, by the local clock
	date       string    // header of the response, or ""
	chain      []string  // certificates of the response, the leaf first
	ttl        int64     // requested lifetime in seconds
}

// skew returns by how much the local clock is ahead. known is false if that cannot be determined.
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
		return 0, false // the workload reports this
	}
	// An authority that grants the requested lifetime counts it from its current time and backdates
	// the start. Otherwise its time is unknown.
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

// observeClock measures the clock difference, exports it and logs it.
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
		c.cfg.Logger.Warn("the clock of this machine is "+direction+" that of the certificate authority: certificates may appear to be expired or not yet valid; set the clocks by NTP",
			"duration", ahead.Abs().Round(time.Second).String(), "address", c.cfg.Address)
	case !large && c.skewed.Swap(false):
		c.cfg.Logger.Info("the clock of this machine and that of the certificate authority agree again", "address", c.cfg.Address)
	}
}

// skewCollector exports the last measurement. There is no value before the first one.
type skewCollector struct {
	seconds atomic.Pointer[float64]
}

func skewDesc() *prometheus.Desc {
	return prometheus.NewDesc("outrigger_agent_ca_clock_skew_seconds",
		"By how much the clock of this machine is ahead of that of the certificate authority, in seconds; negative when it is behind.", nil, nil)
}

// Describe implements prometheus.Collector.
func (s *skewCollector) Describe(ch chan<- *prometheus.Desc) { ch <- skewDesc() }

// Collect implements prometheus.Collector.
func (s *skewCollector) Collect(ch chan<- prometheus.Metric) {
	if v := s.seconds.Load(); v != nil {
		ch <- prometheus.MustNewConstMetric(skewDesc(), prometheus.GaugeValue, *v)
	}
}
