// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// modules is a rewriter that resembles the one of Wasm modules. A missing module is replaced by a
// fallback, if it has one.
type modules struct {
	mu    sync.Mutex // guards there
	there map[string]bool
	hang  chan struct{} // blocks "slow" until it receives, if it is not nil
	calls chan string
}

func newModules() *modules {
	return &modules{there: map[string]bool{}, calls: make(chan string, 1000)}
}

func (m *modules) arrives(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.there[name] = true
}

func (m *modules) rewrite(ctx context.Context, b []byte, _ bool) ([]byte, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls <- string(b)
	var wrong []string
	left := len(b) > 0
	for _, name := range []string{"mod-a", "mod-b", "hopeless"} {
		switch {
		case !bytes.Contains(b, []byte(name)):
		case m.there[name]:
			b = bytes.ReplaceAll(b, []byte(name), []byte(strings.ToUpper(name)))
		default:
			wrong = append(wrong, name+" is missing")
			left = name != "hopeless"
		}
	}
	if m.hang != nil && bytes.Contains(b, []byte("slow")) {
		select {
		case <-m.hang:
		case <-ctx.Done():
			return b, "slow is missing"
		}
		wrong = append(wrong, "slow is missing")
	}
	if !left {
		return nil, strings.Join(wrong, ", ")
	}
	return b, strings.Join(wrong, ", ")
}

func startRetry(t *testing.T, m *modules, delta bool) (*rig, *envoy) {
	t.Helper()
	r := startRig(t, Config{Rewriters: map[string]Rewriter{extensionType: m.rewrite}}, delta)
	r.proxy.firstAgain = 20 * time.Millisecond
	e := r.envoy(t)
	e.ask(extensionType, "a", "b")
	r.nextOf(t, extensionType)
	return r, e
}

func (e *envoy) wantsWith(nonce string, with ...string) {
	e.t.Helper()
	m := e.wants(extensionType, nonce)
	for _, text := range with {
		if !bytes.Contains(encode(e.t, m), []byte(text)) {
			e.t.Errorf("response %s does not contain %s: %v", nonce, text, m)
		}
	}
}

func (r *rig) wantsReason(t *testing.T, nonce, reason string) {
	t.Helper()
	if got := r.nextOf(t, extensionType); got.nonce != nonce || got.reason != reason {
		t.Errorf("the control plane got %+v, want nonce %s and reason %q", got, nonce, reason)
	}
}

// TestRetry checks that missing modules are added to the configuration when they become available,
// one by one and without the control plane. Each step is reported to the control plane.
func TestRetry(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		m := newModules()
		r, e := startRetry(t, m, delta)
		r.push(extensionType, "v1", "1", "mod-a", "mod-b")
		e.wantsWith("1", "mod-a", "mod-b")
		e.take(extensionType, "v1", "1", "a", "b")
		r.wantsReason(t, "1", "mod-a is missing, mod-b is missing")
		eventually(t, "the status says so", func() bool { return rejecting(r.proxy) })
		m.arrives("mod-a")
		e.wantsWith("1", "MOD-A", "mod-b")
		e.take(extensionType, "v1", "1", "a", "b")
		r.wantsReason(t, "1", "mod-b is missing")
		m.arrives("mod-b")
		e.wantsWith("1", "MOD-A", "MOD-B")
		e.take(extensionType, "v1", "1", "a", "b")
		r.wantsReason(t, "1", "")
		eventually(t, "the status says so", func() bool { return !rejecting(r.proxy) })
		// There are no further attempts: the next response is the one that is pushed here.
		r.push(clusterType, "v1", "2", "c")
		e.wants(clusterType, "2")
	})
}

func rejecting(p *Proxy) bool {
	for _, s := range p.Status().Types {
		if s.TypeURL == extensionType {
			return s.Rejecting()
		}
	}
	return false
}

// TestRetryOfNothing checks that a response that was rejected because none of it could be used is
// retried as well.
func TestRetryOfNothing(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		m := newModules()
		r, e := startRetry(t, m, delta)
		r.push(extensionType, "v1", "1", "hopeless")
		r.wantsReason(t, "1", "hopeless is missing")
		for range 3 {
			receive(t, m.calls, "another attempt")
		}
		m.arrives("hopeless")
		e.wantsWith("1", "HOPELESS")
		e.take(extensionType, "v1", "1", "a", "b")
		r.wantsReason(t, "1", "") // no second rejection precedes it
	})
}

// TestRetryReplaced checks that modules that a newer response replaces or removes are not sent.
func TestRetryReplaced(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		m := newModules()
		r, e := startRetry(t, m, delta)
		r.push(extensionType, "v1", "1", "mod-a", "mod-b")
		e.wantsWith("1", "mod-a", "mod-b")
		if delta {
			r.answers <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: extensionType, Nonce: "2", RemovedResources: []string{"mod-a"}}
		} else {
			r.push(extensionType, "v2", "2", "mod-b")
		}
		e.wants(extensionType, "2")
		m.arrives("mod-a")
		m.arrives("mod-b")
		nonce := "2"
		if delta {
			nonce = "1" // nonce of the response that contained the module
		}
		last := e.wants(extensionType, nonce)
		if b := encode(t, last); !bytes.Contains(b, []byte("MOD-B")) || bytes.Contains(bytes.ToLower(b), []byte("mod-a")) {
			t.Errorf("envoy got %v, want mod-b alone", last)
		}
		r.push(extensionType, "v3", "3", "fine")
		e.wants(extensionType, "3")
	})
}

// TestRetryIsInterrupted checks that a newer response ends an attempt that hangs.
func TestRetryIsInterrupted(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		m := newModules()
		m.hang = make(chan struct{}, 1)
		r, e := startRetry(t, m, delta)
		m.hang <- struct{}{} // the first attempt does not hang
		r.push(extensionType, "v1", "1", "slow")
		e.wants(extensionType, "1")
		receive(t, m.calls, "first attempt")
		receive(t, m.calls, "second attempt, which hangs")
		r.push(extensionType, "v2", "2", "fine")
		e.wants(extensionType, "2")
	})
}

// FuzzIncomplete checks that replaced and removed resources of arbitrary delta responses are
// dropped.
func FuzzIncomplete(f *testing.F) {
	f.Add([]byte("\x12\x03\x1a\x01a"), []byte("\x32\x01a"))
	f.Add([]byte("\x12\x03\x1a\x01a\x2a\x01n"), []byte("\x42\x03\x0a\x01a"))
	f.Add([]byte("\x12\xff"), []byte("\x0d1234"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		in := newIncomplete(true, time.Hour)
		defer in.stop()
		in.keep(first, response{}, nil)
		in.replace(second)
		_, items, _ := splitDelta(in.response())
		_, newer, removed := splitDelta(second)
		if len(items) > len(in.items) {
			t.Fatalf("%d of %d resources", len(items), len(in.items))
		}
		for _, item := range items {
			for _, n := range newer {
				if n.name == item.name {
					t.Fatalf("%q is there although it was replaced", n.name)
				}
			}
			for _, name := range removed {
				if name == item.name {
					t.Fatalf("%q is there although it was removed", name)
				}
			}
		}
	})
}
