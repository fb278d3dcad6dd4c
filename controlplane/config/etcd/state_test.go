// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

func TestPaths(t *testing.T) {
	t.Parallel()
	seen := map[string]model.Key{}
	for _, sch := range schema.All() {
		key := model.Key{Kind: sch.Kind, Namespace: "shop", Name: "a.b"}
		if sch.Cluster {
			key.Namespace = ""
		}
		path, err := pathOf(key)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if other, ok := seen[path]; ok {
			t.Errorf("%s and %s have the same path %s", key, other, path)
		}
		seen[path] = key
		if back, err := keyOf(path); err != nil || back != key {
			t.Errorf("pathOf(%s) = %s, whose keyOf is %s, %v", key, path, back, err)
		}
	}
	for key, want := range map[model.Key]error{
		{Kind: "Pod", Namespace: "shop", Name: "a"}:              config.ErrNoKind,
		{Kind: model.Sidecar, Namespace: "", Name: "a"}:          config.ErrNotFound,
		{Kind: model.Sidecar, Namespace: "-", Name: "a"}:         config.ErrNotFound,
		{Kind: model.Sidecar, Namespace: "shop", Name: ""}:       config.ErrNotFound,
		{Kind: model.Sidecar, Namespace: "shop/a", Name: "b"}:    config.ErrNotFound,
		{Kind: model.GatewayClass, Namespace: "shop", Name: "a"}: config.ErrNotFound,
	} {
		if path, err := pathOf(key); !errors.Is(err, want) {
			t.Errorf("pathOf(%s) = %s, %v; want %v", key, path, err, want)
		}
	}
}

func FuzzKeyOf(f *testing.F) {
	f.Add("networking.istio.io/sidecars/shop/a")
	f.Add("gateway.networking.k8s.io/gatewayclasses/-/a")
	f.Fuzz(func(t *testing.T, path string) {
		key, err := keyOf(path)
		if err != nil {
			return
		}
		if back, err := pathOf(key); err != nil || back != path {
			t.Fatalf("keyOf(%q) = %v, whose pathOf is %q, %v", path, key, back, err)
		}
	})
}

// testStore returns a store that makes no requests.
func testStore() *Store {
	return &Store{
		Cache: config.NewCache(schema.All()), conn: newConnection(options{hosts: []string{"a:1"}, prefix: "/m/"}),
		log: slog.New(slog.DiscardHandler), entries: map[string]entry{},
	}
}

func put(t *testing.T, s *Store, name, address string, revision int64) observed {
	t.Helper()
	c := &model.Config{
		Key:  model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: name},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: address},
	}
	value, err := s.encode(c)
	if err != nil {
		t.Fatal(err)
	}
	path, err := pathOf(c.Key)
	if err != nil {
		t.Fatal(err)
	}
	return s.read(path, &mvccpb.KeyValue{Value: value, ModRevision: revision, CreateRevision: 1})
}

func shows(t *testing.T, s *Store, when, want string) {
	t.Helper()
	got := ""
	for _, c := range s.List(model.WorkloadEntry, "") {
		got += fmt.Sprintf(" %s@%s", c.Name, c.ResourceVersion)
	}
	if strings.TrimSpace(got) != want {
		t.Errorf("%s: got %q, want %q", when, got, want)
	}
}

// TestOlderResponsesAreIgnored checks that older responses of a watch or a load do not overwrite a
// store's own writes.
func TestOlderResponsesAreIgnored(t *testing.T) {
	t.Parallel()
	s := testStore()
	gone := func(revision int64) observed {
		o := put(t, s, "a", "10.0.0.1", revision)
		o.object, o.gone = nil, true
		return o
	}
	s.observe(5, put(t, s, "a", "10.0.0.5", 5))
	s.observe(4, put(t, s, "a", "10.0.0.4", 4))
	shows(t, s, "after an older change", "a@5")
	s.observe(7, gone(7))
	s.observe(6, put(t, s, "a", "10.0.0.6", 6))
	s.passed(6)
	shows(t, s, "after a change that is older than the removal", "")
	if len(s.entries) != 1 {
		t.Errorf("the deletion was forgotten before the watch passed it: %v", s.entries)
	}
	s.passed(7)
	if len(s.entries) != 0 || len(s.graves) != 0 {
		t.Errorf("the deletion is still remembered after the watch passed it: %v, %v", s.entries, s.graves)
	}
	s.observe(9, put(t, s, "a", "10.0.0.9", 9), put(t, s, "b", "10.0.0.1", 8))
	s.replace(8, map[string]bool{"networking.istio.io/workloadentries/shop/b": true}, nil)
	shows(t, s, "after a load that is older than a write", "a@9 b@8")
	s.replace(10, map[string]bool{"networking.istio.io/workloadentries/shop/b": true}, nil)
	shows(t, s, "after a load without it", "b@8")
}

