// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/kube/parts"
)

const (
	startTime = 2 * time.Minute // timeout on a busy machine, with the programs built
	tailLines = 40
)

// New starts a cluster for the test and stops it at the end. If the test failed, it prints the ends
// of the logs and keeps the files.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	c, err := startForTest(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.explain(t)
		if err := c.close(t.Failed()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func startForTest(ctx context.Context, o Options) (*Cluster, error) {
	if o.Log == nil {
		o.Log = os.Stderr
	}
	if _, err := parts.Get(ctx, o.Log); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	return Start(ctx, o)
}

// explain prints the ends of the logs of a failed test.
func (c *Cluster) explain(t testing.TB) {
	t.Helper()
	if t.Failed() {
		t.Logf("%s\n%s\nthe files are in %s", c.APIServer.tail(tailLines), c.Etcd.tail(tailLines), c.work.dir)
	}
}

// NewEtcd starts an etcd for the test and stops it at the end.
func NewEtcd(t testing.TB, o EtcdOptions) *Etcd {
	t.Helper()
	if o.Log == nil {
		o.Log = os.Stderr
	}
	if _, err := parts.Get(t.Context(), o.Log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	e, err := StartEtcd(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\nthe files are in %s", e.tail(tailLines), e.work.dir)
		}
		if err := e.close(t.Failed()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Shared is one cluster for all tests of a package, started by the first that needs it. Each test
// uses its own namespaces. A test that stops or kills a program must use its own cluster.
//
//	var shared kube.Shared
//
//	func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }
type Shared struct {
	Options Options

	mu      sync.Mutex // guards the fields below, and makes the others wait for the first
	cluster *Cluster
	err     error
	failed  bool
	last    int // number of the last namespace
}

// Main runs the tests and then stops the cluster.
func (s *Shared) Main(m *testing.M) (code int) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cluster == nil {
			return
		}
		if err := s.cluster.close(s.failed); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}()
	return m.Run()
}

// Cluster returns the cluster. It is started once; if that fails, every test fails with the reason.
func (s *Shared) Cluster(t testing.TB) *Cluster {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil && s.err == nil {
		s.cluster, s.err = startForTest(t.Context(), s.Options)
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	c := s.cluster
	t.Cleanup(func() {
		c.explain(t)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = s.failed || t.Failed()
	})
	return c
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// Namespace returns the cluster and a new namespace, named after the test, with the service account
// default. It exists until the cluster stops.
func (s *Shared) Namespace(t testing.TB) (*Cluster, string) {
	t.Helper()
	c := s.Cluster(t)
	s.mu.Lock()
	s.last++
	number := s.last
	s.mu.Unlock()
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	name = fmt.Sprintf("%s-%d", strings.TrimRight(name[:min(len(name), 50)], "-"), number)
	if err := c.CreateNamespace(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return c, name
}
