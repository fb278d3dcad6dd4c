// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
	"github.com/outrigger-mesh/outrigger/xdsproxy/lastgood"
)

// openStored opens a store and returns it together with the relay's interface to it.
func openStored(t *testing.T, dir string) (*lastgood.Store, *LastGood) {
	t.Helper()
	s, err := lastgood.Open(lastgood.Config{
		Dir: filepath.Join(dir, "kept"), KeyDir: filepath.Join(dir, "key"), Identity: "sidecar~1.2.3.4~a.b~c", Version: "1", MaxAge: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, &LastGood{Record: func(delta bool) Recording { return s.Record(delta) }, Usable: s.Usable, Serve: s.Serve}
}

// closedAddress returns an address without a listener.
func closedAddress(t *testing.T) string {
	t.Helper()
	const host = "127.77.51.9"
	port, err := ownnet.FreePort(host)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(host, port)
}

// remember runs a simulated Envoy that accepts the responses of a control plane, and waits until
// they are stored.
func remember(t *testing.T, dir string, delta bool) {
	t.Helper()
	s, last := openStored(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r := startRig(t, Config{LastGood: last}, delta)
	e := r.envoy(t)
	for _, typeURL := range []string{clusterType, listenerType} {
		e.ask(typeURL)
		r.nextOf(t, typeURL)
		r.push(typeURL, "v1", typeURL, "")
		e.wants(typeURL, typeURL)
		e.take(typeURL, "v1", typeURL)
		r.nextOf(t, typeURL)
	}
	eventually(t, "it is kept", func() bool { return s.Usable() == nil })
	_ = e.conn.Close()
	eventually(t, "the stream has ended", func() bool { return r.streams.Load() == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("store: %v", err)
	}
}

// TestLastGood checks that Envoy starts with the last good configuration if there is no control
// plane, and moves to the control plane once that accepts streams, not before.
func TestLastGood(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		dir := t.TempDir()
		remember(t, dir, delta)
		_, last := openStored(t, dir)
		address := closedAddress(t)
		r := startRig(t, Config{LastGood: last, Upstream: UpstreamConfig{Address: address}}, delta)
		e := r.envoy(t)
		began := time.Now()
		e.ask(clusterType)
		nonce := anyOf(t, e, clusterType)
		if took := time.Since(began); took > coldSilent+time.Minute {
			t.Errorf("envoy waited for %s", took)
		}
		e.take(clusterType, "x", nonce)
		e.ask(listenerType)
		e.take(listenerType, "x", anyOf(t, e, listenerType))
		if st := r.proxy.Status(); !st.LastGood || st.Connected || st.Attempts == 0 {
			t.Errorf("status %+v, want the last good configuration", st)
		}
		if err := r.proxy.Connected(); err == nil {
			t.Error("connected without a control plane")
		}

		refusing := newControlPlane()
		g := refusing.start(t, listen(t, address))
		for range 2 { // the control plane is reachable but refuses streams
			receive(t, refusing.got, "request that tries it")
			refusing.fail <- grpcstatus.Error(codes.PermissionDenied, "not yet")
		}
		if st := r.proxy.Status(); !st.LastGood {
			t.Error("envoy's stream ended although the control plane refuses streams")
		}
		g.Stop()
		r.start(t, listen(t, address))
		r.nextOf(t, clusterType)
		r.push(clusterType, "v9", "9", "")
		if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errBack.Error()) {
			t.Fatalf("envoy's stream ended with %v", err)
		}
		eventually(t, "the trial has ended", func() bool { return r.streams.Load() == 0 })
		e = r.envoy(t)
		e.ask(clusterType)
		r.nextOf(t, clusterType)
		r.push(clusterType, "v9", "9", "")
		e.wants(clusterType, "9")
		if st := r.proxy.Status(); st.LastGood || !st.Connected {
			t.Errorf("status %+v, want one of the control plane", st)
		}
		e.take(clusterType, "v9", "9")
		e.ask(listenerType)
		r.push(listenerType, "v9", "10", "")
		e.wants(listenerType, "10")
		if !r.proxy.cold(os.Getpid()) {
			t.Error("the process counts as configured before it has accepted listeners")
		}
		e.take(listenerType, "v9", "10")
		eventually(t, "the process has what it needs", func() bool { return !r.proxy.cold(os.Getpid()) })
	})
}

// anyOf receives the next response, which must have the given type, and returns its nonce.
func anyOf(t *testing.T, e *envoy, typeURL string) string {
	t.Helper()
	m, err := e.recv()
	if err != nil {
		t.Fatalf("waiting for %s: %v", typeURL, err)
	}
	r := m.(interface {
		GetTypeUrl() string
		GetNonce() string
	})
	if r.GetTypeUrl() != typeURL {
		t.Fatalf("envoy got %s, want %s", r.GetTypeUrl(), typeURL)
	}
	return r.GetNonce()
}

// TestNothingLastGood checks that Envoy's stream waits for the control plane if nothing is stored.
func TestNothingLastGood(t *testing.T) {
	t.Parallel()
	address := closedAddress(t)
	var asked atomic.Int32
	r := startRig(t, Config{Upstream: UpstreamConfig{Address: address}, LastGood: &LastGood{
		Record: func(bool) Recording { return nobody{} },
		Usable: func() error { asked.Add(1); return errors.New("there is nothing") },
		Serve: func(context.Context, bool, func() ([]byte, error), func([]byte) error) error {
			t.Error("served")
			return nil
		},
	}}, true)
	e := r.envoy(t)
	e.ask(clusterType)
	eventually(t, "it was looked at", func() bool { return asked.Load() > 0 })
	r.start(t, listen(t, address))
	r.nextOf(t, clusterType)
	r.push(clusterType, "v", "1")
	e.wants(clusterType, "1")
}

// TestLastGoodBreaks checks that a stored configuration that cannot be read does not prevent Envoy
// from moving to the control plane.
func TestLastGoodBreaks(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		dir := t.TempDir()
		remember(t, dir, delta)
		_, last := openStored(t, dir)
		if err := os.Truncate(filepath.Join(dir, "kept", "snapshot"), 200); err != nil {
			t.Fatal(err)
		}
		address := closedAddress(t)
		r := startRig(t, Config{LastGood: last, Upstream: UpstreamConfig{Address: address}}, delta)
		e := r.envoy(t)
		e.ask(clusterType)
		eventually(t, "it is tried for a while", func() bool { return r.proxy.Status().Attempts > 3 })
		if st := r.proxy.Status(); st.LastGood || st.Connected {
			t.Errorf("status %+v, want neither the last good configuration nor the control plane", st)
		}
		r.start(t, listen(t, address))
		r.nextOf(t, clusterType)
		r.push(clusterType, "v9", "9", "")
		if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errBack.Error()) {
			t.Fatalf("envoy's stream ended with %v", err)
		}
		eventually(t, "the trial has ended", func() bool { return r.streams.Load() == 0 })
		e = r.envoy(t)
		e.ask(clusterType)
		r.nextOf(t, clusterType)
		r.push(clusterType, "v9", "9", "")
		e.wants(clusterType, "9")
	})
}

