// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"bytes"
	"context"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// rewriter blocks responses until they are released, and then rewrites them according to their
// content.
type rewriter struct {
	entered, let chan string
}

func (w rewriter) rewrite(ctx context.Context, b []byte, _ bool) ([]byte, string) {
	r, _ := readResponse(frameOf(b).data)
	select {
	case w.entered <- r.nonce:
	case <-ctx.Done():
		return nil, ""
	}
	select {
	case <-w.let:
	case <-ctx.Done():
		return nil, ""
	}
	switch {
	case bytes.Contains(b, []byte("hopeless")):
		return nil, "no module"
	case bytes.Contains(b, []byte("partly")):
		return bytes.ReplaceAll(b, []byte("partly"), []byte("opened")), "one module is missing"
	}
	return bytes.ReplaceAll(b, []byte("remote"), []byte("local!")), ""
}

// TestRewrite checks that a response that is being rewritten does not delay other types, and keeps
// its order within its own type.
func TestRewrite(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		w := rewriter{make(chan string), make(chan string)}
		r := startRig(t, Config{Rewriters: map[string]Rewriter{extensionType: w.rewrite}}, delta)
		e := r.envoy(t)
		e.ask(extensionType, "a", "b")
		r.nextOf(t, extensionType)
		r.push(extensionType, "v1", "1", "remote")
		r.push(extensionType, "v2", "2", "as it is")
		r.push(clusterType, "v1", "3", "c")
		receive(t, w.entered, "first response")
		e.wants(clusterType, "3")
		w.let <- ""
		m := e.wants(extensionType, "1")
		if !bytes.Contains(encode(t, m), []byte("local!")) {
			t.Errorf("envoy got %v", m)
		}
		receive(t, w.entered, "second response")
		w.let <- ""
		e.wants(extensionType, "2")
		e.take(extensionType, "v1", "1", "a", "b")
		if got := r.nextOf(t, extensionType); got.reason != "" || got.nonce != "1" {
			t.Errorf("the control plane got %+v, want an acknowledgement", got)
		}
	})
}

// TestRewriteFails checks that a response that cannot be rewritten does not reach Envoy and is
// rejected with a reason and the names that Envoy requested. If a part can be rewritten, Envoy
// receives that part, and its acknowledgement contains what is missing.
func TestRewriteFails(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		w := rewriter{make(chan string, 10), make(chan string)}
		close(w.let)
		r := startRig(t, Config{Rewriters: map[string]Rewriter{extensionType: w.rewrite}}, delta)
		e := r.envoy(t)
		e.ask(extensionType, "a", "b")
		r.nextOf(t, extensionType)
		reject := func(version, nonce, reason string) {
			t.Helper()
			got := r.nextOf(t, extensionType)
			want := told{extensionType, version, nonce, reason, 0, []string{"a", "b"}}
			if delta {
				want.version, want.names = "", nil
			}
			if !slices.Equal(got.names, want.names) || got.version != want.version || got.nonce != nonce || got.reason != reason || got.code != 0 {
				t.Errorf("the control plane got %+v, want %+v", got, want)
			}
		}
		r.push(extensionType, "v1", "1", "hopeless")
		reject("", "1", "no module")
		r.push(extensionType, "v2", "2", "partly")
		e.wants(extensionType, "2")
		e.take(extensionType, "v2", "2", "a", "b")
		reject("", "2", "one module is missing")
		r.push(extensionType, "v3", "3", "fine")
		e.wants(extensionType, "3")
		e.take(extensionType, "v3", "3", "a", "b")
		if got := r.nextOf(t, extensionType); got.reason != "" {
			t.Errorf("the control plane got %+v, want an acknowledgement", got)
		}
		r.push(extensionType, "v4", "4", "partly")
		e.wants(extensionType, "4")
		e.take(extensionType, "v4", "4", "a", "b")
		reject("v3", "4", "one module is missing")
		r.push(extensionType, "v5", "5", "hopeless")
		reject("v3", "5", "no module")
	})
}

// TestRewriteEndsWithStream checks that a rewriter that hangs ends with its stream, and with the
// relay.
func TestRewriteEndsWithStream(t *testing.T) {
	t.Parallel()
	w := rewriter{make(chan string, 1), make(chan string)}
	r := startRig(t, Config{Rewriters: map[string]Rewriter{extensionType: w.rewrite}}, false)
	e := r.envoy(t)
	e.ask(extensionType)
	r.nextOf(t, extensionType)
	for range maxRewrites + 5 { // more than may wait
		r.push(extensionType, "v1", "1", "remote")
	}
	receive(t, w.entered, "response")
	_ = e.conn.Close()
	eventually(t, "the control plane's stream has ended", func() bool { return r.streams.Load() == 0 })
	again := r.envoy(t)
	again.send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType})
	r.nextOf(t, clusterType)
	r.push(clusterType, "v1", "2")
	again.wants(clusterType, "2")
}
