// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sdnotify

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

const (
	startPause   = 200 * time.Millisecond // between two checks until the program is ready
	longestPause = 10 * time.Second       // between two checks afterwards
	sendTimeout  = 2 * time.Second
	maxStatus    = 512 // bytes
)

// Manager is the service manager, as its environment variables describe it.
type Manager struct {
	// Socket is NOTIFY_SOCKET: a path, or @ and an abstract name. Without it Run does nothing.
	Socket string
	// Watchdog is the time after which the manager kills a silent program; 0 means never.
	Watchdog time.Duration
}

// ParseWatchdog returns the duration that WATCHDOG_USEC contains, in microseconds.
func ParseWatchdog(text string) (time.Duration, error) {
	n, err := strconv.ParseUint(text, 10, 52)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of microseconds", text)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Check returns the state of the program in a few words, and reports whether it is ready. It must
// return soon, except after its context ends: while it does not return, the program counts as hung.
type Check func(ctx context.Context) (status string, ready bool)

// Run calls check again and again, and reports the state to the manager, until ctx ends. It reports
// that the program stops once stopping is closed.
func (m Manager) Run(ctx context.Context, stopping <-chan struct{}, log *slog.Logger, check Check) {
	if m.Socket == "" {
		return
	}
	var now, known state // known is what the manager has received
	tell := func() {
		if m.report(ctx, log, m.lines(now, known)) {
			known = now
		}
	}
	for {
		status, ready := check(ctx)
		now.status, now.ready = status, now.ready || ready
		tell()
		select {
		case <-ctx.Done():
			select {
			case <-stopping:
				now.stopping = true
				tell()
			default:
			}
			return
		case <-stopping:
			stopping, now.stopping = nil, true
			tell()
		case <-time.After(m.pause(now.ready)):
		}
	}
}

// state is what the manager is notified of.
type state struct {
	ready, stopping bool
	status          string
}

// lines returns the lines of a message that brings a manager from one state to another.
func (m Manager) lines(now, known state) []string {
	var lines []string
	if now.ready && !known.ready {
		lines = append(lines, "READY=1")
	}
	if now.stopping && !known.stopping {
		lines = append(lines, "STOPPING=1")
	}
	if now.status != known.status {
		lines = append(lines, "STATUS="+oneLine(now.status))
	}
	if m.Watchdog > 0 {
		lines = append(lines, "WATCHDOG=1")
	}
	return lines
}

// pause returns the time between two checks. The manager must hear of the program twice in the time
// of its watchdog, even if a check takes as long as a pause.
func (m Manager) pause(ready bool) time.Duration {
	pause := longestPause
	if !ready {
		pause = startPause
	}
	if m.Watchdog > 0 {
		pause = min(pause, m.Watchdog/4)
	}
	return pause
}

// report sends lines to the manager in one message, and reports whether it received them.
func (m Manager) report(ctx context.Context, log *slog.Logger, lines []string) bool {
	if len(lines) == 0 {
		return true
	}
	if err := m.send(ctx, strings.Join(lines, "\n")); err != nil {
		log.Warn("the service manager cannot be notified; check NOTIFY_SOCKET", "path", m.Socket, "err", err)
		return false
	}
	return true
}

// send sends a message. It connects each time, because a manager that restarts binds its socket
// again.
func (m Manager) send(ctx context.Context, message string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(context.WithoutCancel(ctx), "unixgram", m.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // a datagram is sent at once
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(message))
	return err
}

// oneLine returns a status without line breaks, which would begin another assignment.
func oneLine(status string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, clip.Text(status, maxStatus))
}
