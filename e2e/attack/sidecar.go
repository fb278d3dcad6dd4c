// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// sidecarAttacks attack an agent and its Envoy.
func sidecarAttacks() []attack {
	return []attack{
		{"STRICT", "plaintext, raw bytes, TLS without a certificate and with a self-made one, to every port of a workload", "the application sees none of them; a workload of the mesh is served", passStrict},
		{"STRICT", "a workload of the mesh sends a forged x-forwarded-client-cert", "the application sees the identity of the certificate only", forgeXFCC},
		{"status port", "scrapes of metrics that nobody reads, on 15020, 15021 and 15090", "readiness and metrics are answered meanwhile", slowScrapes},
		{"debug ports", "questions with a foreign Host header, from a web page, and through a proxy on the same machine, on 15004, 15020 and 8080", "each is refused", rebindDebug},
	}
}

// sidecar is an agent with its Envoy and the application, which responds with the
// x-forwarded-client-cert header that it receives.
type sidecar struct {
	*process
	*plane
	dir, ip string
	client  *tls.Certificate // of shop/web
	// dial opens connections of the attacker.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// payIngress exposes pay's application on ports of its Envoy.
const payIngress = `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: pay, namespace: shop}
spec:
  workloadSelector: {labels: {app: pay}}
  ingress:
  - {port: {number: 8080, protocol: HTTP, name: http}, defaultEndpoint: "APP"}
  - {port: {number: 9000, protocol: TCP, name: tcp}, defaultEndpoint: "APP"}
  - {port: {number: 9090, name: any}, defaultEndpoint: "APP"}
`

// rig configures a sidecar. The zero value is a sidecar in the namespace of this program, without
// interception.
type rig struct {
	config map[string]string // files for the control plane
	env    []string          // for the agent
	// lab contains the machine of the sidecar, whose traffic is redirected.
	lab    *lab
	resolv string // see spec
	// prepare modifies the directory of the agent before it starts.
	prepare func(dir string) error
}

// withSidecar runs a control plane, an application and the agent of shop/pay with its Envoy, and
// calls f.
func withSidecar(ctx context.Context, s *suite, config map[string]string, f func(*sidecar) (string, error), env ...string) (outcome, error) {
	return rig{config: config, env: env}.run(ctx, s, f)
}

// run runs the sidecar and calls f, which returns its observation.
func (r rig) run(ctx context.Context, s *suite, f func(*sidecar) (string, error)) (out outcome, err error) {
	c := &sidecar{ip: s.address(), dial: (&net.Dialer{}).DialContext}
	address, listen, plane := "127.0.0.1:0", net.Listen, s.address()
	if r.lab != nil {
		c.ip, c.dial, plane = r.lab.pay.IP4.String(), r.lab.stranger.Dial, r.lab.here.IP4.String()
		address, listen = "[::]:8080", r.lab.pay.Listen
	}
	app, err := listen("tcp", address)
	if err != nil {
		return out, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "application %s", r.Header.Values("X-Forwarded-Client-Cert")) // the client reports an incomplete response
	}), ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(app) }() // it ends with Close
	defer func() { _ = server.Close() }() // it is no longer used
	files := map[string]string{"shop.yaml": shop(), "strict.yaml": strict}
	if r.lab == nil {
		files["sidecar.yaml"] = strings.ReplaceAll(payIngress, "APP", app.Addr().String())
	} else {
		files["shop.yaml"] = strings.ReplaceAll(shop(), "10.0.0.1", c.ip)
	}
	maps.Copy(files, r.config)
	if c.plane, err = s.newPlaneAt(ctx, plane, files); err != nil {
		return out, err
	}
	defer c.plane.Stop()
	if c.client, err = c.plane.member(ctx, "shop", "web"); err != nil {
		return out, err
	}
	if err := c.launch(ctx, s, r); err != nil {
		return out, err
	}
	defer c.process.Stop()
	out.seen, err = f(c)
	return out, err
}

