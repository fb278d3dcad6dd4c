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

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// adsView is what a proxy has received about clusters and endpoints.
type adsView struct {
	mu        sync.Mutex // guards the fields below
	clusters  map[string]*clusterv3.Cluster
	endpoints map[string][]string // address:port, sorted
	answers   map[string]int      // by type
	err       error
}

// watchControl opens an ADS stream, like Envoy, and stores the responses.
func watchControl(t *testing.T, address, namespace string) *adsView {
	t.Helper()
	return watchAs(t, address, namespace, "NONE")
}

// watchAs is like watchControl, for a proxy with an interception mode.
func watchAs(t *testing.T, address, namespace, mode string) *adsView {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	node, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "INTERCEPTION_MODE": mode, "CLUSTER_ID": "Kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, Node: &corev3.Node{
		Id: "sidecar~10.0.0.1~client." + namespace + "~" + namespace + ".svc.cluster.local", Metadata: node,
	}}); err != nil {
		t.Fatal(err)
	}
	v := &adsView{clusters: map[string]*clusterv3.Cluster{}, endpoints: map[string][]string{}, answers: map[string]int{}}
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		_ = conn.Close() // the test has ended
	})
	go func() {
		defer close(done)
		for {
			answer, err := stream.Recv()
			if err == nil {
				err = v.take(stream, answer)
			}
			if err != nil {
				v.mu.Lock()
				v.err = err
				v.mu.Unlock()
				return
			}
		}
	}()
	return v
}

// take stores a response, acknowledges it and requests the endpoints of clusters.
func (v *adsView) take(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, answer *discoveryv3.DiscoveryResponse) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answers[answer.GetTypeUrl()]++
	ack := &discoveryv3.DiscoveryRequest{TypeUrl: answer.GetTypeUrl(), VersionInfo: answer.GetVersionInfo(), ResponseNonce: answer.GetNonce()}
	if answer.GetTypeUrl() == endpointType {
		for _, raw := range answer.GetResources() {
			var cla endpointv3.ClusterLoadAssignment
			if err := proto.Unmarshal(raw.GetValue(), &cla); err != nil {
				return err
			}
			v.endpoints[cla.GetClusterName()] = addressesOf(&cla)
		}
		ack.ResourceNames = v.names()
		return stream.Send(ack)
	}
	v.clusters = map[string]*clusterv3.Cluster{}
	for _, raw := range answer.GetResources() {
		var c clusterv3.Cluster
		if err := proto.Unmarshal(raw.GetValue(), &c); err != nil {
			return err
		}
		v.clusters[c.GetName()] = &c
	}
	if err := stream.Send(ack); err != nil {
		return err
	}
	return stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: v.names()})
}

func (v *adsView) names() (names []string) {
	for name, c := range v.clusters {
		if c.GetType() == clusterv3.Cluster_EDS {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func addressesOf(cla *endpointv3.ClusterLoadAssignment) []string {
	out := []string{}
	for _, group := range cla.GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			a := e.GetEndpoint().GetAddress().GetSocketAddress()
			text := fmt.Sprintf("%s:%d", a.GetAddress(), a.GetPortValue())
			if e.GetMetadata() != nil {
				text += " mtls"
			}
			if zone := group.GetLocality().GetZone(); zone != "" {
				text += " in " + zone
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

// has reports whether a cluster has exactly these endpoints.
func (v *adsView) has(cluster string, want ...string) func() bool {
	return func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		got, ok := v.endpoints[cluster]
		return ok && slices.Equal(got, want)
	}
}

// cluster returns the cluster with the given name, or nil.
func (v *adsView) cluster(name string) *clusterv3.Cluster {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.clusters[name]
}

// count returns the number of responses of a type.
func (v *adsView) count(typeURL string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.answers[typeURL]
}

// explain logs the received resources if the test failed.
func (v *adsView) explain(t *testing.T) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.Failed() {
		t.Logf("the stream: %v; clusters %q; endpoints %q", v.err, v.names(), v.endpoints)
	}
}

// writer writes objects as the controllers of Kubernetes do.
type writer struct {
	t   *testing.T
	api kubernetes.Interface
}

func (w writer) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// service creates a Service with the port 80, which pods serve on 8080.
func (w writer) service(namespace, name string, change func(*corev1.Service)) {
	w.t.Helper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if change != nil {
		change(s)
	}
	_, err := w.api.CoreV1().Services(namespace).Create(w.t.Context(), s, metav1.CreateOptions{})
	w.must(err)
}

// pod creates a ready Pod, and returns the stored one.
func (w writer) pod(namespace, name, address string, labels map[string]string) *corev1.Pod {
	w.t.Helper()
	pod, err := makePod(w.t.Context(), w.api, namespace, name, address, labels)
	w.must(err)
	return pod
}

func makePod(ctx context.Context, api kubernetes.Interface, namespace, name, address string, labels map[string]string) (*corev1.Pod, error) {
	pod, err := api.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			ServiceAccountName: "default", NodeName: "node-a",
			Containers: []corev1.Container{{Name: "application", Image: "registry.invalid/application:1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	return api.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
}

// slice writes the EndpointSlice of a service with the pods.
func (w writer) slice(namespace, name, service string, pods ...*corev1.Pod) {
	w.t.Helper()
	s := sliceOf(name, service, pods)
	slices := w.api.DiscoveryV1().EndpointSlices(namespace)
	_, err := slices.Create(w.t.Context(), s, metav1.CreateOptions{})
	if ignoreExists(err) == nil && err != nil {
		_, err = slices.Update(w.t.Context(), s, metav1.UpdateOptions{})
	}
	w.must(err)
}

func sliceOf(name, service string, pods []*corev1.Pod) *discoveryv1.EndpointSlice {
	port, portName, yes := int32(8080), "http", true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{},
	}
	for _, pod := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{pod.Status.PodIP}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}, NodeName: &pod.Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		})
	}
	return s
}

// configure writes a file into the configuration of a control plane.
func (c *control) configure(t *testing.T, name, yaml string) {
	t.Helper()
	file := filepath.Join(c.dir, "config", name)
	if err := os.WriteFile(file+".new", []byte(strings.TrimSpace(yaml)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}
