// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/storetest"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// kindsOfStream maps the two kinds of stream to the query that requests them.
var kindsOfStream = map[string]string{"full states": "", "delta": "?delta=true"}

func newRunning(t *testing.T, query string) *plane {
	t.Helper()
	p := newPlane(t, query != "")
	p.start()
	t.Cleanup(p.stop)
	return p
}

// TestContract runs the read-only part of the contract against go-control-plane's server.
func TestContract(t *testing.T) {
	t.Parallel()
	for name, query := range kindsOfStream {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var planes sync.Map
			storetest.Run(t, func(t *testing.T) config.Store {
				p := newRunning(t, query)
				p.fill()
				s := openStore(t, p.address+query, Config{}, nil)
				planes.Store(s, p)
				return s
			}, storetest.Options{Fill: func(t *testing.T, s config.Store, objects ...*model.Config) {
				t.Helper()
				p, _ := planes.Load(s)
				p.(*plane).fill(objects...)
			}})
		})
	}
}

// events counts the events of a store.
type events struct {
	mu  sync.Mutex // guards all
	all []config.Event
}

func (e *events) hear(more []config.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, more...)
}

func (e *events) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// TestReconnect checks that the restart of a server removes no object from force and that exactly
// the changes made meanwhile cause events. The fault must be reported each time and logged once.
func TestReconnect(t *testing.T) {
	t.Parallel()
	for name, query := range kindsOfStream {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newRunning(t, query)
			p.fill(workload("stays", "10.0.0.1"), workload("goes", "10.0.0.2"), workload("changes", "10.0.0.3"))
			var log lockedBuffer
			s := openStore(t, p.address+query, Config{}, slog.New(slog.NewTextHandler(&log, nil)))
			heard, told := &events{}, make(chan error, 1000)
			s.RegisterEventHandler(heard.hear)
			s.SetWatchErrorHandler(func(err error) { told <- err })
			run(t, s)
			<-s.Synced()
			stays := s.Get(entryKey("stays"))
			p.stop()
			for range 3 {
				if err := <-told; !strings.Contains(err.Error(), p.address) {
					t.Errorf("reported error: got %v, want one with the address %s", err, p.address)
				}
			}
			if heard.count() != 3 || len(s.List(model.WorkloadEntry, "")) != 3 || !s.HasSynced() {
				t.Fatal("objects or events changed when the server stopped")
			}
			p.fill(workload("stays", "10.0.0.1"), workload("comes", "10.0.0.4"), workload("changes", "10.0.0.5"))
			p.start()
			until(t, "the changes are in force", func() bool {
				return s.Get(entryKey("comes")) != nil && s.Get(entryKey("goes")) == nil && address(s.Get(entryKey("changes"))) == "10.0.0.5"
			})
			until(t, "the changes caused events", func() bool { return heard.count() == 6 })
			if s.Get(entryKey("stays")) != stays {
				t.Error("an unchanged object was replaced")
			}
			until(t, "that it is over is logged", func() bool { return strings.Contains(log.String(), "is watched again") })
			text := log.String()
			if n := strings.Count(text, "connection refused"); n != 1 {
				t.Errorf("the same fault was logged %d times:\n%s", n, text)
			}
		})
	}
}

// lockedBuffer is a log that is safe for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRejects checks that invalid objects are rejected by name, that the valid ones of the same
// response are in force, and that last good versions stay. A server that sends the same content
// again immediately is answered with a delay.
func TestRejects(t *testing.T) {
	t.Parallel()
	for name, query := range kindsOfStream {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newRunning(t, query)
			p.fill(workload("a", "10.0.0.1"), workload("b", "10.0.0.2"))
			s := openStore(t, p.address+query, Config{}, nil)
			run(t, s)
			<-s.Synced()
			first := s.Get(entryKey("a"))
			bad := encoded(t, workload("a", "10.0.0.9"))
			bad.Body.Value = []byte{0xff, 0xff}
			p.set(workloadType, "shop/a", bad)
			p.set(workloadType, "shop/b", encoded(t, workload("b", "10.0.0.3")))
			until(t, "the good one is in force", func() bool { return address(s.Get(entryKey("b"))) == "10.0.0.3" })
			until(t, "the bad one is a problem", func() bool { return len(s.Problems()) == 1 })
			if s.Get(entryKey("a")) != first {
				t.Error("the last good version is not in force")
			}
			problem := s.Problems()[0]
			if problem.Object != entryKey("a") || !strings.Contains(problem.Reason, "body cannot be read") || !strings.Contains(problem.Reason, "stays in force") ||
				!strings.Contains(problem.Source, workloadType+"/shop/a") {
				t.Errorf("problem: got %v", problem)
			}
			until(t, "the server received the NACK", func() bool { return len(p.rejected()) > 0 })
			if text := p.rejected()[0]; !strings.Contains(text, `"shop/a": body cannot be read`) || strings.Contains(text, "shop/b") {
				t.Errorf("the NACK is %q, want one about a only", text)
			}
			// Each repeated rejection is delayed by at least a second.
			invalid := encoded(t, workload("a", ""))
			p.set(workloadType, "shop/a", invalid)
			until(t, "the new fault is the problem", func() bool {
				all := s.Problems()
				return len(all) == 1 && strings.Contains(all[0].Reason, "spec.address")
			})
			p.set(workloadType, "shop/a", encoded(t, workload("a", "10.0.0.4")))
			until(t, "it is corrected", func() bool { return address(s.Get(entryKey("a"))) == "10.0.0.4" && len(s.Problems()) == 0 })
			if n := len(p.rejected()); n > 10 {
				t.Errorf("%d NACKs were sent, want at most 10", n)
			}
		})
	}
}

