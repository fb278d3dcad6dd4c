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
	// shortLife is the minimum lifetime of an Envoy that is restarted without delay.
	shortLife = 5 * time.Second
	// firstDelay doubles with each consecutive short life, up to lastDelay.
	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second

	// maxRestarts is the maximum Count and limits the memory of a budget.
	maxRestarts = 1000
)

// Restart is the limit of restarts of a crashed Envoy. An Envoy that exited with code 0
// was stopped on purpose and is not restarted, nor is one that crashes while the agent
// shuts down.
type Restart struct {
	// Count is the maximum number of restarts within any Window. 0 disables restarts.
	Count int
	// Window is the length of the sliding window.
	Window time.Duration
}

// ParseRestart parses a budget such as "3/10m", or "off".
func ParseRestart(text string) (Restart, error) {
	if text == "off" {
		return Restart{}, nil
	}
	count, window, _ := strings.Cut(text, "/")
	n, countErr := strconv.Atoi(count)
	d, windowErr := time.ParseDuration(window)
	r := Restart{Count: n, Window: d}
	if countErr != nil || windowErr != nil || n == 0 || r.check() != nil {
		return Restart{}, fmt.Errorf("%q is not a budget of restarts: write their number (1 to %d) and a duration, such as 3/10m, or off", text, maxRestarts)
	}
	return r, nil
}

// String returns the budget in the format that ParseRestart accepts.
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

// budget is the remaining budget of a Restart.
type budget struct {
	Restart
	taken  []time.Time // times of the restarts in the last Window, at most Count
	delays int         // number of consecutive short lives
}

// take consumes one restart, if the budget allows it, for an Envoy that lived from begin to now. It
// returns the number of remaining restarts and the delay before the restart; within is false if the
// budget is exhausted.
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