// launch runs the agent until it is ready and serves the application.
func (c *sidecar) launch(ctx context.Context, s *suite, r rig) (err error) {
	if c.dir, err = s.folder("pay"); err != nil {
		return err
	}
	token, err := c.issuer.good("shop", "pay")
	if err != nil {
		return err
	}
	root, err := os.ReadFile(filepath.Join(c.plane.dir, "state", "root-cert.pem"))
	if err != nil {
		return err
	}
	err = errors.Join(
		write(filepath.Join(c.dir, "etc/istio/pod/labels"), "app=\"pay\"\n", 0o644),
		write(filepath.Join(c.dir, "var/run/secrets/tokens/istio-token"), token, 0o600),
		write(filepath.Join(c.dir, "var/run/secrets/istio/root-cert.pem"), string(root), 0o644))
	if err == nil && r.prepare != nil {
		err = r.prepare(c.dir)
	}
	if err != nil {
		return err
	}
	if c.process, err = start(c.spec(s, r)); err != nil {
		return err
	}
	err = eventually(ctx, func() error {
		select {
		case <-c.process.Ended:
			return nil // the response contains the reason
		default:
		}
		if r.lab == nil { // the agent finds out later than callers
			if code, body, err := get(ctx, "http://"+c.ip+":15020/healthz/ready"); err != nil || code != http.StatusOK {
				return fmt.Errorf("readiness is %d, %v: %s", code, err, body)
			}
		}
		return c.reaches(ctx, nil)
	})
	select {
	case <-c.process.Ended:
		err = errors.New("the agent has ended")
	default:
	}
	if err != nil {
		c.process.Stop()
		return fmt.Errorf("the workload is not served: %w: %s", err, c.process.LastWords())
	}
	return nil
}

// spec returns the spec of the agent.
func (c *sidecar) spec(s *suite, r rig) spec {
	proxy := fmt.Sprintf(`{"discoveryAddress":%q,"binaryPath":%q,"concurrency":1,"terminationDrainDuration":"0.1s","statusPort":15020,"proxyAdminPort":15000}`, c.plane.ip+":15012", s.envoy)
	p := spec{
		path: "/bin/sh", dir: c.dir, resolv: r.resolv, args: []string{"-c", `umask 0; exec "$0" "$@"`, filepath.Join(s.bin, "outrigger-agent"), "proxy", "sidecar", "--domain", "shop.svc.cluster.local"},
		env: []string{
			"POD_NAME=pay", "POD_NAMESPACE=shop", "INSTANCE_IP=" + c.ip, "SERVICE_ACCOUNT=pay", "ISTIO_META_CLUSTER_ID=Kubernetes",
			"PROXY_CONFIG=" + proxy, "ISTIOD_SAN=" + planeName, "TRUST_DOMAIN=cluster.local",
		},
	}
	if r.lab == nil {
		p.env = append(p.env, "ISTIO_META_INTERCEPTION_MODE=NONE", "OUTRIGGER_BIND_ADDRESS="+c.ip)
	} else {
		p.env = append(p.env, "ISTIO_META_INTERCEPTION_MODE=REDIRECT")
		p.at, p.gid = r.lab.pay, netlab.ProxyID
	}
	p.env = append(p.env, r.env...)
	return p
}

// reaches sends a request with mutual TLS and the given headers, and returns an error unless the
// application responds.
func (c *sidecar) reaches(ctx context.Context, header http.Header) error {
	_, err := c.answer(ctx, "8080", &tls.Config{Certificates: []tls.Certificate{*c.client}}, header)
	return err
}

// answer returns the response of the application on a port, or at an address with a port. It uses
// TLS if cfg is not nil.
func (c *sidecar) answer(ctx context.Context, port string, cfg *tls.Config, header http.Header) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	scheme := "http"
	if cfg != nil {
		scheme = "https"
		cfg.InsecureSkipVerify = true // the attacker does not verify the server
	}
	address := net.JoinHostPort(c.ip, port)
	if strings.Contains(port, ":") {
		address = port
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	if header != nil {
		req.Header = header
	}
	req.Host = "pay.shop.svc.cluster.local"
	code, body, err := send(&http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: cfg, DialContext: c.dial}}, req)
	if err == nil && (code != http.StatusOK || !strings.HasPrefix(body, "application")) {
		err = fmt.Errorf("port %s answers %d: %s", port, code, body)
	}
	return body, err
}

func passStrict(ctx context.Context, s *suite) (outcome, error) {
	return withSidecar(ctx, s, nil, func(c *sidecar) (string, error) {
		forged, err := c.forgeries()
		if err != nil {
			return "", err
		}
		n := 0
		for _, port := range []string{"8080", "9000", "9090"} {
			tried, err := c.intrude(ctx, net.JoinHostPort(c.ip, port), forged)
			if err != nil {
				return "", err
			}
			n += tried
		}
		if err := c.reaches(ctx, nil); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d of %d refused", n, n), nil
	})
}

