// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// wireRules reads a VirtualService for the host.
func wireRules(t *testing.T, http string) *networkingv1alpha3.VirtualService {
	t.Helper()
	vs := &networkingv1alpha3.VirtualService{}
	if err := protojson.Unmarshal([]byte(`{"hosts":["`+wireHost+`"],"http":[`+http+`]}`), vs); err != nil {
		t.Fatal(err)
	}
	return vs
}

// to is a destination of wireRules.
func to(subset string) string {
	return `{"destination":{"host":"` + wireHost + `","subset":"` + subset + `"}}`
}

// answered counts the servers of calls with these headers; failures count under their code.
func (c *wireClient) answered(calls int, headers ...string) map[string]int {
	got := map[string]int{}
	for range calls {
		from, _, err := c.ask(headers...)
		if err != nil {
			from = status.Code(err).String()
		}
		got[from]++
	}
	return got
}

// settles waits until five calls in a row are answered by one, or fail in one way.
func (c *wireClient) settles(want string, headers ...string) {
	c.t.Helper()
	var got map[string]int
	until(c.t, fmt.Sprintf("calls with %v settle at %s", headers, want), func() bool {
		got = c.answered(5, headers...)
		return got[want] == 5
	})
}

// TestGRPCRoutes has grpc-go's xDS client apply VirtualServices, one after the other for the same
// host.
func TestGRPCRoutes(t *testing.T) {
	t.Parallel()
	w := newWireMesh(t, "127.77.60.5")
	first, second := wireBackend(t, "127.77.60.31"), wireBackend(t, "127.77.60.32")
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "echo"):    wireService(wireHost, "GRPC", 7070, first, second),
		wireKey(model.DestinationRule, "echo"): wireSubsets(wireHost),
	})
	c := wireApp{ip: "127.77.60.40", name: "client"}.dial(t, w, "xds:///echo:7070")
	c.reaches("anybody", first, second)
	rules := func(http string) { w.putOne(model.VirtualService, "echo", wireRules(t, http)) }

	rules(`{"match":[{"headers":{"x-step":{"exact":"1"}}}],"route":[` + to("v1") + `]},
		{"route":[{"destination":{"host":"` + wireHost + `","subset":"v1"},"weight":50},{"destination":{"host":"` + wireHost + `","subset":"v2"},"weight":50}]}`)
	c.settles(first, "x-step", "1")
	if got := c.answered(400); got[first]+got[second] != 400 || got[first] < 140 || got[second] < 140 {
		t.Errorf("of 400 calls in equal parts: %v", got)
	}

	// The path by segments is an expression, the method is known, and a header
	// that must not have a value may be missing.
	rules(`{"match":[{"uri":{"prefix":"/grpc.health"}, "method":{"exact":"GET"}}],"route":[` + to("v1") + `]},
		{"match":[{"uri":{"prefix":"/grpc.health"},"method":{"exact":"POST"},"withoutHeaders":{"x-user":{"exact":"root"},"x-team":{"prefix":"o"}}}],"route":[` + to("v2") + `]},
		{"route":[` + to("v1") + `]}`)
	for _, test := range []struct {
		want    string
		headers []string
	}{
		{second, nil},
		{second, []string{"x-user", "anybody"}},
		{second, []string{"x-user", "anybody", "x-team", "dev"}},
		{first, []string{"x-user", "root"}},
		{first, []string{"x-user", "anybody", "x-team", "ops"}},
		{first, []string{"x-user", "root", "x-team", "dev"}},
	} {
		c.settles(test.want, test.headers...)
	}

	// The default retries are for what is unavailable, twice.
	rules(`{"route":[` + to("v1") + `]}`)
	c.settles(first, "x-fail", "2")
	c.settles(codes.Unavailable.String(), "x-fail", "3")
	rules(`{"route":[` + to("v1") + `],"retries":{"attempts":3,"retryOn":"unavailable","backoff":"0.001s"}}`)
	c.settles(first, "x-fail", "3")
	rules(`{"route":[` + to("v1") + `],"retries":{"attempts":0}}`)
	c.settles(codes.Unavailable.String(), "x-fail", "1")

	rules(`{"route":[` + to("v1") + `],"timeout":"0.1s"}`)
	c.settles(codes.DeadlineExceeded.String(), "x-delay", "1s")
	c.settles(first)
	rules(`{"route":[` + to("v1") + `]}`)
	c.settles(first, "x-delay", "150ms")

	rules(`{"match":[{"headers":{"x-user":{"exact":"tester"}}}],"fault":{"abort":{"grpcStatus":"RESOURCE_EXHAUSTED","percentage":{"value":100}}},
			"corsPolicy":{"allowOrigins":[{"exact":"*"}]},"route":[` + to("v1") + `]},
		{"fault":{"delay":{"fixedDelay":"0.05s","percentage":{"value":100}}},"route":[` + to("v2") + `]}`)
	c.settles(codes.ResourceExhausted.String(), "x-user", "tester")
	c.settles(second)
	began := time.Now()
	if _, _, err := c.ask(); err != nil || time.Since(began) < 50*time.Millisecond {
		t.Errorf("a call that is to be delayed by 50 ms takes %v: %v", time.Since(began), err)
	}
	rules(`{"fault":{"abort":{"httpStatus":403,"percentage":{"value":100}}},"route":[` + to("v1") + `]}`)
	c.settles(codes.PermissionDenied.String())

	// What gRPC cannot do fails, and harms no other route.
	rules(`{"match":[{"headers":{"x-user":{"exact":"tester"}}}],"redirect":{"uri":"/elsewhere"}},
		{"match":[{"queryParams":{"a":{"exact":"b"}}}],"route":[` + to("v2") + `]},{"route":[` + to("v1") + `]}`)
	c.settles(first)
	c.settles(codes.Unavailable.String(), "x-user", "tester")
}

