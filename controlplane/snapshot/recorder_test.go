// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"strings"
	"testing"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestReceiverOfTwoServices checks that a newer service with the host of a receiver, which any
// tenant may create, has no effect outside of its namespace.
func TestReceiverOfTwoServices(t *testing.T) {
	t.Parallel()
	const host = "collector.observe.svc.cluster.local"
	service := func(namespace string, registry model.Registry, day int) *model.Service {
		return &model.Service{
			ServiceKey: model.ServiceKey{Hostname: host, Namespace: namespace}, Registry: registry,
			Created: time.Date(2026, 6, day, 0, 0, 0, 0, time.UTC), Ports: []model.Port{{Number: 4317, Name: "grpc"}},
		}
	}
	of := &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider{Service: host, Port: 4317}
	for name, c := range map[string]struct {
		services []*model.Service
		want     string // the namespace of the receiver for workloads of "shop"; "" means an error
	}{
		"service of a cluster and an older object": {[]*model.Service{service("a", model.RegistryExternal, 1), service("observe", model.RegistryKubernetes, 2)}, "observe"},
		"two objects":                  {[]*model.Service{service("a", model.RegistryExternal, 2), service("observe", model.RegistryExternal, 1)}, "observe"},
		"service in its own namespace": {[]*model.Service{service("shop", model.RegistryExternal, 2), service("observe", model.RegistryKubernetes, 1)}, "shop"},
		"of the same age":              {[]*model.Service{service("a", model.RegistryExternal, 1), service("observe", model.RegistryExternal, 1)}, ""},
	} {
		m := &Mesh{Services: newServices(nil, c.services, settings{})}
		to, err := m.receiver("otel", of, "shop", nil)
		switch {
		case c.want == "" && (err == nil || !strings.Contains(err.Error(), "write namespace/host")):
			t.Errorf("%s: got service %v, error %v; want an error", name, to.Service, err)
		case c.want != "" && (err != nil || to.Service.Namespace != c.want):
			t.Errorf("%s: got service %v, error %v; want that of %s", name, to.Service, err, c.want)
		}
	}
}
