// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Signals that come together are one; each later one is another act.
func TestObey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, done := make(chan os.Signal), make(chan struct{})
		var acts []string
		act := func(name string) func() { return func() { acts = append(acts, name) } }
		go obey(signals, done, act("drain"), act("end"), act("exit"))
		for _, pause := range []time.Duration{0, sameWish / 2, sameWish / 4, sameWish, time.Hour} {
			time.Sleep(pause)
			signals <- syscall.SIGTERM
			synctest.Wait()
		}
		if want := []string{"drain", "end", "exit"}; !slices.Equal(acts, want) {
			t.Errorf("the acts are %q, want %q", acts, want)
		}
		close(done)
	})
}

func TestSentence(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a": "a", "a\nb": "a; b", "a:\n  b\r\n c\n": "a: b; c", "\n": "",
	} {
		if got := sentence(errors.New(in)); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// A version that cannot be had does not end an Envoy that runs; one that is too
// old does, and an Envoy that has ended is asked why.
func TestCheckVersion(t *testing.T) {
	t.Parallel()
	script := func(version string) string {
		path := filepath.Join(t.TempDir(), "envoy")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+version+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	running, ended := make(chan struct{}), make(chan struct{})
	close(ended)
	old := script("echo 'envoy version: 0123/1.30.1/Clean/RELEASE/BoringSSL'")
	for name, tc := range map[string]struct {
		binary   string
		ended    <-chan struct{}
		err, log string
	}{
		"gone while it runs":    {binary: "/none/envoy", ended: running, log: "its version is not known"},
		"silent while it runs":  {binary: script("exit 1"), ended: running, log: "its version is not known"},
		"too old while it runs": {binary: old, ended: running, err: "is version 1.30.1"},
		"too old, ended":        {binary: old, ended: ended, err: "is version 1.30.1"},
		"gone, ended":           {binary: "/none/envoy", ended: ended, err: "there is no envoy at /none/envoy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := &lockedBuffer{}
			err := checkVersion(t.Context(), slog.New(slog.NewTextHandler(out, nil)), tc.binary, tc.ended)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want one with %q", err, tc.err)
			}
			if log := out.String(); (log != "") != (tc.log != "") || !strings.Contains(log, tc.log) {
				t.Errorf("log %q, want %q", log, tc.log)
			}
		})
	}
}

// A header that gRPC refuses would keep every stream from being opened.
func TestHeaders(t *testing.T) {
	t.Parallel()
	e, warnings := readEnvironment([]string{
		"XDS_HEADER_X-Good=a b", "XDS_HEADER_T-bin=\xff", "XDS_HEADER_BAD NAME=1", "XDS_HEADER_A\u00e4=1", "CA_HEADER_LINES=s3cr3t\r\nx: y",
	})
	if want := map[string]string{"x-good": "a b", "t-bin": "\xff"}; !maps.Equal(e.headers, want) || len(e.caHeaders) != 0 {
		t.Errorf("headers %q and %q, want %q", e.headers, e.caHeaders, want)
	}
	text := strings.Join(warnings, "\n")
	for _, want := range []string{"XDS_HEADER_BAD NAME is left out", "XDS_HEADER_A\u00e4 is left out", "CA_HEADER_LINES is left out"} {
		if !strings.Contains(text, want) {
			t.Errorf("the warnings do not say %q: %q", want, warnings)
		}
	}
	if len(warnings) != 3 || strings.Contains(text, "s3cr3t") {
		t.Errorf("warnings %q", warnings)
	}
}

// Addresses of interfaces that are down, of loopback and of one link only are
// no place where the proxy could be reached.
func TestAddressesOf(t *testing.T) {
	t.Parallel()
	table := map[string][]string{
		"lo": {"127.0.0.1/8", "::1/128"}, "down": {"10.9.9.9/24"}, "gone": nil, "eth0": {"10.0.0.7/24", "fe80::1/64", "fd00::7/64"},
	}
	interfaces := []net.Interface{
		{Name: "lo", Flags: net.FlagUp | net.FlagLoopback}, {Name: "down"}, {Name: "gone", Flags: net.FlagUp}, {Name: "eth0", Flags: net.FlagUp},
	}
	got := addressesOf(interfaces, func(i net.Interface) ([]net.Addr, error) {
		if i.Name == "gone" {
			return nil, errors.New("no such interface")
		}
		var addrs []net.Addr
		for _, text := range table[i.Name] {
			ip, ipNet, err := net.ParseCIDR(text)
			if err != nil {
				t.Fatal(err)
			}
			addrs = append(addrs, &net.IPNet{IP: ip, Mask: ipNet.Mask})
		}
		return addrs, nil
	})
	if want := []string{"10.0.0.7", "fd00::7"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
