// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// labAttacks require a network with several machines.
func labAttacks() []attack {
	return []attack{
		{"STRICT", "with redirection, from another machine over IPv4 and IPv6: plaintext, raw bytes, forged certificates and headers, to ports of services, other ports, 15001 and 15006; from the workload's own machine to 15001 and 15006", "the application sees none of them; a workload of the mesh is served", passRedirected},
		{"hooks", "lifecycle hooks from another machine over IPv4 and IPv6, with forged headers, by other methods and paths", "the application sees none, and the connection ends without an answer; the node runs them", runHooks},
	}
}

// lab is a network of machines: this namespace, a workload whose traffic is redirected to its
// Envoy, and a stranger.
type lab struct{ here, pay, stranger *netlab.Machine }

// lab returns the network shared by the attacks. It exists until this program exits.
func (s *suite) lab() (*lab, error) {
	if s.network != nil {
		return s.network, nil
	}
	if !ownnet.Own() {
		return nil, fmt.Errorf("%w: this needs a network namespace of its own", errSkipped)
	}
	all, err := netlab.Here("control", "pay", "stranger")
	if errors.Is(err, netlab.ErrUnavailable) {
		return nil, fmt.Errorf("%w: %w", errSkipped, err)
	}
	if err != nil {
		return nil, err
	}
	s.network = &lab{all[0], all[1], all[2]}
	return s.network, s.network.pay.Capture(filepath.Join(s.bin, "outrigger-agent"))
}

// greeter listens on a machine, sends a greeting of the application on each TCP connection and
// closes it. It returns a function that stops it.
func greeter(m *netlab.Machine, address string) (func(), error) {
	l, err := m.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "application\n") // the client reports an incomplete greeting
			_ = conn.Close()                             // as above
		}
	}()
	return func() { _ = l.Close() }, nil
}

