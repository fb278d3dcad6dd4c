// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// balancedMesh has one service. ENDPOINTS and POLICY are placeholders.
const balancedMesh = `
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.example.com]
  location: MESH_INTERNAL
  resolution: RESOLUTION
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [ENDPOINTS]
---
kind: DestinationRule
metadata: {name: web, namespace: default}
spec: {host: web.example.com, trafficPolicy: POLICY}
---
kind: VirtualService
metadata: {name: web, namespace: default}
spec:
  hosts: [web.example.com]
  http: [{route: [{destination: {host: web.example.com}}], retries: {attempts: 0}}]
`

// balanced returns the text of a mesh. Each endpoint is "port" or "port locality".
func balanced(policy string, endpoints ...string) string {
	return resolved("STATIC", "127.0.0.1", policy, endpoints...)
}

func resolved(resolution, address, policy string, endpoints ...string) string {
	var list []string
	for _, e := range endpoints {
		port, locality, _ := strings.Cut(e, " ")
		list = append(list, fmt.Sprintf("{address: %s, ports: {http: %s}, locality: %q}", address, port, locality))
	}
	return strings.NewReplacer("RESOLUTION", resolution, "ENDPOINTS", strings.Join(list, ", "), "POLICY", policy).Replace(balancedMesh)
}

const webURL = "http://web.example.com:8080/"

// TestConsistentHash checks that requests with the same header value go to the same endpoint.
func TestConsistentHash(t *testing.T) {
	t.Parallel()
	for i, algorithm := range []string{"", ", ringHash: {minimumRingSize: 2048}", ", maglev: {tableSize: 1009}"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			b := newBalancing(t, fmt.Sprintf("127.77.56.%d", 10+i), balanced("{loadBalancer: {consistentHash: {httpHeaderName: x-user"+algorithm+"}}}",
				backend(t, "one"), backend(t, "two"), backend(t, "three")), nil)
			used := map[string]bool{}
			for user := range 30 {
				first := ""
				for range 5 {
					status, word := b.get(t, webURL, fmt.Sprintf("x-user: %d", user))
					if first == "" {
						first = word
					}
					if status != http.StatusOK || word != first {
						t.Fatalf("user %d: %d %q after %q", user, status, word, first)
					}
				}
				used[first] = true
			}
			if len(used) != 3 {
				t.Errorf("30 users share the endpoints %v, want all three", used)
			}
		})
	}
}

// TestOutlierEjection checks that a failing endpoint receives no more requests, even if only
// outlierDetectionHttpErrorCodes counts its failures.
func TestOutlierEjection(t *testing.T) {
	t.Parallel()
	for i, tc := range []struct {
		status int
		codes  string
	}{{500, ""}, {429, ", outlierDetectionHttpErrorCodes: [429, 430]"}} {
		t.Run(http.StatusText(tc.status), func(t *testing.T) {
			t.Parallel()
			policy := "{outlierDetection: {consecutive5xxErrors: 2, interval: 60s, baseEjectionTime: 300s, maxEjectionPercent: 100" + tc.codes + "}}"
			b := newBalancing(t, fmt.Sprintf("127.77.56.%d", 20+i), balanced(policy, backend(t, "good"), failing(t, tc.status)), nil)
			// The second failure ejects the endpoint asynchronously. Until then, every other
			// request reaches it.
			failures, answers := 0, 0 // answers since the last failure
			for deadline := time.Now().Add(2 * time.Minute); answers < 100; {
				if status, _ := b.get(t, webURL, ""); status == http.StatusOK {
					answers++
					continue
				}
				failures, answers = failures+1, 0
				if time.Now().After(deadline) {
					t.Fatalf("%d requests met the endpoint that fails", failures)
				}
			}
			if failures < 2 {
				t.Errorf("the endpoint was ejected after %d failures, want 2", failures)
			}
		})
	}
}

// TestOverflow checks that requests beyond the limit are rejected at once, with the overflow
// response flag.
func TestOverflow(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			arrived <- struct{}{}
			<-release
		}
	}))
	t.Cleanup(s.Close)
	b := newBalancing(t, "127.77.56.30", balanced("{connectionPool: {http: {http2MaxRequests: 1}}}", portOf(t, s.Listener.Addr())), nil)
	done := make(chan int, 1)
	go func() {
		resp, err := b.client.Get(webURL + "slow")
		if err != nil {
			done <- 0
			return
		}
		_ = resp.Body.Close()
		done <- resp.StatusCode
	}()
	<-arrived
	resp, err := b.client.Get(webURL)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("X-Envoy-Overloaded") != "true" {
		t.Errorf("a request beyond the limit: %d, overloaded %q", resp.StatusCode, resp.Header.Get("X-Envoy-Overloaded"))
	}
	close(release)
	if status := <-done; status != http.StatusOK {
		t.Errorf("the request within the limit: %d", status)
	}
	if status, _ := b.get(t, webURL, ""); status != http.StatusOK {
		t.Errorf("a request after it: %d", status)
	}
}