// wirePolicy is wireSubsets with a policy.
func wirePolicy(policy *networkingv1alpha3.TrafficPolicy) *networkingv1alpha3.DestinationRule {
	rule := wireSubsets(wireHost)
	rule.TrafficPolicy = policy
	return rule
}

// TestGRPCPolicies has grpc-go's xDS client apply DestinationRules: rings, limits and outliers.
func TestGRPCPolicies(t *testing.T) {
	t.Parallel()
	w := newWireMesh(t, "127.77.60.6")
	first, second := wireBackend(t, "127.77.60.33"), wireBackend(t, "127.77.60.34")
	w.putOne(model.ServiceEntry, "echo", wireService(wireHost, "HTTP", 7070, first, second))
	c := wireApp{ip: "127.77.60.41", name: "client"}.dial(t, w, "xds:///echo:7070")
	c.reaches("anybody", first, second)
	rule := func(policy *networkingv1alpha3.TrafficPolicy) {
		w.putOne(model.DestinationRule, "echo", wirePolicy(policy))
	}

	rule(&networkingv1alpha3.TrafficPolicy{LoadBalancer: &networkingv1alpha3.LoadBalancerSettings{
		LbPolicy: &networkingv1alpha3.LoadBalancerSettings_ConsistentHash{ConsistentHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB{
			HashKey: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName{HttpHeaderName: "x-user"},
		}},
	}})
	until(t, "each user has one endpoint, and both endpoints have users", func() bool {
		both := map[string]bool{}
		for i := range 16 {
			got := c.answered(4, "x-user", strconv.Itoa(i))
			if len(got) != 1 {
				return false
			}
			maps.Copy(both, map[string]bool{slices.Collect(maps.Keys(got))[0]: true})
		}
		return len(both) == 2
	})
	rule(&networkingv1alpha3.TrafficPolicy{LoadBalancer: &networkingv1alpha3.LoadBalancerSettings{
		LbPolicy: &networkingv1alpha3.LoadBalancerSettings_ConsistentHash{ConsistentHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB{
			HashKey: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_UseSourceIp{UseSourceIp: true},
		}},
	}})
	until(t, "a client has one endpoint", func() bool { return len(c.answered(30)) == 1 })

	rule(&networkingv1alpha3.TrafficPolicy{ConnectionPool: &networkingv1alpha3.ConnectionPoolSettings{
		Http: &networkingv1alpha3.ConnectionPoolSettings_HTTPSettings{Http2MaxRequests: 1},
	}})
	until(t, "of two calls at a time one is refused", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := c.health.Check(metadata.AppendToOutgoingContext(ctx, "x-delay", "10s"), &healthpb.HealthCheckRequest{})
			ended <- err
		}()
		refused := false
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end) && !refused; {
			_, _, err := c.ask()
			refused = status.Code(err) == codes.Unavailable
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("a call that was cancelled has an answer")
		}
		return refused
	})

	rule(&networkingv1alpha3.TrafficPolicy{OutlierDetection: &networkingv1alpha3.OutlierDetection{
		Consecutive_5XxErrors: wrapperspb.UInt32(3), Interval: durationpb.New(100 * time.Millisecond),
		BaseEjectionTime: durationpb.New(time.Minute), MaxEjectionPercent: 50,
	}})
	until(t, "an endpoint that fails is left out", func() bool {
		got := c.answered(20, "x-bad", second)
		return got[first] == 20
	})
}

