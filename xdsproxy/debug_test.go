// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
)

// startDebug serves the debug port of a rig.
func startDebug(t *testing.T, r *rig, patience time.Duration) (address string) {
	t.Helper()
	l := listen(t, "127.77.51.3:0")
	d, err := NewDebug(DebugConfig{Listener: l, Proxy: r.proxy})
	if err != nil {
		t.Fatal(err)
	}
	d.askHTTP, d.askGRPC = patience, patience
	runUntilEnd(t, d.Run)
	return l.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// joinEnvoy opens a stream and waits until it is connected to the control plane.
func joinEnvoy(t *testing.T, r *rig) *envoy {
	t.Helper()
	e := r.envoy(t)
	e.ask(listenerType)
	r.nextOf(t, listenerType)
	r.push(listenerType, "v", "first")
	e.wants(listenerType, "first")
	return e
}

func TestDebugHTTP(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		r := startRig(t, Config{}, delta)
		url := "http://" + startDebug(t, r, 10*time.Second)
		if code, body := get(t, url+"/debug/syncz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "control plane") {
			t.Errorf("without a stream: %d %s", code, body)
		}
		e := joinEnvoy(t, r)
		asked := make(chan told, 1)
		go func() {
			asked <- says(<-r.got)
			r.push("istio.io/debug/syncz", "v", "9", `{"a":1}`, "no json")
		}()
		code, body := get(t, url+"/debug/syncz?resourceName=shop.default")
		if got := receive(t, asked, "question"); got.typeURL != "istio.io/debug/syncz" || len(got.names) != 1 || got.names[0] != "shop.default" {
			t.Errorf("asked for %+v", got)
		}
		var answer struct {
			TypeURL   string `json:"typeUrl"`
			Resources []struct {
				Type  string `json:"@type"`
				Value any    `json:"value"`
			} `json:"resources"`
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK || answer.TypeURL != "istio.io/debug/syncz" || len(answer.Resources) != 2 {
			t.Fatalf("%d %s, %v", code, body, err)
		}
		if fmt.Sprint(answer.Resources[0].Value) != "map[a:1]" || answer.Resources[1].Value != "bm8ganNvbg==" {
			t.Errorf("values %v", answer.Resources)
		}
		if code, body := get(t, url+"/debug/x?a=%zz"); code != http.StatusBadRequest {
			t.Errorf("bad query: %d %s", code, body)
		}
		if code, body := get(t, url+"/agent/xds"); code != http.StatusOK || !strings.Contains(body, listenerType) {
			t.Errorf("status: %d %s", code, body)
		}
		r.push(clusterType, "v", "after")
		e.wants(clusterType, "after")
	})
}

// TestDebugConcurrent checks that requests for different types do not wait for one another, that
// requests for one type each receive their own response, and that equal requests are sent once.
func TestDebugConcurrent(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		r := startRig(t, Config{}, delta)
		url := "http://" + startDebug(t, r, 10*time.Second)
		joinEnvoy(t, r)
		var wg sync.WaitGroup
		ask := func(path, want string) {
			wg.Go(func() {
				if code, body := get(t, url+path); code != http.StatusOK || !strings.Contains(body, want) {
					t.Errorf("%s: %d %s, want %s", path, code, body, want)
				}
			})
		}
		ask("/debug/slow", "answer of slow")
		r.nextOf(t, "istio.io/debug/slow")
		ask("/debug/dump?resourceName=a", "answer of a")
		if got := r.nextOf(t, "istio.io/debug/dump"); got.names[0] != "a" {
			t.Errorf("asked for %+v", got)
		}
		ask("/debug/dump?resourceName=a", "answer of a")
		eventually(t, "two wait for a", func() bool { return waiting(r.proxy, "istio.io/debug/dump") == 2 })
		ask("/debug/dump?resourceName=b", "answer of b")
		r.push("istio.io/debug/dump", "", "1", `"answer of a"`)
		if got := r.nextOf(t, "istio.io/debug/dump"); got.names[0] != "b" {
			t.Errorf("asked for %+v", got)
		}
		r.push("istio.io/debug/dump", "", "2", `"answer of b"`)
		r.push("istio.io/debug/slow", "", "3", `"answer of slow"`)
		wg.Wait()
	})
}

func waiting(p *Proxy, typeURL string) int {
	s := p.live()
	s.questions.mu.Lock()
	defer s.questions.mu.Unlock()
	if q := s.questions.open[typeURL]; q != nil {
		return q.waiting
	}
	return 0
}