// TestLocalityFailover checks that requests go to the nearest endpoints until those fail.
func TestLocalityFailover(t *testing.T) {
	t.Parallel()
	near := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("near")) }))
	policy := "{outlierDetection: {consecutive5xxErrors: 1, interval: 60s, baseEjectionTime: 300s, maxEjectionPercent: 100}}"
	b := newBalancing(t, "127.77.56.40", balanced(policy, portOf(t, near.Listener.Addr())+" eu/a/1", backend(t, "far")+" us/a/1"),
		func(p *model.Proxy) { p.Locality = "eu/a/1" })
	for range 30 {
		if status, word := b.get(t, webURL, ""); status != http.StatusOK || word != "near" {
			t.Fatalf("%d %q, want the near endpoint", status, word)
		}
	}
	near.Close()
	// Requests detect the failure. Until workers know of it, a retry may succeed and the next fail.
	row := 0
	for deadline := time.Now().Add(2 * time.Minute); row < 30; {
		status, word := b.get(t, webURL, "")
		if row++; status != http.StatusOK {
			row = 0
		} else if word != "far" {
			t.Fatalf("%q answered, want the far endpoint", word)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the last answer was %d %q, want the far endpoint", status, word)
		}
	}
}

// TestLocalityShares checks that distribute determines the shares of the localities.
func TestLocalityShares(t *testing.T) {
	t.Parallel()
	policy := `{loadBalancer: {simple: ROUND_ROBIN, localityLbSetting: {distribute: [{from: "eu/*", to: {"us/*": 80, "asia/*": 20}}]}}}`
	b := newBalancing(t, "127.77.56.41", balanced(policy, backend(t, "eu")+" eu/a/1", backend(t, "us")+" us/a/1", backend(t, "asia")+" asia/a/1"),
		func(p *model.Proxy) { p.Locality = "eu/a/1" })
	count := map[string]int{}
	const all = 500
	for range all {
		_, word := b.get(t, webURL, "")
		count[word]++
	}
	// 20% of 500 is 100, with a standard deviation of 9.
	if count["eu"] != 0 || count["us"]+count["asia"] != all || count["asia"] < 50 || count["asia"] > 150 {
		t.Errorf("requests went to %v, want none to eu, 80 %% to us", count)
	}
}

// TestLogicalDNS checks an endpoint whose name Envoy resolves.
func TestLogicalDNS(t *testing.T) {
	t.Parallel()
	for i, resolution := range []string{"DNS", "DNS_ROUND_ROBIN"} {
		b := newBalancing(t, fmt.Sprintf("127.77.56.%d", 50+i), resolved(resolution, "localhost", "{loadBalancer: {simple: RANDOM}}", backend(t, "named")), nil)
		if status, word := b.get(t, webURL, ""); status != http.StatusOK || word != "named" {
			t.Errorf("%s: %d %q", resolution, status, word)
		}
	}
}

// TestDynamicDNS checks that Envoy resolves the host of a request if it matches the service.
func TestDynamicDNS(t *testing.T) {
	t.Parallel()
	port := backend(t, "dynamic")
	b := newBalancing(t, "127.77.56.55", strings.ReplaceAll(`
kind: ServiceEntry
metadata: {name: wild, namespace: default}
spec:
  hosts: ["*.localhost"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: PORT, name: http, protocol: HTTP}]
---
kind: Sidecar
metadata: {name: default, namespace: default}
spec: {egress: [{hosts: ["*/*"]}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}
`, "PORT", port), nil)
	if status, word := b.get(t, "http://any.localhost:"+port+"/", ""); status != http.StatusOK || word != "dynamic" {
		t.Errorf("a name of the service: %d %q", status, word)
	}
	if status, _ := b.get(t, "http://localhost:"+port+"/", ""); status != http.StatusBadGateway {
		t.Errorf("another name: %d, want 502", status)
	}
}

// TestProxyProtocol checks that the endpoint first receives the address of the client.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	for i, version := range []string{"V1", "V2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			heads := make(chan string, 1)
			go answerOnce(l, version, heads)
			b := newBalancing(t, fmt.Sprintf("127.77.56.%d", 60+i), balanced("{proxyProtocol: {version: "+version+"}}", portOf(t, l.Addr())), nil)
			if status, word := b.get(t, webURL, ""); status != http.StatusOK || word != "done" {
				t.Errorf("%d %q", status, word)
			}
			if head := <-heads; !strings.HasPrefix(head, "TCP4 127.0.0.1") {
				t.Errorf("the head is %q, want the address of the client", head)
			}
		})
	}
}

// answerOnce reads the PROXY header of one connection, sends it to heads, and answers one request.
func answerOnce(l net.Listener, version string, heads chan<- string) {
	conn, err := l.Accept()
	if err != nil {
		heads <- err.Error()
		return
	}
	defer func() { _ = conn.Close() }() // the client has its response
	r := bufio.NewReader(conn)
	if version == "V1" {
		line, _ := r.ReadString('\n') // an error shows in the text
		heads <- strings.TrimPrefix(line, "PROXY ")
	} else {
		head := make([]byte, 16+12) // signature, version, family, length; two IPv4 addresses and ports
		for i := range head {
			if head[i], err = r.ReadByte(); err != nil {
				break
			}
		}
		if string(head[:12]) != "\r\n\r\n\x00\r\nQUIT\n" || head[12] != 0x21 || head[13] != 0x11 {
			heads <- fmt.Sprintf("%x", head)
		} else {
			heads <- "TCP4 " + net.IP(head[16:20]).String()
		}
	}
	if _, err := http.ReadRequest(r); err != nil {
		return
	}
	_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone"))
}
