// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/etcd"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// etcdURL returns the URL of the store in an etcd; user is "" or "name@".
func etcdURL(e *Etcd, user, path string) string {
	_, host, _ := strings.Cut(e.Endpoint, "://")
	return "etcd://" + user + host + path
}

// etcdStore is a store under test, with its log.
type etcdStore struct {
	config.Store
	t    *testing.T
	log  *lockedBuffer
	stop func()

	mu     sync.Mutex // guards the fields below
	events map[model.Key]string
	errs   []error
}

// openEtcdStore opens a store without running it.
func openEtcdStore(t *testing.T, address string) *etcdStore {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	s := &etcdStore{t: t, log: &lockedBuffer{}, events: map[model.Key]string{}}
	if s.Store, err = etcd.Open(u, config.OpenConfig{Logger: slog.New(slog.NewTextHandler(s.log, nil))}); err != nil {
		t.Fatal(err)
	}
	s.RegisterEventHandler(func(events []config.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range events {
			if e.New == nil {
				delete(s.events, e.Old.Key)
			} else {
				s.events[e.New.Key] = e.New.ResourceVersion
			}
		}
	})
	s.SetWatchErrorHandler(func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.errs = append(s.errs, err)
	})
	return s
}

// run runs the store until the test ends or stop is called.
func (s *etcdStore) run() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				s.t.Errorf("Run ended with %v", err)
			}
		case <-time.After(time.Minute):
			s.t.Error("Run does not end with its context")
		}
		if s.t.Failed() {
			s.t.Logf("the log of %s:\n%s", s.Name(), s.log)
		}
	})
	s.t.Cleanup(s.stop)
}

// startEtcdStore opens a store, runs it and waits until it has synced.
func startEtcdStore(t *testing.T, address string) *etcdStore {
	t.Helper()
	s := openEtcdStore(t, address)
	s.run()
	s.until("the store has synced", s.HasSynced)
	return s
}

func (s *etcdStore) until(what string, yes func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	eventually(s.t, ctx, what, yes)
}

// told waits until the handler of watch errors has received an error that contains all the words.
func (s *etcdStore) told(words ...string) {
	s.t.Helper()
	s.until(fmt.Sprintf("the handler of watch errors receives %q", words), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, err := range s.errs {
			all := true
			for _, word := range words {
				all = all && strings.Contains(err.Error(), word)
			}
			if all {
				return true
			}
		}
		return false
	})
}

// agrees waits until the store has the same objects as another one, and its handlers have received
// exactly these.
func (s *etcdStore) agrees(want map[model.Key]string) {
	s.t.Helper()
	state := func() string {
		shown := map[model.Key]string{}
		for _, c := range s.List(model.WorkloadEntry, "") {
			shown[c.Key] = c.ResourceVersion
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, side := range []struct {
			name string
			have map[model.Key]string
		}{{"the list", shown}, {"the events", s.events}} {
			for key, version := range want {
				if side.have[key] != version {
					return fmt.Sprintf("%s: %s has the version %q, want %q", side.name, key, side.have[key], version)
				}
			}
			if len(side.have) != len(want) {
				return fmt.Sprintf("%s: %d objects, want %d", side.name, len(side.have), len(want))
			}
		}
		return ""
	}
	for end := time.Now().Add(time.Minute); state() != ""; time.Sleep(probeEvery) {
		if time.Now().After(end) {
			s.t.Fatalf("the stores differ: %s", state())
		}
	}
}

func (s *etcdStore) must(version string, err error) string {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	return version
}

func etcdEntry(name, address string) *model.Config {
	return &model.Config{
		Key:  model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: name},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: address},
	}
}

// etcdKey returns the key of a workload entry.
func etcdKey(prefix, name string) string {
	return prefix + "/networking.istio.io/workloadentries/shop/" + name
}

// etcdClient returns etcd's own client.
func etcdClient(t *testing.T, e *Etcd) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}, TLS: e.TLS(), DialTimeout: startTime, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// cable is a connection that can be cut: a TCP proxy in front of a server.
type cable struct {
	t       *testing.T
	target  string
	address string

	mu    sync.Mutex // guards the fields below
	lis   net.Listener
	conns []net.Conn
}

func newCable(t *testing.T, target string) *cable {
	t.Helper()
	c := &cable{t: t, target: target, address: "127.0.0.1:0"}
	c.mend()
	t.Cleanup(c.cut)
	return c
}

// mend forwards connections again.
func (c *cable) mend() {
	c.t.Helper()
	lis, err := net.Listen("tcp", c.address)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lis, c.address = lis, lis.Addr().String()
	go func() {
		for {
			near, err := lis.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", c.target)
			if err != nil {
				_ = near.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, near, far)
			c.mu.Unlock()
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				}()
			}
		}
	}()
}

// cut closes all connections and refuses new ones.
func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.lis.Close()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}
