// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// TestValidation checks that an existing redirection is detected, and a missing one as well.
func TestValidation(t *testing.T) {
	t.Parallel()
	l := emptyLab(t)
	for _, c := range []struct {
		rules    string
		user     int
		six      bool
		captured bool
	}{
		{"", proxy, false, false},
		{usual, proxy, false, true},
		{usual, proxy, true, true},
		{usual, application, false, false},
		{usual + "-m TPROXY", proxy, false, true},
		{"--cleanup-only", proxy, false, false},
	} {
		if c.rules != "" {
			l.apply(t, c.rules)
		}
		s := l.settings(t, "--skip-rule-apply --run-validation")
		s.ProbeIPv6 = c.six
		if s.ProbeTimeout = time.Minute; !c.captured {
			s.ProbeTimeout = 2 * probeInterval
		}
		err := l.pod.Do(func() error {
			if err := unix.Setfsuid(c.user); err != nil {
				return err
			}
			return s.run(t.Context(), slog.New(slog.DiscardHandler), io.Discard)
		})
		if got := !errors.Is(err, ErrNotCaptured); got != c.captured || c.captured && err != nil {
			t.Errorf("%q, user %d: %v, want captured: %v", c.rules, c.user, err, c.captured)
		}
	}
}

// TestCheck checks that rules are found directly with the necessary capability, and by their effect
// without it.
func TestCheck(t *testing.T) {
	t.Parallel()
	l := emptyLab(t)
	check := func(capable bool, environ ...string) error {
		return l.pod.Do(func() error {
			if !capable { // affects only this thread
				header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
				if err := unix.Capset(&header, &none[0]); err != nil {
					return err
				}
			}
			return Check(t.Context(), environ)
		})
	}
	self := fmt.Sprintf("PROXY_UID=%d", os.Geteuid())
	for _, rules := range []string{"", usual, usual + "-m TPROXY", fmt.Sprintf("-b 80 -i * -u %d", os.Geteuid())} {
		if rules != "" {
			l.apply(t, rules)
		}
		if err := check(true); errors.Is(err, ErrNotCaptured) != (rules == "") || err != nil && rules != "" {
			t.Errorf("rules %q: %v", rules, err)
		}
		effective := strings.HasPrefix(rules, "-b")
		if err := check(false, self); errors.Is(err, ErrNotCaptured) == effective || err != nil && effective {
			t.Errorf("rules %q, by effect: %v", rules, err)
		}
		if err := check(false); err == nil || errors.Is(err, ErrNotCaptured) {
			t.Errorf("rules %q, without capability and as another user: %v", rules, err)
		}
	}
}

// TestOtherNamespace checks that rules can be applied to the network namespace of another thread.
func TestOtherNamespace(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.do(t, l.pod, func() error {
		var f Flags
		fs := pflag.NewFlagSet("istio-iptables", pflag.ContinueOnError)
		f.Add(fs)
		line := usual + fmt.Sprintf("--network-namespace=/proc/self/task/%d/ns/net", unix.Gettid())
		if err := fs.Parse(strings.Fields(line)); err != nil {
			return err
		}
		done := make(chan error)
		go func() { done <- f.Run(t.Context(), slog.New(slog.DiscardHandler), nil, io.Discard) }()
		return <-done
	})
	if got := l.reaches(t, l.out(80)); got != "outbound" {
		t.Errorf("a connection reaches %q", got)
	}
	err := InNamespace("/does-not-exist", func() error { return errors.New("called") })
	if want := `network namespace "/does-not-exist": no such file or directory`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