func TestRevisionWentBack(t *testing.T) {
	t.Parallel()
	s := testStore()
	s.observe(9, put(t, s, "a", "10.0.0.9", 9), put(t, s, "b", "10.0.0.1", 8))
	if s.wentBack(9) {
		t.Error("wentBack(9) = true, want false")
	}
	if !s.wentBack(3) {
		t.Error("wentBack(3) = false after revision 9, want true")
	}
	s.replace(3, map[string]bool{"networking.istio.io/workloadentries/shop/a": true}, []observed{put(t, s, "a", "10.0.0.2", 2)})
	shows(t, s, "after a load from an older etcd", "a@2")
}

func TestBadValueKeepsTheLastGood(t *testing.T) {
	t.Parallel()
	s := testStore()
	good := put(t, s, "a", "10.0.0.1", 2)
	bad := s.read(good.path, &mvccpb.KeyValue{Value: []byte("{"), ModRevision: 3})
	s.observe(2, good)
	s.observe(3, bad)
	shows(t, s, "after a bad value", "a@2")
	if p := s.Problems(); len(p) != 1 || p[0].Object.Name != "a" || p[0].Warning || !strings.Contains(p[0].String(), "last good version stays") {
		t.Errorf("problems: got %v, want that the last good version stays in force", p)
	}
	s.observe(4, put(t, s, "a", "10.0.0.1", 4))
	shows(t, s, "after a good value", "a@4")
	if p := s.Problems(); len(p) != 0 {
		t.Errorf("problems: got %v, want none", p)
	}
}

// TestInvalidValueKeepsTheLastGood checks that an invalid object does not come into force, as in
// other stores. A write without a version corrects it; a write with the version of the last good
// object is rejected, because its writer has not seen the invalid one.
func TestInvalidValueKeepsTheLastGood(t *testing.T) {
	t.Parallel()
	s := testStore()
	good := put(t, s, "a", "10.0.0.1", 2)
	bad := put(t, s, "a", "no address!", 3)
	s.observe(2, good)
	s.observe(3, bad)
	shows(t, s, "after an object that breaks a rule", "a@2")
	if p := s.Problems(); len(p) != 1 || p[0].Warning || !strings.Contains(p[0].Reason, "spec.address") || !strings.Contains(p[0].Reason, "last good version stays") {
		t.Errorf("problems: got %v, want that the last good version stays in force", p)
	}
	key := good.object.Key
	e := s.entry(good.path)
	if err := e.check("update", key, "2"); !errors.Is(err, config.ErrMalformed) {
		t.Errorf("check() with the last good version = %v, want ErrMalformed", err)
	}
	for _, version := range []string{"", "3"} {
		if err := e.check("update", key, version); err != nil {
			t.Errorf("check() with version %q = %v, want nil", version, err)
		}
	}
	if got := e.basis().Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress(); got != "no address!" {
		t.Errorf("the address to change is %q, want that of the invalid object", got)
	}
	s.observe(4, put(t, s, "b", "no address!", 4))
	shows(t, s, "after an object that was never good", "a@2")
}

func TestExplain(t *testing.T) {
	t.Parallel()
	o := options{hosts: []string{"a:1", "b:2"}, prefix: "/m/", user: "mesh", passwordFile: "/p"}
	dial := `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`
	for _, c := range []struct {
		err, cause error
		words      []string
	}{
		{rpctypes.ErrGRPCAuthFailed, nil, []string{`"mesh"`, "/p", "correct it"}},
		{rpctypes.ErrUserEmpty, nil, []string{"requires authentication", "passwordFile="}},
		{rpctypes.ErrGRPCPermissionDenied, nil, []string{"etcdctl role grant-permission", "/m/"}},
		{rpctypes.ErrNoSpace, nil, []string{"full", "etcdctl alarm disarm"}},
		{rpctypes.ErrNoLeader, nil, []string{"no leader", "a:1, b:2"}},
		{status.Error(codes.Unavailable, dial), nil, []string{"cannot be reached at a:1, b:2: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"}},
		{context.DeadlineExceeded, status.Error(codes.DeadlineExceeded, "latest balancer error: "+dial), []string{"cannot be reached", "127.0.0.1:1: connect: connection refused"}},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: first record does not look like a TLS handshake"`), nil, []string{"plain text", "remove ca="}},
		{status.Error(codes.DataLoss, "odd"), nil, []string{"a:1, b:2", "odd"}},
	} {
		err := (&attempt{cause: c.cause}).explain(o, c.err)
		for _, word := range c.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("explain(%v) = %v, want it to contain %q", c.err, err, word)
			}
		}
		if again := o.explain(err); again.Error() != err.Error() && status.Code(c.err) != codes.DataLoss {
			t.Errorf("explain() of an explained error = %v, want the same", again)
		}
	}
}

// TestClosed makes a request on a store whose Run has ended, and one with a canceled context.
func TestClosed(t *testing.T) {
	t.Parallel()
	s := testStore()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ask := func(context.Context, *clientv3.Client) error { t.Error("a request was made"); return nil }
	s.conn.close()
	if err := s.conn.request(t.Context(), true, ask); !errors.Is(err, errClosed) {
		t.Errorf("a request on a closed store = %v, want errClosed", err)
	}
	s.conn.turn <- struct{}{}
	if err := s.conn.request(ctx, true, ask); !errors.Is(err, context.Canceled) {
		t.Errorf("a request with a canceled context = %v, want context.Canceled", err)
	}
}