func passRedirected(ctx context.Context, s *suite) (outcome, error) {
	l, err := s.lab()
	if err != nil {
		return outcome{}, err
	}
	for _, address := range []string{"[::]:5432", "[::]:6000"} {
		end, err := greeter(l.pay, address)
		if err != nil {
			return outcome{}, err
		}
		defer end()
	}
	return rig{lab: l}.run(ctx, s, func(c *sidecar) (string, error) {
		forged, err := c.forgeries()
		if err != nil {
			return "", err
		}
		n := 0
		// 8080 is a port of the service; no object names the application's other ports.
		for _, ip := range []netip.Addr{l.pay.IP4, l.pay.IP6} {
			for _, port := range []uint16{8080, 5432, 6000, 15001, 15006} {
				tried, err := c.intrude(ctx, netip.AddrPortFrom(ip, port).String(), forged)
				if err != nil {
					return "", err
				}
				n += tried
			}
		}
		tried, err := c.forgeHeaders(ctx)
		if err != nil {
			return "", err
		}
		n += tried
		// From its own machine, the redirected ports must not lead to the application either.
		c.dial = l.pay.Dial
		for _, ip := range []string{"127.0.0.1", "::1", l.pay.IP4.String()} {
			for _, port := range []string{"15001", "15006"} {
				for _, text := range []string{"GET / HTTP/1.1\r\nHost: pay.shop.svc.cluster.local:8080\r\n\r\n", "GET http://127.0.0.1:8080/ HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nx-envoy-original-dst-host: 127.0.0.1:8080\r\n\r\n"} {
					n++
					if answer := c.talk(ctx, net.JoinHostPort(ip, port), text); strings.Contains(answer, "application") {
						return "", fmt.Errorf("%s of its own machine, %s: the application answers", port, ip)
					}
				}
			}
		}
		c.dial = l.stranger.Dial
		// The workload is reachable over both families.
		for _, ip := range []netip.Addr{l.pay.IP4, l.pay.IP6} {
			if _, err := c.answer(ctx, netip.AddrPortFrom(ip, 8080).String(), &tls.Config{Certificates: []tls.Certificate{*c.client}}, nil); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d of %d refused", n, n), nil
	})
}

// forgeHeaders sends plaintext requests with headers that some proxies trust.
func (c *sidecar) forgeHeaders(ctx context.Context) (n int, err error) {
	const web = "By=spiffe://cluster.local/ns/shop/sa/pay;URI=spiffe://cluster.local/ns/shop/sa/web"
	for _, header := range []http.Header{
		{"X-Forwarded-Client-Cert": {web}},
		{"X-Forwarded-For": {"127.0.0.1"}, "X-Envoy-Internal": {"true"}},
		{"X-Envoy-Original-Dst-Host": {"127.0.0.1:8080"}, "X-Envoy-Decorator-Operation": {"pay"}},
		{"X-Forwarded-Proto": {"https"}, "Forwarded": {"for=127.0.0.1;proto=https"}},
		{"Upgrade": {"h2c"}, "Connection": {"Upgrade, HTTP2-Settings"}, "Http2-Settings": {"AAMAAABkAAQAAP__"}},
	} {
		for _, port := range []string{"8080", "15006"} {
			n++
			if body, err := c.answer(ctx, port, nil, header); err == nil {
				return n, fmt.Errorf("with %v the application answers %q", header, body)
			}
		}
	}
	return n, nil
}

// hookProbers are a lifecycle hook and a probe of pay, which anyone may request.
const hookProbers = `{"/app-lifecycle/app/prestopz":{"httpGet":{"path":"/stop","port":PORT}},"/app-health/app/livez":{"httpGet":{"path":"/live","port":PORT}}}`

const hookRequest = "GET /app-lifecycle/app/prestopz HTTP/1.1\r\nHost: x"

func runHooks(ctx context.Context, s *suite) (outcome, error) {
	l, err := s.lab()
	if err != nil {
		return outcome{}, err
	}
	stops, err := l.pay.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return outcome{}, err
	}
	var stopped atomic.Int32
	app := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stop" {
			stopped.Add(1)
		}
	})}
	go func() { _ = app.Serve(stops) }() // it ends with Close
	defer func() { _ = app.Close() }()   // it is no longer used
	_, port, err := net.SplitHostPort(stops.Addr().String())
	if err != nil {
		return outcome{}, err
	}
	probers := strings.ReplaceAll(strings.ReplaceAll(hookProbers, `"port":PORT`, `"host":"127.0.0.1","port":PORT`), "PORT", port)
	env := []string{"ISTIO_KUBE_APP_PROBERS=" + probers, "HOST_IP=" + l.here.IP4.String()}
	return rig{lab: l, env: env}.run(ctx, s, func(c *sidecar) (string, error) {
		n := 0
		for _, ip := range []netip.Addr{l.pay.IP4, l.pay.IP6} {
			address := netip.AddrPortFrom(ip, 15020).String()
			for _, header := range []string{
				"Host: x", "Host: localhost", "Host: x\r\nX-Forwarded-For: " + l.here.IP4.String(), "Host: x\r\nX-Forwarded-For: 127.0.0.1",
				"Host: x\r\nForwarded: for=" + l.here.IP4.String(), "Host: x\r\nX-Real-IP: 127.0.0.1", "Host: x\r\nUser-Agent: kube-lifecycle/1.36", "Host: x\r\nX-Envoy-Internal: true",
			} {
				for _, line := range []string{
					"GET /app-lifecycle/app/prestopz", "POST /app-lifecycle/app/prestopz", "GET /app-health/../app-lifecycle/app/prestopz",
					"GET //app-lifecycle/app/prestopz", "GET /app%2dlifecycle/app/prestopz", "GET http://127.0.0.1/app-lifecycle/app/prestopz",
				} {
					n++
					answer := c.whole(ctx, address, line+" HTTP/1.1\r\n"+header)
					if strings.HasPrefix(answer, "HTTP/1.1 200") || stopped.Load() > 0 {
						return "", fmt.Errorf("%s with %q from another machine: the hook ran %d times: %.100s", line, header, stopped.Load(), answer)
					}
				}
			}
			if answer := c.whole(ctx, address, hookRequest); answer != "" {
				return "", fmt.Errorf("the stranger gets an answer, which a kubelet takes for success: %.100s", answer)
			}
			if answer := c.whole(ctx, address, "GET /app-health/app/livez HTTP/1.1\r\nHost: x"); !strings.HasPrefix(answer, "HTTP/1.1 200") {
				return "", fmt.Errorf("a probe is answered with %q: the hooks were not reached either", answer)
			}
		}
		// The kubelet requests it, from the address of the node.
		c.dial = (&net.Dialer{}).DialContext
		answer := c.whole(ctx, netip.AddrPortFrom(l.pay.IP4, 15020).String(), hookRequest)
		if !strings.HasPrefix(answer, "HTTP/1.1 200") || stopped.Load() != 1 {
			return "", fmt.Errorf("the node is answered %q, and the hook ran %d times", answer, stopped.Load())
		}
		return fmt.Sprintf("%d of %d refused", n, n), nil
	})
}
