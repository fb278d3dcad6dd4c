// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

const grace = 10 * time.Second

// mesh is a store and its replicas.
type mesh struct {
	t     *testing.T
	store config.Store
	// faulty wraps the store for all replicas.
	faulty *faulty

	mu       sync.Mutex // guards replicas
	replicas map[*replica]bool
}

// faulty is a store whose writes fail while err is set, before or after they are performed. A
// write takes twice the delay; the change is visible after the first half.
type faulty struct {
	config.Store
	mu    sync.Mutex // guards the fields below
	err   error
	lies  bool // fails after the write
	delay time.Duration
	// before is called before a removal; may be nil.
	before func()
}

// set makes writes fail; nil makes them succeed again.
func (f *faulty) set(err error, lies bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.lies = err, lies
}

// write performs a write.
func (f *faulty) write(do func() (string, error)) (string, error) {
	time.Sleep(f.delay)
	f.mu.Lock()
	err, lies := f.err, f.lies
	f.mu.Unlock()
	if err != nil && !lies {
		return "", err
	}
	version, failed := do()
	time.Sleep(f.delay)
	if err != nil {
		return "", err
	}
	return version, failed
}

func (f *faulty) Create(ctx context.Context, c *model.Config) (string, error) {
	return f.write(func() (string, error) { return f.Store.Create(ctx, c) })
}

func (f *faulty) Update(ctx context.Context, c *model.Config) (string, error) {
	return f.write(func() (string, error) { return f.Store.Update(ctx, c) })
}

func (f *faulty) Delete(ctx context.Context, key model.Key, version string) error {
	if f.before != nil {
		f.before()
	}
	_, err := f.write(func() (string, error) { return "", f.Store.Delete(ctx, key, version) })
	return err
}

func newMesh(t *testing.T, store config.Store) *mesh {
	t.Helper()
	m := &mesh{t: t, store: store, faulty: &faulty{Store: store}, replicas: map[*replica]bool{}}
	store.RegisterEventHandler(func(events []config.Event) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for r := range m.replicas {
			r.Hear(events)
		}
	}, model.WorkloadEntry, model.WorkloadGroup)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-store.Synced()
	return m
}

// replica is one control plane.
type replica struct {
	*Controller
	mesh   *mesh
	cancel context.CancelFunc
	done   chan error
}

// replica starts a replica. It first receives the objects of the store.
func (m *mesh) replica(instance string, alter ...func(*Config)) *replica {
	m.t.Helper()
	cfg := Config{Store: m.faulty, Instance: instance, Grace: grace}
	for _, f := range alter {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	r := &replica{Controller: c, mesh: m, cancel: cancel, done: make(chan error, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	var events []config.Event
	for _, kind := range []model.Kind{model.WorkloadEntry, model.WorkloadGroup} {
		for _, c := range m.store.List(kind, "") {
			events = append(events, config.Event{Type: config.Added, New: c})
		}
	}
	r.Hear(events)
	m.replicas[r] = true
	go func() { r.done <- r.Run(ctx) }()
	m.t.Cleanup(r.crash)
	return r
}

// crash stops a replica without notifying the other replicas.
func (r *replica) crash() {
	r.mesh.mu.Lock()
	running := r.mesh.replicas[r]
	delete(r.mesh.replicas, r)
	r.mesh.mu.Unlock()
	if !running {
		return
	}
	r.cancel()
	if err := <-r.done; err != nil {
		r.mesh.t.Error(err)
	}
}

func groupKey(name string) model.Key {
	return model.Key{Kind: model.WorkloadGroup, Namespace: "shop", Name: name}
}

func entryKey(name string) model.Key {
	return model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: name}
}

// group returns the group web with the service account web.
func group() *model.Config {
	return &model.Config{Key: groupKey("web"), APIVersion: "networking.istio.io/v1", Spec: &networkingv1alpha3.WorkloadGroup{
		Metadata: &networkingv1alpha3.WorkloadGroup_ObjectMeta{
			Labels:      map[string]string{"app": "web", "tier": "group"},
			Annotations: map[string]string{"owner": "shop", groupAnnotation: "forged"},
		},
		Template: &networkingv1alpha3.WorkloadEntry{
			ServiceAccount: "web", Ports: map[string]uint32{"http": 8080}, Weight: 7, Network: "net-1", Locality: "r/z/template",
			Labels: map[string]string{"tier": "template", "from": "template"},
		},
	}}
}

func (m *mesh) create(c *model.Config) {
	m.t.Helper()
	if _, err := m.store.Create(m.t.Context(), c); err != nil {
		m.t.Fatal(err)
	}
}

// patch changes an object, as a user does.
func (m *mesh) patch(key model.Key, change func(*model.Config)) {
	m.t.Helper()
	if _, err := m.store.Patch(m.t.Context(), key, func(c *model.Config) error { change(c); return nil }); err != nil {
		m.t.Fatal(err)
	}
}

func (m *mesh) delete(key model.Key) {
	m.t.Helper()
	if err := m.store.Delete(m.t.Context(), key, ""); err != nil {
		m.t.Fatal(err)
	}
}

// machine returns a new stream of a proxy of the group web.
func machine(address string) model.ConnectedProxy {
	return model.ConnectedProxy{
		Proxy: &model.Proxy{
			ID: "vm-" + address + ".shop", Role: "sidecar", IPs: []string{address}, Namespace: "shop", ServiceAccount: "web", AutoRegisterGroup: "web",
		},
		Verified: true, Source: netip.MustParseAddr(address),
	}
}

// connect registers a new stream, and returns a function that ends it.
func (r *replica) connect(p model.ConnectedProxy) (leave func()) {
	r.mesh.t.Helper()
	if err := r.Connect(p); err != nil {
		r.mesh.t.Fatal(err)
	}
	return func() { r.Gone(p.Proxy) }
}

// entry returns an entry of the store, or nil if it does not exist.
func (m *mesh) entry(name string) *model.Config { return m.store.Get(entryKey(name)) }

// wantEntries compares the entries of the store.
func (m *mesh) wantEntries(what string, names ...string) {
	m.t.Helper()
	var got []string
	for _, c := range m.store.List(model.WorkloadEntry, "") {
		got = append(got, c.Name)
	}
	want := map[string]bool{}
	for _, n := range names {
		want[n] = true
	}
	ok := len(got) == len(want)
	for _, n := range got {
		ok = ok && want[n]
	}
	if !ok {
		m.t.Fatalf("%s: the entries are %q, want %q", what, got, names)
	}
}

// wantHeld checks which replica owns an entry; an empty instance means that it is marked as
// disconnected.
func (m *mesh) wantHeld(what, name, instance string) {
	m.t.Helper()
	c := m.entry(name)
	if c == nil {
		m.t.Fatalf("%s: the entry %s does not exist", what, name)
	}
	held := c.Annotations[controllerAnnotation]
	if c.Annotations[disconnectedAnnotation] != "" {
		held = ""
	}
	if connected := c.Annotations[connectedAnnotation] != ""; held != instance || connected != (instance != "") {
		m.t.Fatalf("%s: the annotations of %s are %v, want it owned by %q", what, name, c.Annotations, instance)
	}
	for _, name := range []string{connectedAnnotation, disconnectedAnnotation} {
		if text, ok := c.Annotations[name]; ok {
			if _, err := time.Parse(time.RFC3339Nano, text); err != nil {
				m.t.Fatalf("%s: %s: %v", what, name, err)
			}
		}
	}
}

func newStore() config.Store { return memory.New(fmt.Sprintf("memory://%p", new(int))) }
