// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/probe"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"

	"github.com/outrigger-mesh/outrigger/status"
)

const (
	podIP    = "127.77.50.1"
	sourceIP = "127.77.50.6" // source address of the agent's probes, like 127.0.0.6 in a pod
	// patience is the kubelet's timeout in cases that test it; the others use ample.
	patience = 500 * time.Millisecond
	ample    = 15 * time.Second
)

// verdict is what a prober of the kubelet returns, with a class for its message.
type verdict struct {
	result probe.Result
	class  string
}

// verdictOf classifies the kubelet's messages: for a success or a warning the full message, for a
// failure its kind.
func verdictOf(result probe.Result, message string, err error) verdict {
	class := message
	words := strings.ToLower(message + fmt.Sprint(err))
	switch late := strings.Contains(words, "timeout") || strings.Contains(words, "deadline exceeded"); {
	case err != nil && late:
		class = "error: timeout"
	case err != nil:
		class = "error"
	case result != probe.Failure || strings.HasPrefix(message, "HTTP probe failed with statuscode"):
	case late:
		class = "timeout"
	default:
		class = "no answer"
	}
	return verdict{result, class}
}

// unanswered is the agent's response when the application has not responded.
const unanswered = "HTTP probe failed with statuscode: 500"

// same compares a direct verdict with one through the agent. A status below 200 cannot be
// forwarded.
func same(straight, through verdict) bool {
	switch straight.class {
	case "no answer", "HTTP probe failed with statuscode: 99", "HTTP probe failed with statuscode: 101":
		straight.class = unanswered
	}
	return straight == through
}

// agent runs a status server with probes by container, until the test ends.
func agent(t *testing.T, ip string, probes map[string]corev1.Probe) (port int) {
	t.Helper()
	named := map[string]any{}
	for container, p := range probes {
		named["/app-health/"+container+"/readyz"] = struct {
			corev1.ProbeHandler
			TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
		}{p.ProbeHandler, p.TimeoutSeconds}
	}
	return statusServer(t, ip, named)
}

// statusServer runs a status server with probes and hooks by path, until the test ends.
func statusServer(t *testing.T, ip string, named map[string]any) (port int) {
	t.Helper()
	text, err := json.Marshal(named)
	if err != nil {
		t.Fatal(err)
	}
	probers, err := status.ParseProbers(string(text))
	if err != nil {
		t.Fatal(err)
	}
	listener := listen(t, ip)
	source := sourceIP
	if strings.Contains(ip, ":") {
		source = ""
	}
	server, err := status.New(status.Config{
		Listener: listener, Ready: func(context.Context) error { return nil }, Probers: probers,
		InstanceIP: ip, ProbeSourceIP: source, HookSources: status.HookSources{Anybody: true}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the status server ended: %v", err)
		}
	})
	return portOf(listener)
}

// listen opens a port. Its server closes it.
func listen(t *testing.T, ip string) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func portOf(listener net.Listener) int { return listener.Addr().(*net.TCPAddr).Port }

// readyz returns the injector's form of a probe: an HTTP probe of the status port with the same
// headers.
func readyz(container string, port int, headers []corev1.HTTPHeader) corev1.HTTPGetAction {
	return corev1.HTTPGetAction{
		Path: "/app-health/" + container + "/readyz", Port: intstr.FromInt(port), Scheme: corev1.URISchemeHTTP, HTTPHeaders: headers,
	}
}

// ask runs the kubelet's prober as the kubelet does.
func ask(t *testing.T, action corev1.HTTPGetAction, ip string, timeout time.Duration) verdict {
	t.Helper()
	req, err := httpprobe.NewRequestForHTTPGetAction(&action, &corev1.Container{}, ip, "probe")
	if err != nil {
		t.Fatal(err)
	}
	const followNonLocalRedirects = false
	return verdictOf(httpprobe.New(followNonLocalRedirects).Probe(req, timeout))
}

// memory records the requests to an application.
type memory struct {
	mu   sync.Mutex
	seen []string
}

func (m *memory) note(r *http.Request) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/%d host %s", r.Method, r.RequestURI, r.ProtoMajor, r.Host)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(&b, "\n  %s: %q", name, r.Header[name])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = append(m.seen, b.String())
}

// take returns the requests since the last call.
func (m *memory) take() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := strings.Join(m.seen, "\n")
	m.seen = nil
	return all
}

// serve runs a server until the test ends.
func serve(t *testing.T, server *http.Server, listener net.Listener) {
	t.Helper()
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if server.TLSConfig != nil {
			_ = server.ServeTLS(listener, "", "") // it returns only after Close
		} else {
			_ = server.Serve(listener)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}

// serveRaw handles each connection with a function, until the test ends.
func serveRaw(t *testing.T, listener net.Listener, answer func(net.Conn)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				defer stop()
				defer func() { _ = conn.Close() }() // it has been used up
				answer(conn)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		conns.Wait()
	})
}

func itoa(port int) string { return strconv.Itoa(port) }