func TestRevision(t *testing.T) {
	t.Parallel()
	for name, query := range kindsOfStream {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newRunning(t, query)
			labelled := func(revision string) *model.Config {
				c := workload("a", "10.0.0.1")
				c.Labels = map[string]string{"istio.io/rev": revision}
				return c
			}
			p.fill(labelled("canary"), workload("b", "10.0.0.2"))
			s := openStore(t, p.address+query, Config{Revision: "stable"}, nil)
			heard := &events{}
			s.RegisterEventHandler(heard.hear)
			run(t, s)
			<-s.Synced()
			if s.Get(entryKey("a")) != nil || heard.count() != 1 {
				t.Error("an object of another revision is in force")
			}
			p.fill(labelled("stable"), workload("b", "10.0.0.2"))
			until(t, "the object is in force", func() bool { return s.Get(entryKey("a")) != nil })
			p.fill(labelled("canary"), workload("b", "10.0.0.2"))
			until(t, "the object is removed", func() bool { return s.Get(entryKey("a")) == nil })
			until(t, "the addition and removal caused events", func() bool { return heard.count() == 3 })
		})
	}
}

// TestMeshConfig checks that the mesh config is stored and ACKed, because a server may wait for the
// ACK before it sends the next one.
func TestMeshConfig(t *testing.T) {
	t.Parallel()
	for name, query := range kindsOfStream {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newRunning(t, query)
			p.fill()
			s := openStore(t, p.address+query, Config{}, nil)
			run(t, s)
			<-s.Synced()
			if s.MeshConfig() != nil {
				t.Error("MeshConfig() is not nil before the response")
			}
			for _, root := range []string{"one", "two", "three"} {
				p.setMesh(&meshv1alpha1.MeshConfig{RootNamespace: root})
				until(t, "the mesh config is stored", func() bool { return s.MeshConfig().GetRootNamespace() == root })
			}
			if len(p.rejected()) > 0 {
				t.Errorf("the mesh config was rejected: %v", p.rejected())
			}
		})
	}
}

// TestWaiting checks that a store needs a response for each type, and reports which are missing.
func TestWaiting(t *testing.T) {
	t.Parallel()
	for name, query := range kindsOfStream {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, query != "")
			const silent = "networking.istio.io/v1alpha3/Sidecar"
			delete(p.caches, silent)
			p.start()
			t.Cleanup(p.stop)
			p.set(workloadType, "shop/a", encoded(t, workload("a", "10.0.0.1")))
			s := openStore(t, p.address+query, Config{}, nil)
			if n := len(s.Waiting()); n != len(schema.All())+1 {
				t.Errorf("Waiting() has %d types, want all", n)
			}
			run(t, s)
			until(t, "only one type is missing", func() bool { return len(s.Waiting()) == 1 })
			if s.Waiting()[0] != silent || s.HasSynced() || s.Get(entryKey("a")) == nil {
				t.Errorf("Waiting() = %v, want only %s", s.Waiting(), silent)
			}
		})
	}
}

