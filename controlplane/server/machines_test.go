// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const typeCluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

const machineGroup = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec:
  metadata: {labels: {app: web}}
  template: {serviceAccount: web, ports: {http: 8080}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: quiet, namespace: shop}
spec:
  workloadSelector: {labels: {tier: quiet}}
  egress: [{hosts: ["./nothing.example.com"]}]
`

// vm is the ADS stream of a machine of the group web. clusters receives the names of each response,
// and is closed when the stream ends.
type vm struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	clusters chan []string
	err      error // why the stream ended
	leave    context.CancelFunc
}

func (i *issuer) vm(t *testing.T, s *Server, address string, more map[string]any) *vm {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.identity.authority.RootPEM())
	conn, err := grpc.NewClient(s.ports.listeners.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(pool, "")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to read
	all := map[string]any{"NAMESPACE": "shop", "INTERCEPTION_MODE": "NONE", "INSTANCE_IPS": address, "AUTO_REGISTER_GROUP": "web"}
	maps.Copy(all, more)
	md, err := structpb.NewStruct(all)
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+i.token(t, "istio-ca")))
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	v := &vm{AggregatedDiscoveryService_StreamAggregatedResourcesClient: ads, clusters: make(chan []string, 100), leave: leave}
	if err := ads.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: typeCluster, Node: &corev3.Node{Id: "sidecar~" + address + "~web.shop~shop.svc.cluster.local", Metadata: md},
	}); err != nil {
		t.Fatal(err)
	}
	go v.read()
	return v
}

func (v *vm) read() {
	defer close(v.clusters)
	for {
		answer, err := v.Recv()
		if err != nil {
			v.err = err
			return
		}
		var names []string
		for _, res := range answer.GetResources() {
			var c clusterv3.Cluster
			if err := res.UnmarshalTo(&c); err != nil {
				v.err = err
				return
			}
			names = append(names, c.GetName())
		}
		v.clusters <- names
		if err := v.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, VersionInfo: answer.GetVersionInfo(), ResponseNonce: answer.GetNonce()}); err != nil {
			v.err = err
			return
		}
	}
}

// sees waits until the machine has, or does not have, the service web.
func (v *vm) sees(t *testing.T, what string, want bool) {
	t.Helper()
	for names := range v.clusters {
		if slices.Contains(names, endpointNames()[0]) == want {
			return
		}
	}
	t.Fatalf("%s: the stream ended: %v", what, v.err)
}

// TestRegistration registers machines with two replicas that share a store. A machine must be an
// endpoint while it is connected to any replica and, if it is probed, healthy. Its configuration
// must follow the labels of its entry.
func TestRegistration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "web.yaml"): []byte(shopService), filepath.Join(dir, "group.yaml"): []byte(machineGroup)})
	i := newIssuer(t)
	state := t.TempDir() // the replicas share the status of objects, but not the authority
	var replicas [2]*Server
	for n := range replicas {
		replicas[n] = serve(t, func(c *Config) {
			c.ConfigDir, c.StateDir = dir, filepath.Join(state, fmt.Sprintf("ca-%d", n))
			c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
			c.Callers.Hosts = []string{testHost}
			c.PodName, c.Registration.Instance = fmt.Sprintf("control-%d", n), fmt.Sprintf("control-%d", n)
			c.Registration.Grace = 300 * time.Millisecond
		})
		waitUntil(t, "the first snapshot", replicas[n].discovery.Ready)
	}
	one, two := replicas[0], replicas[1]
	client := i.stream(t, one, "127.77.52.99")
	client.send(t, &discoveryv3.DiscoveryRequest{TypeUrl: typeEndpoint, ResourceNames: endpointNames()})
	client.want(t, "at the start", "")

	first := i.vm(t, two, "127.77.52.21", nil)
	client.want(t, "a machine at the other replica", "127.77.52.21")
	probed := map[string]any{"PROXY_CONFIG": map[string]any{"readinessProbe": map[string]any{"tcpSocket": map[string]any{"port": 8080}}}}
	second := i.vm(t, two, "127.77.52.22", probed)
	key := model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "web-127.77.52.22"}
	waitUntil(t, "the entry exists", func() bool { return one.objects.store.Get(key) != nil })
	one.metric(t, "outrigger_control_unhealthy_workloads 1")
	if err := second.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeHealth}); err != nil {
		t.Fatal(err)
	}
	client.want(t, "the first report", "127.77.52.21 127.77.52.22")

	first.leave()
	first = i.vm(t, one, "127.77.52.21", nil)
	firstKey := model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "web-127.77.52.21"}
	uid := two.objects.store.Get(firstKey).UID
	waitUntil(t, "the machine has moved", func() bool {
		c := two.objects.store.Get(firstKey)
		return c != nil && c.Annotations["istio.io/workloadController"] == "control-0" && c.Annotations["istio.io/disconnectedAt"] == ""
	})
	first.sees(t, "at the start", true)
	if _, err := two.objects.store.Patch(t.Context(), firstKey, func(c *model.Config) error { c.Labels["tier"] = "quiet"; return nil }); err != nil {
		t.Fatal(err)
	}
	first.sees(t, "with the label of the Sidecar", false)
	if _, err := two.objects.store.Patch(t.Context(), firstKey, func(c *model.Config) error { delete(c.Labels, "tier"); return nil }); err != nil {
		t.Fatal(err)
	}
	first.sees(t, "without", true)
	if c := one.objects.store.Get(firstKey); c.UID != uid {
		t.Errorf("the entry was removed and created again: %+v", c)
	}

	second.leave()
	client.want(t, "the second has disconnected", "127.77.52.21")
	first.leave()
	client.want(t, "both have disconnected", "")
	waitUntil(t, "all entries are removed", func() bool { return len(one.objects.store.List(model.WorkloadEntry, "")) == 0 })
	one.metric(t, "auto_registration_errors_total 0")
	if left, err := filepath.Glob(filepath.Join(dir, "*web-127*")); err != nil || len(left) > 0 {
		t.Errorf("files of entries remain: %q, error %v", left, err)
	}

	stranger := i.vm(t, one, "127.77.52.23", map[string]any{"AUTO_REGISTER_GROUP": "nobody"})
	for range stranger.clusters {
		t.Error("a proxy of a group that does not exist is served")
	}
	if status.Code(stranger.err) != codes.FailedPrecondition || !strings.Contains(stranger.err.Error(), "cannot find WorkloadGroup shop/nobody") {
		t.Errorf("a group that does not exist: got error %v", stranger.err)
	}
}

// TestRegistrationOff checks that without registration no machine is registered, but labels are
// still followed.
func TestRegistrationOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "web.yaml"): []byte(shopService), filepath.Join(dir, "group.yaml"): []byte(machineGroup), filepath.Join(dir, "1.yaml"): machineFile("24")})
	i := newIssuer(t)
	s := serve(t, func(c *Config) {
		c.ConfigDir = dir
		c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
		c.Callers.Hosts = []string{testHost}
		c.Registration.On = false
	})
	waitUntil(t, "the first snapshot", s.discovery.Ready)
	v := i.vm(t, s, "127.77.63.24", nil)
	v.sees(t, "at the start", true)
	key := model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "web-24"}
	if _, err := s.objects.store.Patch(t.Context(), key, func(c *model.Config) error { c.Labels = map[string]string{"tier": "quiet"}; return nil }); err != nil {
		t.Fatal(err)
	}
	v.sees(t, "with the label of the Sidecar", false)
	if list := s.objects.store.List(model.WorkloadEntry, ""); len(list) != 1 {
		t.Errorf("%d entries, want 1", len(list))
	}
}

func TestInstanceOf(t *testing.T) {
	t.Parallel()
	host := func() (string, error) { return "host", nil }
	config := func(address, instance string) Config {
		return Config{Listen: ListenConfig{Secure: address}, Registration: RegistrationConfig{Instance: instance}}
	}
	for want, cfg := range map[string]Config{
		"istiod-1":           config(":15012", "istiod-1"),
		"host/15012":         config(":15012", ""),
		"host/10.0.0.1:1501": config("10.0.0.1:1501", ""),
	} {
		if got, err := instanceOf(cfg, host); got != want || err != nil {
			t.Errorf("instanceOf() = %q, %v; want %q", got, err, want)
		}
	}
	if _, err := instanceOf(Config{}, func() (string, error) { return "", errors.New("no name") }); err == nil {
		t.Error("instanceOf() without a name returned no error")
	}
}