// forgeries returns the TLS configurations of clients outside the mesh; nil means plaintext. The
// key says what is wrong.
func (c *sidecar) forgeries() (map[string]*tls.Config, error) {
	forged, err := selfMade("spiffe://cluster.local/ns/shop/sa/web", c.client.Leaf.Issuer, nil)
	if err != nil {
		return nil, err
	}
	other, err := selfMade("spiffe://other.example/ns/shop/sa/web", pkix.Name{}, nil)
	if err != nil {
		return nil, err
	}
	byWorkload, err := selfMade("spiffe://cluster.local/ns/shop/sa/admin", pkix.Name{}, c.client)
	if err != nil {
		return nil, err
	}
	return map[string]*tls.Config{
		"plaintext": nil, "TLS without a certificate": {}, "TLS with the ALPN of the mesh": {NextProtos: []string{"istio", "istio-peer-exchange", "h2"}},
		"a self-made certificate": {Certificates: []tls.Certificate{*forged}}, "another trust domain": {Certificates: []tls.Certificate{*other}},
		"a certificate that a workload signed": {Certificates: []tls.Certificate{*byWorkload}}, "the name of the service": {ServerName: "pay.shop.svc.cluster.local"},
	}, nil
}

// intrude connects to an address with each forgery and with raw bytes. It returns the number of
// attempts, or an error if the application responds.
func (c *sidecar) intrude(ctx context.Context, address string, forged map[string]*tls.Config) (n int, err error) {
	for name, cfg := range forged {
		n++
		if body, err := c.answer(ctx, address, cfg, nil); err == nil {
			return n, fmt.Errorf("%s, %s: the application answers %q", address, name, body)
		}
	}
	raw := []string{"GET / HTTP/1.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PROXY TCP4 127.0.0.1 127.0.0.1 1 1\r\nGET / HTTP/1.0\r\n\r\n", "\r\n\r\nGET / HTTP/1.0\r\n\r\n"}
	answers := make([]string, len(raw))
	many(len(raw), func(i int) { answers[i] = c.talk(ctx, address, raw[i]) })
	for i, answer := range answers {
		n++
		if strings.Contains(answer, "application") {
			return n, fmt.Errorf("%s, raw bytes %q: the application answers", address, raw[i])
		}
	}
	return n, nil
}

// talk writes a text and returns the response until the connection is closed or silent.
func (c *sidecar) talk(ctx context.Context, address, text string) string {
	return c.exchange(ctx, address, text, time.Second)
}

// whole sends an HTTP request, given without the end of its header, and returns the complete
// response.
func (c *sidecar) whole(ctx context.Context, address, text string) string {
	return c.exchange(ctx, address, text+"\r\nConnection: close\r\n\r\n", patience)
}

func (c *sidecar) exchange(ctx context.Context, address, text string, wait time.Duration) string {
	conn, err := c.dial(ctx, "tcp", address)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()        // the peer may have closed it
	_ = conn.SetDeadline(time.Now().Add(wait)) // cannot fail on an open connection
	_, _ = io.WriteString(conn, text)          // the peer may have closed it
	answer, _ := io.ReadAll(io.LimitReader(conn, 64<<10))
	return string(answer)
}

func forgeXFCC(ctx context.Context, s *suite) (outcome, error) {
	return withSidecar(ctx, s, nil, func(c *sidecar) (string, error) {
		const admin = "By=spiffe://cluster.local/ns/shop/sa/pay;Hash=0;URI=spiffe://cluster.local/ns/shop/sa/admin"
		forgeries := []http.Header{
			{"X-Forwarded-Client-Cert": {admin}},
			{"X-Forwarded-Client-Cert": {admin, admin}},
			{"X-Forwarded-Client-Cert": {admin + ","}},
			{"X_forwarded_client_cert": {admin}},
			{"x-forwarded-client-cert": {admin}},
			{"Connection": {"X-Forwarded-Client-Cert"}, "X-Forwarded-Client-Cert": {admin}},
		}
		for _, header := range forgeries {
			body, err := c.answer(ctx, "8080", &tls.Config{Certificates: []tls.Certificate{*c.client}}, header)
			if err != nil {
				return "", err
			}
			if strings.Contains(body, "sa/admin") || !strings.Contains(body, "URI=spiffe://cluster.local/ns/shop/sa/web") {
				return "", fmt.Errorf("with %v the application sees %s", header, body)
			}
		}
		return fmt.Sprintf("%d of %d replaced", len(forgeries), len(forgeries)), nil
	})
}