// TestMetadata checks that versions come from the server and never repeat, and that creation times,
// labels and annotations are kept.
func TestMetadata(t *testing.T) {
	t.Parallel()
	p := newRunning(t, "")
	p.fill()
	created := time.Unix(1_700_000_000, 0).UTC()
	send := func(address string) {
		c := workload("a", address)
		c.ResourceVersion, c.Created = "7", created
		c.Labels, c.Annotations = map[string]string{"app": "a"}, map[string]string{"note": "x"}
		p.set(workloadType, "shop/a", encoded(t, c))
	}
	s := openStore(t, p.address, Config{}, nil)
	run(t, s)
	seen := map[string]bool{}
	for i := range 4 {
		ip := fmt.Sprintf("10.0.0.%d", 1+i%2)
		send(ip)
		until(t, "the address is in force", func() bool { return address(s.Get(entryKey("a"))) == ip })
		c := s.Get(entryKey("a"))
		if seen[c.ResourceVersion] || !strings.HasPrefix(c.ResourceVersion, "7.") {
			t.Errorf("the version %q is not unique or not of the server: %v", c.ResourceVersion, seen)
		}
		seen[c.ResourceVersion] = true
		if !c.Created.Equal(created) || c.Labels["app"] != "a" || c.Annotations["note"] != "x" {
			t.Errorf("metadata: got %+v", c)
		}
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := openStore(t, testHost+":1", Config{}, nil)
	c := workload("a", "10.0.0.1")
	_, create := s.Create(t.Context(), c)
	_, update := s.Update(t.Context(), c)
	_, status := s.UpdateStatus(t.Context(), c)
	_, patch := s.Patch(t.Context(), c.Key, func(*model.Config) error { return nil })
	_, none := s.UpdateStatus(t.Context(), nil)
	for _, err := range []error{create, update, status, patch, none, s.Delete(t.Context(), c.Key, "")} {
		if !errors.Is(err, config.ErrReadOnly) || !strings.Contains(err.Error(), s.Name()) {
			t.Errorf("got error %v, want ErrReadOnly with the name of the store", err)
		}
	}
}

// TestEveryKind checks that objects of every kind are the same after encoding and decoding.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	for _, sch := range schema.All() {
		for _, version := range sch.Versions {
			url := sch.Group + "/" + version + "/" + sch.Name
			if got, ok := SchemaOf(url); !ok || got.Kind != sch.Kind {
				t.Errorf("SchemaOf(%s) = %v, %v", url, got.Kind, ok)
			}
		}
		if got, ok := SchemaOf(typeURL(sch, true)); !ok || got.Kind != sch.Kind {
			t.Errorf("SchemaOf(%s) = %v, %v", typeURL(sch, true), got.Kind, ok)
		}
		c := &model.Config{Key: model.Key{Kind: sch.Kind, Namespace: "a", Name: "b"}, Spec: sch.NewSpec()}
		m := encoded(t, c)
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again := &mcpv1alpha1.Resource{}
		if err := proto.Unmarshal(raw, again); err != nil {
			t.Fatal(err)
		}
		validate.ApplyDefaults(c.Spec)
		if spec, err := decodeBody(sch, again.GetBody()); err != nil || !model.SameSpec(spec, c.Spec) {
			t.Errorf("%s: decodeBody() = %v, %v", sch.Kind, spec, err)
		}
	}
	for _, bad := range []string{"", "x", "/", "a/b/c", "networking.istio.io/v9/Sidecar", "networking.istio.io/v1/sidecar", "v1/Sidecar"} {
		if s, ok := SchemaOf(bad); ok {
			t.Errorf("SchemaOf(%q) = %s, want none", bad, s.Kind)
		}
	}
	// The first version is that of Istio 1.18, the second that of later releases.
	for kind, want := range map[model.Kind][2]string{
		model.VirtualService:      {"networking.istio.io/v1alpha3/VirtualService", "networking.istio.io/v1/VirtualService"},
		model.ProxyConfig:         {"networking.istio.io/v1beta1/ProxyConfig", "networking.istio.io/v1beta1/ProxyConfig"},
		model.EnvoyFilter:         {"networking.istio.io/v1alpha3/EnvoyFilter", "networking.istio.io/v1alpha3/EnvoyFilter"},
		model.AuthorizationPolicy: {"security.istio.io/v1beta1/AuthorizationPolicy", "security.istio.io/v1/AuthorizationPolicy"},
		model.Telemetry:           {"telemetry.istio.io/v1alpha1/Telemetry", "telemetry.istio.io/v1/Telemetry"},
		model.TrafficExtension:    {"extensions.istio.io/v1alpha1/TrafficExtension", "extensions.istio.io/v1alpha1/TrafficExtension"},
		model.WasmPlugin:          {"extensions.istio.io/v1alpha1/WasmPlugin", "extensions.istio.io/v1alpha1/WasmPlugin"},
		model.HTTPRoute:           {"gateway.networking.k8s.io/v1beta1/HTTPRoute", "gateway.networking.k8s.io/v1beta1/HTTPRoute"},
		model.KubernetesGateway:   {"gateway.networking.k8s.io/v1beta1/Gateway", "gateway.networking.k8s.io/v1beta1/Gateway"},
		model.TCPRoute:            {"gateway.networking.k8s.io/v1alpha2/TCPRoute", "gateway.networking.k8s.io/v1alpha2/TCPRoute"},
	} {
		sch, _ := schema.Of(kind)
		if got := [2]string{typeURL(sch, false), typeURL(sch, true)}; got != want {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
}