// TestLastGoodAfterHalfAStart checks that Envoy continues with the last good configuration if the
// control plane stops before it has sent listeners. With clusters alone, Envoy would not start.
func TestLastGoodAfterHalfAStart(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		dir := t.TempDir()
		remember(t, dir, delta)
		_, last := openStored(t, dir)
		address := closedAddress(t)
		r := startRig(t, Config{LastGood: last, Upstream: UpstreamConfig{Address: address}}, delta)
		g := r.start(t, listen(t, address))
		e := r.envoy(t)
		e.ask(clusterType)
		r.nextOf(t, clusterType)
		r.push(clusterType, "v9", "9", "")
		e.wants(clusterType, "9")
		g.Stop()
		if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable {
			t.Fatalf("envoy's stream ended with %v", err)
		}
		e = r.envoy(t)
		e.ask(clusterType)
		e.take(clusterType, "x", anyOf(t, e, clusterType))
		e.ask(listenerType)
		anyOf(t, e, listenerType)
	})
}

// TestLastGoodWhileMute checks that a control plane that accepts streams but does not respond
// counts as unreachable until it responds, however late.
func TestLastGoodWhileMute(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		dir := t.TempDir()
		remember(t, dir, delta)
		_, last := openStored(t, dir)
		r := startRig(t, Config{LastGood: last}, delta)
		e := r.envoy(t)
		e.ask(clusterType)
		r.nextOf(t, clusterType)
		if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errMute.Error()) {
			t.Fatalf("envoy's stream ended with %v", err)
		}
		if st := r.proxy.Status(); st.Attempts != 1 || st.Failure != errMute.Error() {
			t.Errorf("status %+v, want one attempt that got no answer", st)
		}
		eventually(t, "the stream has ended", func() bool { return r.streams.Load() == 0 })
		e = r.envoy(t)
		e.ask(clusterType)
		anyOf(t, e, clusterType)
		r.nextOf(t, clusterType)
		r.push(clusterType, "v9", "9", "")
		if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errBack.Error()) {
			t.Fatalf("envoy's stream ended with %v", err)
		}
		eventually(t, "the trial has ended", func() bool { return r.streams.Load() == 0 })
		e = r.envoy(t)
		e.ask(clusterType)
		r.nextOf(t, clusterType)
		time.Sleep(coldMute + 200*time.Millisecond) // slow, but known to respond
		r.push(clusterType, "v9", "9", "")
		e.wants(clusterType, "9")
	})
}

// TestLastGoodIsNotNeeded checks that the last good configuration is not used if the control plane
// is reachable in time.
func TestLastGoodIsNotNeeded(t *testing.T) {
	t.Parallel()
	r := startRig(t, Config{LastGood: &LastGood{
		Record: func(bool) Recording { return nobody{} },
		Usable: func() error { return nil },
		Serve: func(context.Context, bool, func() ([]byte, error), func([]byte) error) error {
			t.Error("served")
			return nil
		},
	}}, false)
	joinEnvoy(t, r)
}

// nobody is a recording that discards everything.
type nobody struct{}

func (nobody) Response(mem.BufferSlice) {}
func (nobody) Request(mem.BufferSlice)  {}
func (nobody) Close()                   {}
