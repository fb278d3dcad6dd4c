// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	miekg "github.com/miekg/dns"
)

// TestFollow changes resolv.conf while a server runs. After each step, the server uses the servers
// in the last usable file.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		own, system := filepath.Join(dir, "own"), filepath.Join(dir, "system")
		write(t, system, "nameserver 192.0.2.1\nsearch one.example\n")
		u, err := ReadResolvConf(own, system)
		if err != nil {
			t.Fatal(err)
		}
		cfg := config(t)
		for _, socket := range cfg.Sockets {
			defer func() { _ = socket.Close() }()
		}
		cfg.Upstream = u
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.Update(hosts())
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go s.follow(ctx, u.files)
		steps := []struct {
			name    string
			change  func()
			servers string
			alias   string // a name that is resolved with a search domain
		}{
			{"nothing", func() {}, "192.0.2.1:53", "reviews.shop.one.example."},
			{"written in place", func() { write(t, system, "nameserver 192.0.2.2\nnameserver fd00::a\nsearch two.example\n") }, "192.0.2.2:53 [fd00::a]:53", "reviews.shop.two.example."},
			{"cut off", func() { write(t, system, "") }, "192.0.2.2:53 [fd00::a]:53", "reviews.shop.two.example."},
			{"gone", func() { remove(t, system) }, "192.0.2.2:53 [fd00::a]:53", "reviews.shop.two.example."},
			{"another file in its place", func() {
				write(t, system+".new", "nameserver 192.0.2.3\n")
				if err := os.Rename(system+".new", system); err != nil {
					t.Fatal(err)
				}
			}, "192.0.2.3:53", "reviews.shop.svc.cluster.local."},
			{"one that goes before it", func() { write(t, own, "nameserver 192.0.2.4\n") }, "192.0.2.4:53", ""},
			{"too large", func() { write(t, own, strings.Repeat("#", maxResolvConf+1)) }, "192.0.2.4:53", ""},
			{"and back", func() { remove(t, own) }, "192.0.2.3:53", ""},
		}
		for _, step := range steps {
			step.change()
			time.Sleep(2*lookAfter + time.Millisecond)
			synctest.Wait()
			if got := strings.Join(s.upstream.Load().servers, " "); got != step.servers {
				t.Errorf("%s: the servers are %s, want %s", step.name, got, step.servers)
			}
			if step.alias == "" {
				continue
			}
			reply, _ := s.respond(nil, new(query), packed(t, step.alias, miekg.TypeA, 0), false)
			m := new(miekg.Msg)
			if err := m.Unpack(reply); err != nil || len(m.Answer) == 0 {
				t.Errorf("%s: %s resolves to %v, %v", step.name, step.alias, m, err)
			}
		}
	})
}

// TestFollowUnsettled checks that a file is not read while it is being written.
func TestFollowUnsettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		write(t, path, "nameserver 192.0.2.1\n")
		u, err := ReadResolvConf(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg := config(t)
		for _, socket := range cfg.Sockets {
			defer func() { _ = socket.Close() }()
		}
		cfg.Upstream = u
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go s.follow(ctx, u.files)
		time.Sleep(lookAfter / 2)
		text := ""
		for i := range 5 {
			text += "nameserver 192.0.2.1" + string(rune('0'+i)) + "\n"
			write(t, path, text)
			time.Sleep(lookAfter)
			synctest.Wait()
			if got := s.upstream.Load().servers; !slices.Equal(got, []string{"192.0.2.1:53"}) {
				t.Fatalf("after %d lines the servers are %v", i+1, got)
			}
		}
		time.Sleep(2 * lookAfter)
		synctest.Wait()
		if got := s.upstream.Load().servers; len(got) != 5 {
			t.Errorf("the servers are %v", got)
		}
	})
}

// TestNewServersAnswer replaces a dead upstream with another one.
func TestNewServersAnswer(t *testing.T) {
	t.Parallel()
	cfg := config(t, closedAddress)
	cfg.Upstream.Timeout = time.Second
	s := start(t, cfg, hosts())
	if r := exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0)); r.Rcode != miekg.RcodeServerFailure {
		t.Fatalf("got %v", r)
	}
	s.setUpstream([]string{upstream(t, good(t)).Address()}, search)
	if r := exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0)); len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
