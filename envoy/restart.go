// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// shortLife is how long an Envoy must have lived to be started again without a delay.
	shortLife = 5 * time.Second
	// firstDelay doubles with each short life in a row, up to lastDelay.
	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second

	// maxRestarts bounds what is remembered.
	maxRestarts = 1000
)

// Restart is the limit of restarts of a crashed Envoy. An Envoy that exited with code 0
// was stopped on purpose and is not restarted, nor is one that crashes while the agent
// shuts down.
type Restart struct {
	// Count is how many restarts any Window may hold. 0: Envoy is never started again.
	Count int
	// Window is the time that slides along.
	Window time.Duration
}

// ParseRestart reads a budget such as "3/10m", or "off".
func ParseRestart(text string) (Restart, error) {
	if text == "off" {
		return Restart{}, nil
	}
	count, window, _ := strings.Cut(text, "/")
	n, countErr := strconv.Atoi(count)
	d, windowErr := time.ParseDuration(window)
	r := Restart{Count: n, Window: d}
	if countErr != nil || windowErr != nil || n == 0 || r.check() != nil {
		return Restart{}, fmt.Errorf("%q is no budget of restarts: write how many (1 to %d) in which time, such as 3/10m, or off", text, maxRestarts)
	}
	return r, nil
}

// String returns what ParseRestart reads.
func (r Restart) String() string {
	if r.Count == 0 {
		return "off"
	}
	return fmt.Sprintf("%d/%s", r.Count, r.Window)
}

func (r Restart) check() error {
	if r.Count < 0 || r.Count > maxRestarts || r.Count > 0 && r.Window <= 0 {
		return errors.New("the budget of envoy's restarts has a count or a duration out of range")
	}
	return nil
}

// budget is what is left of a Restart.
type budget struct {
	Restart
	taken  []time.Time // the restarts of the last Window, at most Count
	delays int         // short lives in a row
}

// take takes one restart, if there is one left, for an Envoy that lived from
// begin to now, and tells how many are left then and how long to wait before.
func (b *budget) take(begin, now time.Time) (left int, delay time.Duration, within bool) {
	for len(b.taken) > 0 && now.Sub(b.taken[0]) >= b.Window {
		b.taken = b.taken[1:]
	}
	if len(b.taken) >= b.Count {
		return 0, 0, false
	}
	b.taken = append(b.taken, now)
	if now.Sub(begin) >= shortLife {
		b.delays = 0
	} else {
		delay = min(firstDelay<<min(b.delays, 10), lastDelay)
		b.delays++
	}
	return b.Count - len(b.taken), delay, true
}