// TestDebugOfNoText checks that requests that are not valid UTF-8 never reach the control plane,
// because they would end the stream that carries Envoy's configuration.
func TestDebugOfNoText(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		r := startRig(t, Config{}, delta)
		address := startDebug(t, r, 10*time.Second)
		e := joinEnvoy(t, r)
		for _, path := range []string{"/debug/%ff", "/debug/syncz?resourceName=%ff"} {
			if code, body := get(t, "http://"+address+path); code != http.StatusBadRequest || !strings.Contains(body, "UTF-8") {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/"+methodSotW)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(frameOf(variant{}.ask("istio.io/debug/syncz", []string{"\xff"}))); err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(&frame{}); grpcstatus.Code(err) != codes.InvalidArgument {
			t.Errorf("over gRPC: %v", err)
		}
		r.push(clusterType, "v", "after")
		e.wants(clusterType, "after")
	})
}

// TestDebugTimeout checks that a late response has no effect on later requests and on Envoy.
func TestDebugTimeout(t *testing.T) {
	t.Parallel()
	r := startRig(t, Config{}, true)
	url := "http://" + startDebug(t, r, 50*time.Millisecond)
	e := joinEnvoy(t, r)
	if code, body := get(t, url+"/debug/syncz"); code != http.StatusGatewayTimeout {
		t.Errorf("%d %s, want a timeout", code, body)
	}
	r.nextOf(t, "istio.io/debug/syncz")
	if code, body := get(t, url+"/debug/syncz?resourceName=x"); code != http.StatusGatewayTimeout {
		t.Errorf("%d %s, want a timeout, because the next response belongs to the earlier request", code, body)
	}
	r.push("istio.io/debug/syncz", "", "late", "1")
	r.push("istio.io/debug/syncz", "", "nobody asked", "1")
	r.push(clusterType, "v", "2")
	e.wants(clusterType, "2")
	if n := len(r.got); n > 0 {
		t.Errorf("%d more requests were sent", n)
	}
}

func TestDebugEndsWithStream(t *testing.T) {
	t.Parallel()
	r := startRig(t, Config{}, false)
	url := "http://" + startDebug(t, r, 10*time.Second)
	e := joinEnvoy(t, r)
	done := make(chan int, 1)
	go func() {
		code, _ := get(t, url+"/debug/syncz")
		done <- code
	}()
	r.nextOf(t, "istio.io/debug/syncz")
	_ = e.conn.Close()
	if code := receive(t, done, "answer"); code != http.StatusServiceUnavailable {
		t.Errorf("answered %d, want %d", code, http.StatusServiceUnavailable)
	}
}

// TestDebugGRPC checks requests over gRPC, as istioctl sends them, whatever variant Envoy uses.
func TestDebugGRPC(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		r := startRig(t, Config{}, delta)
		address := startDebug(t, r, 10*time.Second)
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
		ask := func(req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
			s, err := client.StreamAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(req); err != nil {
				t.Fatal(err)
			}
			return s.Recv()
		}
		question := &discoveryv3.DiscoveryRequest{TypeUrl: "istio.io/debug/syncz", ResourceNames: []string{"a", "b"}}
		if _, err := ask(question); grpcstatus.Code(err) != codes.Unavailable {
			t.Errorf("without a stream: %v", err)
		}
		joinEnvoy(t, r)
		if _, err := ask(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType}); grpcstatus.Code(err) != codes.InvalidArgument {
			t.Errorf("of another type: %v", err)
		}
		go func() {
			<-r.got
			r.push("istio.io/debug/syncz", "v", "7", "one", "two")
		}()
		got, err := ask(question)
		if err != nil || got.TypeUrl != "istio.io/debug/syncz" || got.Nonce != "7" || len(got.Resources) != 2 || string(got.Resources[1].Value) != "two" {
			t.Errorf("got %v, %v", got, err)
		}
		inc, err := client.DeltaAggregatedResources(t.Context())
		if err == nil {
			_, err = inc.Recv()
		}
		if grpcstatus.Code(err) != codes.Unimplemented {
			t.Errorf("delta: %v, want Unimplemented", err)
		}
	})
}

func TestDebugIsLocal(t *testing.T) {
	t.Parallel()
	r := startRig(t, Config{}, false)
	for _, address := range []string{"0.0.0.0:0", "[::]:0"} {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
		if err != nil {
			continue // without IPv6
		}
		if _, err := NewDebug(DebugConfig{Listener: l, Proxy: r.proxy}); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%s: %v, want a refusal", address, err)
		}
		_ = l.Close()
	}
	address := startDebug(t, r, time.Second)
	for host, want := range map[string]int{"localhost": 503, "localhost:15004": 503, address: 503, "[::1]:15004": 503, "evil.example": 403, "": 403} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/debug/x", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if req.Host = host; host == "" {
			req.Host = "nobody"
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("host %q: %d, want %d", host, resp.StatusCode, want)
		}
	}
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "Via", "Origin"} {
		for path, method := range map[string]string{"/debug/x": http.MethodPost, "/agent/xds": http.MethodGet} {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(name, "127.0.0.1")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %s: %d, want 403", path, name, resp.StatusCode)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