// TestGRPCPlaces has a client prefer the endpoints of its region, use others when those are
// removed, and resolve the names of services itself.
func TestGRPCPlaces(t *testing.T) {
	t.Parallel()
	w := newWireMesh(t, "127.77.60.7")
	near, server := wireStoppable(t, "127.77.60.35")
	far := wireBackend(t, "127.77.60.36")
	service := wireService(wireHost, "GRPC", 7070, near, far)
	service.Endpoints[0].Locality, service.Endpoints[1].Locality = "west", "east"
	names := wireService("named.default.svc.cluster.local", "GRPC", 7070, near, far)
	names.Resolution = networkingv1alpha3.ServiceEntry_DNS
	one := wireService("one.default.svc.cluster.local", "GRPC", 7070, far)
	one.Resolution = networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN
	none := wireService("none.default.svc.cluster.local", "GRPC", 7070)
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "echo"): service, wireKey(model.ServiceEntry, "named"): names,
		wireKey(model.ServiceEntry, "one"): one, wireKey(model.ServiceEntry, "none"): none,
		wireKey(model.DestinationRule, "echo"): wirePolicy(&networkingv1alpha3.TrafficPolicy{OutlierDetection: &networkingv1alpha3.OutlierDetection{}}),
	})
	west := wireApp{ip: "127.77.60.42", name: "client", region: "west"}
	c, named := west.dial(t, w, "xds:///echo:7070"), west.dial(t, w, "xds:///named:7070")
	c.reaches("anybody", near)
	named.reaches("anybody", near)
	wireApp{ip: "127.77.60.43", name: "client", region: "east"}.dial(t, w, "xds:///echo:7070").reaches("anybody", far)
	west.dial(t, w, "xds:///one:7070").reaches("anybody", far)
	west.dial(t, w, "xds:///none:7070").refused()

	server.Stop()
	c.reaches("anybody", far)
	named.reaches("anybody", far)
}

// TestGRPCEndpointLeaves removes an endpoint under load, and then stops its server as a workload
// stops: no call fails.
func TestGRPCEndpointLeaves(t *testing.T) {
	t.Parallel()
	w := newWireMesh(t, "127.77.60.8")
	leaving, server := wireStoppable(t, "127.77.60.37")
	staying := wireBackend(t, "127.77.60.38")
	w.putOne(model.ServiceEntry, "echo", wireService(wireHost, "GRPC", 7070, leaving, staying))
	c := wireApp{ip: "127.77.60.44", name: "client"}.dial(t, w, "xds:///echo:7070")
	c.reaches("anybody", leaving, staying)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls, after atomic.Int64
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for ctx.Err() == nil {
				from, _, err := c.ask("x-delay", "1ms")
				if err != nil {
					t.Errorf("a call fails: %v", err)
					return
				}
				calls.Add(1)
				if from == staying {
					after.Add(1)
				}
			}
		})
	}
	until(t, "there is load", func() bool { return calls.Load() > 200 })
	w.putOne(model.ServiceEntry, "echo", wireService(wireHost, "GRPC", 7070, staying))
	until(t, "nobody uses the endpoint", func() bool {
		all, stayed := calls.Load(), after.Load()
		until(t, "calls go on", func() bool { return calls.Load() >= all+100 })
		return after.Load()-stayed >= 100
	})
	server.GracefulStop()
	before := calls.Load()
	until(t, "calls go on", func() bool { return calls.Load() > before+200 })
	cancel()
	wait.Wait()
}
