// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// platform has one service.
type platform struct {
	registry.Platform
	mu  sync.Mutex
	svc *registry.PlatformService // guarded by mu
}

func (p *platform) Services() []*registry.PlatformService {
	if svc := p.Service("shop", "catalog"); svc != nil {
		return []*registry.PlatformService{svc}
	}
	return nil
}

func (p *platform) Service(string, string) *registry.PlatformService {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.svc
}

// scale sets the number of addresses of the service, half of which serve two ports; -1 deletes it.
func (p *platform) scale(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.svc = nil; n < 0 {
		return
	}
	p.svc = &registry.PlatformService{
		Name: "catalog", Selector: map[string]string{"app": "catalog"}, Targets: []registry.TargetPort{{Name: "http"}, {Number: 9090}},
		Service: &model.Service{
			ServiceKey: model.ServiceKey{Hostname: "catalog.shop.svc.cluster.local", Namespace: "shop"}, Created: time.Unix(1700000000, 0).UTC(),
			Ports:            []model.Port{{Name: "http", Number: 80, Protocol: "HTTP"}},
			ClusterAddresses: map[string][]string{"one": {"10.96.0.1"}}, ExternalPorts: map[string]map[uint32]uint32{"one": {80: 30080}},
			Source: model.Key{Kind: model.KubernetesService, Namespace: "shop", Name: "catalog"}, Registry: model.RegistryKubernetes,
		},
		Gateways: []model.NetworkGateway{{Network: "n", Address: "192.0.2.1", Port: 15443}},
		Problems: []model.Problem{{Object: model.Key{Kind: model.KubernetesService, Namespace: "shop", Name: "catalog"}, Reason: "a \"reason\""}},
	}
	for i := range n {
		for port := range 1 + i%2 {
			p.svc.Endpoints = append(p.svc.Endpoints, &model.Endpoint{
				Address: fmt.Sprintf("10.1.%d.%d", i/250, i%250), Port: 8080, ServicePort: uint32(80 + port), Namespace: "shop", ServiceAccount: "catalog",
				Labels: map[string]string{"app": "catalog", "pod-template-hash": "6d4cf56db6"}, Locality: "r/a", Weight: 1, MutualTLS: true, Node: "node-a", Workload: fmt.Sprint("catalog-6d4cf56db6-", i),
			})
		}
	}
	p.svc.Endpoints = append(p.svc.Endpoints, &model.Endpoint{Address: "10.9.9.9", Unhealthy: true}, &model.Endpoint{Address: "10.9.9.8", Draining: true})
}

// TestServices checks that each version of a service can be restored exactly, and that one whose
// endpoints change all the time is recorded at a bounded rate.
func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &platform{}
		l := New(Config{Dir: t.TempDir(), Source: Services(p), Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.Note(model.Change{All: true}, time.Now())
		time.Sleep(time.Minute)
		endpoints := model.Key{Kind: model.KubernetesEndpoints, Namespace: "shop", Name: "catalog"}
		var versions []*registry.PlatformService
		var moments []time.Time
		for _, n := range []int{3, 0, 3, -1} {
			p.scale(n)
			l.Note(model.NewChange(endpoints, model.Key{Kind: model.KubernetesPod, Namespace: "shop", Name: "other"}), time.Now())
			time.Sleep(time.Minute)
			versions, moments = append(versions, p.Service("", "")), append(moments, time.Now().Add(-time.Second))
		}
		h, err := l.List(Filter{Kind: model.KubernetesService})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range h.Versions {
			line := v.Change
			if v.Endpoints != nil {
				line += fmt.Sprint(" ", *v.Endpoints)
			}
			got = append(got, line)
		}
		expect(t, "List", got, []string{"created 3", "updated 0", "updated 3", "deleted"})
		for i, want := range versions[:3] {
			changes, err := l.Changes(moments[i], time.Now())
			if err != nil || len(changes) != 1 || changes[0].After != nil {
				t.Fatalf("Changes = %+v, %v, want the deleted service", changes, err)
			}
			svc, err := Service(*changes[0].Before)
			if err != nil || !reflect.DeepEqual(svc, want) {
				t.Errorf("version %d: got %+v, %v, want %+v", i, svc, err, want)
			}
		}
		for i := range 2000 {
			p.scale(i % 50)
			l.Note(model.NewChange(endpoints), time.Now())
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		h, err = l.List(Filter{Since: moments[3]})
		if most := perObject.Burst + 2000/300 + 2; err != nil || len(h.Versions) > most || *h.Versions[len(h.Versions)-1].Endpoints != 49 {
			t.Errorf("%d versions of a busy service, want %d at most, the last one with 49 addresses: %v", len(h.Versions), most, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// FuzzService reads versions of services that are not what was written.
func FuzzService(f *testing.F) {
	p := &platform{}
	p.scale(2)
	text, err := Services(p).Get(model.Key{}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`"H4sIAAAAAAAA/w=="`))
	f.Fuzz(func(t *testing.T, b []byte) {
		svc, err := Service(report.Version{Object: b})
		if (svc == nil) != (err != nil) {
			t.Errorf("Service = %v, %v", svc, err)
		}
	})
}
