// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// clusterView is a stream that stores the received clusters.
type clusterView struct {
	mu    sync.Mutex // guards names
	names []string
	ended chan struct{}
}

// view subscribes to the clusters of a replica, and acknowledges all.
func (c *control) view(t *testing.T, address string) *clusterView {
	t.Helper()
	v := &clusterView{ended: make(chan struct{})}
	stream, node, _ := c.ads(t, address)
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, Node: node}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(v.ended)
		for {
			r, err := stream.Recv()
			if err != nil {
				return // the test has ended, or the replica has exited
			}
			var bodies []string
			for _, res := range r.GetResources() {
				bodies = append(bodies, string(res.GetValue()))
			}
			slices.Sort(bodies)
			v.mu.Lock()
			v.names = bodies
			v.mu.Unlock()
			_ = stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}) // Recv returns the error
		}
	}()
	return v
}

// clusters returns the resources of the last response, sorted.
func (v *clusterView) clusters() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.names
}

func (v *clusterView) has(host string) bool {
	return slices.ContainsFunc(v.clusters(), func(body string) bool { return strings.Contains(body, "|"+host) })
}

// TestReplicasOnEtcd runs two replicas on one etcd, without Kubernetes:
//   - each serves writes within a second, and both send the same bytes;
//   - one of them writes the status of objects; when it is killed, the other one takes over;
//   - a restarted replica serves what was written while it was down.
func TestReplicasOnEtcd(t *testing.T) {
	t.Parallel()
	store := startEtcdStore(t, etcdURL(NewEtcd(t, EtcdOptions{}), "", "/mesh"))
	replicas := []*control{newReplica(t, store.Name()), newReplica(t, store.Name())}
	ctx := testContext(t)
	for _, r := range replicas {
		if err := r.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	views := []*clusterView{replicas[0].view(t, "10.1.0.1"), replicas[1].view(t, "10.1.0.2")}
	for i := range 50 {
		began := time.Now()
		writeService(t, store, i)
		for n, v := range views {
			soon(t, fmt.Sprintf("replica %d has service %d", n, i), func() error {
				if v.has(serviceHost(i)) {
					return nil
				}
				return fmt.Errorf("%d clusters", len(v.clusters()))
			})
		}
		if took := time.Since(began); took > time.Second {
			t.Logf("service %d took %s", i, took)
		}
	}
	same := func() error {
		if !slices.Equal(views[0].clusters(), views[1].clusters()) {
			return fmt.Errorf("the replicas differ: %d and %d clusters", len(views[0].clusters()), len(views[1].clusters()))
		}
		return nil
	}
	soon(t, "both serve the same", same)

	// The leader writes the status; the other replica takes over.
	leads := func(r *control) bool { return strings.Contains(r.tail(400), "name=istio-status-leader") }
	soon(t, "one leads", func() error {
		if leads(replicas[0]) == leads(replicas[1]) {
			return fmt.Errorf("leads: %t, %t", leads(replicas[0]), leads(replicas[1]))
		}
		return nil
	})
	waitReconciled(t, store, 0)
	first, second := 0, 1
	if leads(replicas[1]) {
		first, second = 1, 0
	}
	replicas[first].Kill()
	<-views[first].ended
	writeService(t, store, 100)
	soon(t, "the other one serves", func() error {
		if views[second].has(serviceHost(100)) {
			return nil
		}
		return fmt.Errorf("%d clusters", len(views[second].clusters()))
	})
	waitReconciled(t, store, 100)
	if !leads(replicas[second]) {
		t.Error("the status is written, but no replica reports that it leads")
	}

	if err := replicas[first].Start(ctx); err != nil {
		t.Fatal(err)
	}
	views[first] = replicas[first].view(t, "10.1.0.1")
	soon(t, "both serve the same again", same)
	if !views[first].has(serviceHost(100)) {
		t.Error("a replica does not serve what was written while it was down")
	}
}

// newReplica creates a control plane whose objects are in etcd.
func newReplica(t *testing.T, source string) *control {
	t.Helper()
	c := &control{host: address(t), dir: t.TempDir()}
	settings := filepath.Join(c.dir, "mesh.yaml")
	if err := os.WriteFile(settings, []byte("configSources: [{address: '"+source+"'}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Server = run(t, &Server{
		name: "outrigger-control", path: program(t, "outrigger-control"), dir: c.dir,
		args: []string{
			"discovery", "--meshConfig", settings, "--registries", "", "--grpcAddr", c.plaintext(), "--secureGRPCAddr", "", "--monitoringAddr", "",
			"--httpAddr", c.host + ":8080", "--httpsAddr", "",
		},
		env:   []string{"POD_NAME=control-" + c.host, "OUTRIGGER_STATE_DIR=" + filepath.Join(c.dir, "state")},
		ready: answers("http://" + c.host + ":8080/ready"),
	})
	return c
}

func serviceHost(i int) string { return fmt.Sprintf("s%d.shop.svc.cluster.local", i) }

func serviceKey(i int) model.Key {
	return model.Key{Kind: model.ServiceEntry, Namespace: "shop", Name: fmt.Sprintf("s%d", i)}
}

func writeService(t *testing.T, store *etcdStore, i int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	_, err := store.Create(ctx, &model.Config{Key: serviceKey(i), Spec: &networkingv1alpha3.ServiceEntry{
		Hosts: []string{serviceHost(i)}, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: fmt.Sprintf("10.2.0.%d", i+1)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// waitReconciled waits until the status of a service contains its acknowledgements.
func waitReconciled(t *testing.T, store *etcdStore, i int) {
	t.Helper()
	soon(t, fmt.Sprintf("status of service %d", i), func() error {
		object := store.Get(serviceKey(i))
		if object == nil {
			return fmt.Errorf("it is not there")
		}
		status, _ := object.Status.(*metav1alpha1.IstioStatus)
		for _, c := range status.GetConditions() {
			if c.GetType() == "Reconciled" {
				return nil
			}
		}
		return fmt.Errorf("the status is %v", status)
	})
}
