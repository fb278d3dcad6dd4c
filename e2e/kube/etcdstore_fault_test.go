// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// busyWriter changes 50 objects through a store until stop is called, which waits for it. It
// continues after errors. No write is cancelled at the end, because etcd might apply it after the
// final read.
func busyWriter(s *etcdStore) (stop func()) {
	ctx := s.t.Context()
	var stopped atomic.Bool
	var all sync.WaitGroup
	for w := range 5 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for i := 0; !stopped.Load(); i++ {
				c := etcdEntry(fmt.Sprintf("w%d-%d", w, r.IntN(10)), fmt.Sprintf("10.%d.%d.%d", w, i/250%250, i%250))
				var err error
				if r.IntN(4) == 0 {
					err = s.Delete(ctx, c.Key, "")
				} else if _, err = s.Update(ctx, c); errors.Is(err, config.ErrNotFound) {
					_, err = s.Create(ctx, c)
				}
				if err != nil && ctx.Err() == nil && config.StatusCode(err) == 500 {
					time.Sleep(probeEvery) // etcd is down, as the test intends
				}
			}
		})
	}
	return func() {
		stopped.Store(true)
		all.Wait()
	}
}

// truth returns the objects in etcd.
func truth(t *testing.T, client *clientv3.Client, prefix string) map[model.Key]string {
	t.Helper()
	answer, err := client.Get(t.Context(), prefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	all := map[model.Key]string{}
	for _, kv := range answer.Kvs {
		_, name, _ := strings.Cut(string(kv.Key), "/shop/")
		all[etcdEntry(name, "").Key] = fmt.Sprint(kv.ModRevision)
	}
	return all
}

func TestEtcdStoreKilledEtcd(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	ctx := testContext(t)
	s := startEtcdStore(t, etcdURL(e, "", ""))
	stop := busyWriter(startEtcdStore(t, etcdURL(e, "", "")))
	defer stop()
	last := ""
	for range 3 {
		e.Kill()
		if err := e.Start(ctx); err != nil {
			t.Fatal(err)
		}
		// The watch is restored once a later write is seen.
		version := s.must(startEtcdStore(t, etcdURL(e, "", "")).Create(ctx, etcdEntry("mark"+last, "10.0.0.1")))
		s.until("the write after the restart is seen", func() bool {
			c := s.Get(etcdEntry("mark"+last, "").Key)
			return c != nil && c.ResourceVersion == version
		})
		last += "-again"
	}
	stop()
	s.agrees(truth(t, etcdClient(t, e), "/outrigger"))
	if !s.HasSynced() {
		t.Error("the store has not synced any more")
	}
}

// TestEtcdStoreUnreachable starts the store before etcd, and stops etcd for longer than the
// client's own timeout.
func TestEtcdStoreUnreachable(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	ctx := testContext(t)
	e.Kill()
	s := openEtcdStore(t, etcdURL(e, "", ""))
	s.run()
	_, host, _ := strings.Cut(e.Endpoint, "://")
	s.told("cannot be reached at "+host, "connection refused")
	if s.HasSynced() || !s.HasStarted() {
		t.Error("the store has synced without etcd, or did not start")
	}
	_, err := s.Create(ctx, etcdEntry("a", "10.0.0.1"))
	if err == nil || !strings.Contains(err.Error(), "cannot be reached") || config.StatusCode(err) != 500 {
		t.Errorf("a write without etcd: %v", err)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.until("the store has synced", s.HasSynced)
	version := s.must(s.Create(ctx, etcdEntry("a", "10.0.0.1")))

	s.mu.Lock()
	s.errs = nil
	s.mu.Unlock()
	e.Kill()
	s.told("cannot be reached at " + host)
	if c := s.Get(etcdEntry("a", "").Key); c == nil || c.ResourceVersion != version {
		t.Errorf("without etcd the store shows %v", c)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	other := startEtcdStore(t, etcdURL(e, "", ""))
	other.must(other.Create(ctx, etcdEntry("b", "10.0.0.2")))
	s.agrees(truth(t, etcdClient(t, e), "/outrigger"))
	s.until("the log says that it works again", func() bool { return strings.Count(s.log.String(), "etcd can be watched again") == 2 })
	if n := strings.Count(s.log.String(), "cannot be reached"); n != 2 {
		t.Errorf("two outages are logged %d times:\n%s", n, s.log)
	}
}

// TestEtcdStoreSilence pauses etcd: its connections stay open without data.
func TestEtcdStoreSilence(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	s := startEtcdStore(t, etcdURL(e, "", ""))
	e.Pause()
	s.told("cannot be reached", "deadline exceeded")
	e.Resume()
	other := startEtcdStore(t, etcdURL(e, "", ""))
	other.must(other.Create(t.Context(), etcdEntry("a", "10.0.0.1")))
	s.agrees(truth(t, etcdClient(t, e), "/outrigger"))
}

// TestEtcdStoreCompaction disconnects the store, and compacts the changes that it misses.
func TestEtcdStoreCompaction(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	raw := etcdClient(t, e)
	_, host, _ := strings.Cut(e.Endpoint, "://")
	line := newCable(t, host)
	s := startEtcdStore(t, "etcd://"+line.address+"/mesh")
	other := startEtcdStore(t, etcdURL(e, "", "/mesh"))
	for i := range 20 {
		other.must(other.Create(t.Context(), etcdEntry(fmt.Sprintf("w%d", i), "10.0.0.1")))
	}
	s.agrees(truth(t, raw, "/mesh"))
	for round := range 2 {
		line.cut()
		for i := range 5 {
			if err := other.Delete(t.Context(), etcdEntry(fmt.Sprintf("w%d", i+5*round), "").Key, ""); err != nil {
				t.Fatal(err)
			}
			other.must(other.Update(t.Context(), etcdEntry(fmt.Sprintf("w%d", i+10), "10.0.0.2")))
			other.must(other.Create(t.Context(), etcdEntry(fmt.Sprintf("n%d-%d", i, round), "10.0.0.3")))
		}
		answer, err := raw.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Compact(t.Context(), answer.Header.Revision); err != nil {
			t.Fatal(err)
		}
		line.mend()
		s.agrees(truth(t, raw, "/mesh"))
	}
	if n := strings.Count(s.log.String(), "etcd has compacted changes"); n != 2 {
		t.Errorf("the log reports %d compactions, want 2:\n%s", n, s.log)
	}
	// It follows changes as before.
	other.must(other.Create(t.Context(), etcdEntry("last", "10.0.0.1")))
	s.agrees(truth(t, raw, "/mesh"))
}

// TestEtcdStoreNewEtcd replaces etcd by an empty one under the same address.
func TestEtcdStoreNewEtcd(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	ctx := testContext(t)
	s := startEtcdStore(t, etcdURL(e, "", ""))
	for i := range 10 {
		s.must(s.Create(ctx, etcdEntry(fmt.Sprintf("w%d", i), "10.0.0.1")))
	}
	e.Kill()
	if err := os.RemoveAll(e.work.file("etcd")); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	other := startEtcdStore(t, etcdURL(e, "", ""))
	other.must(other.Create(ctx, etcdEntry("new", "10.0.0.1")))
	s.agrees(truth(t, etcdClient(t, e), "/outrigger"))
	if !strings.Contains(s.log.String(), "lower revision") {
		t.Errorf("the log does not report it:\n%s", s.log)
	}
	s.must(s.Create(ctx, etcdEntry("w1", "10.0.0.1")))
	other.agrees(truth(t, etcdClient(t, e), "/outrigger"))
}

// TestEtcdStoreMembers names an unreachable member first.
func TestEtcdStoreMembers(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	_, host, _ := strings.Cut(e.Endpoint, "://")
	line := newCable(t, host)
	s := startEtcdStore(t, "etcd://"+line.address+","+host+"/mesh")
	for i := range 4 {
		if i == 2 {
			line.cut() // a write in progress fails
		}
		s.until("the other member takes a write", func() bool {
			_, err := s.Create(t.Context(), etcdEntry(fmt.Sprintf("w%d", i), "10.0.0.1"))
			return err == nil || errors.Is(err, config.ErrExists)
		})
	}
	other := startEtcdStore(t, etcdURL(e, "", "/mesh"))
	other.must(other.Create(t.Context(), etcdEntry("other", "10.0.0.1")))
	s.agrees(truth(t, etcdClient(t, e), "/mesh"))
}