func slowScrapes(ctx context.Context, s *suite) (outcome, error) {
	return withSidecar(ctx, s, nil, func(c *sidecar) (string, error) {
		n := s.some(1100, 300)
		err := during(ctx, func(ctx context.Context) error {
			for port, path := range map[string]string{":15020": "/stats/prometheus", ":15090": "/stats/prometheus", ":15021": "/healthz/ready"} {
				conns, end := openConnections(ctx, c.ip+port, n)
				defer end()
				for _, conn := range conns {
					_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second)) // cannot fail on an open connection
					_, _ = io.WriteString(conn, strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n", 20))
				}
			}
			linger(ctx)
			return nil
		}, func(ctx context.Context) error {
			for _, url := range []string{":15020/healthz/ready", ":15021/healthz/ready", ":15020/stats/prometheus"} {
				if code, body, err := get(ctx, "http://"+c.ip+url); err != nil || code != http.StatusOK {
					return fmt.Errorf("%s answers %d, %v: %s", url, code, err, body)
				}
			}
			return nil
		})
		return "all were answered", err
	})
}

func rebindDebug(ctx context.Context, s *suite) (outcome, error) {
	return withSidecar(ctx, s, nil, func(c *sidecar) (string, error) {
		n := 0
		foreign := map[string]http.Header{
			"Host": {}, "Origin": {"Origin": {"https://attacker.example"}, "Sec-Fetch-Site": {"cross-site"}},
			"X-Forwarded-For": {"X-Forwarded-For": {"127.0.0.1"}}, "Forwarded": {"Forwarded": {"for=127.0.0.1"}}, "Via": {"Via": {"1.1 proxy"}},
		}
		for _, target := range []string{"http://" + c.ip + ":15004/agent/xds", "http://" + c.ip + ":15020/debug/config", "http://" + c.plane.ip + ":8080/debug/configz"} {
			if code, body, err := get(ctx, target); err != nil || code != http.StatusOK {
				return "", fmt.Errorf("%s answers %d to a program of this machine (%w): %s", target, code, err, body)
			}
			for name, header := range foreign {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
				if err != nil {
					return "", err
				}
				if req.Header = header; name == "Host" {
					req.Host = "attacker.example"
				}
				n++
				if code, body, err := send(&http.Client{}, req); err != nil || code == http.StatusOK {
					return "", fmt.Errorf("%s with a foreign %s answers %d (%w): %.100s", target, name, code, err, body)
				}
			}
		}
		return fmt.Sprintf("%d of %d refused", n, n), nil
	})
}

func looseFiles(ctx context.Context, s *suite) (outcome, error) {
	return withSidecar(ctx, s, nil, func(c *sidecar) (string, error) {
		sockets := 0
		err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			mode := info.Mode()
			switch name := strings.TrimPrefix(path, c.dir); {
			case mode&fs.ModeSocket != 0:
				sockets++
				if mode.Perm()&0o007 != 0 {
					return fmt.Errorf("socket %s has mode %o", name, mode.Perm())
				}
			case mode.IsRegular() && mode.Perm()&0o002 != 0:
				return fmt.Errorf("file %s is writable for others: %o", name, mode.Perm())
			case strings.HasSuffix(name, "envoy-rev.json") && mode.Perm() != 0o600:
				return fmt.Errorf("the bootstrap has mode %o", mode.Perm())
			case mode.IsRegular():
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				if bytes.Contains(b, []byte("PRIVATE KEY")) {
					return fmt.Errorf("file %s holds a private key", name)
				}
			}
			return nil
		})
		if err == nil && sockets < 2 {
			err = fmt.Errorf("only %d sockets were found", sockets)
		}
		for _, log := range []string{c.process.Output(), c.plane.Output()} {
			if strings.Contains(log, "PRIVATE KEY") || strings.Contains(log, "eyJ") {
				err = errors.Join(err, errors.New("a log holds a key or a token"))
			}
		}
		return "all as promised", err
	})
}
