// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	coldHost   = "127.9.101.1"
	coldPort   = "8443"
	coldAnswer = "hello from the workload"
	// coldLimit is how long a cold start may take until a request is answered.
	coldLimit = 1500 * time.Millisecond
	// keptMetric is there once an agent has something to start with.
	keptMetric = "\noutrigger_agent_last_good_age_seconds "
)

// coldObjects make the agent a workload that takes mutual TLS only, and hands
// requests to an application of this program.
const coldObjects = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cold, namespace: default}
spec:
  hosts: [cold.mesh.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %[2]s, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: bench}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: cold, namespace: default}
spec: {address: %[1]s, labels: {app: bench}, serviceAccount: default}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: cold, namespace: default}
spec:
  workloadSelector: {labels: {app: bench}}
  ingress: [{port: {number: %[2]s, name: http, protocol: HTTP}, bind: %[1]s, defaultEndpoint: "%[3]s"}]
  egress: [{hosts: ["./*"]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: cold, namespace: default}
spec: {selector: {matchLabels: {app: bench}}, mtls: {mode: STRICT}}
`

// coldStart has agent and Envoy get their configuration, ends them and the
// control plane, and starts them again and again from what they kept.
func (b *bench) coldStart(ctx context.Context) (_ []figure, err error) {
	app, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen as the application: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, coldAnswer) // who does not read it counts as unanswered
	})}
	go func() { _ = server.Serve(app) }()                        // it says that it was closed
	defer func() { err = errors.Join(err, server.Close()) }()    // its connections, too
	objects := filepath.Join(b.path("config"), "coldstart.yaml") // gone before the next part
	if err := writeFile(objects, fmt.Sprintf(coldObjects, coldHost, coldPort, app.Addr())); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(objects)) }()
	agent, client, err := b.coldPrepare(ctx)
	if err != nil {
		return nil, err
	}
	took := make([]float64, 0, b.coldStarts)
	late := 0
	for i := range b.coldStarts {
		d, err := b.coldOnce(ctx, agent, client)
		if err != nil {
			return nil, fmt.Errorf("cold start %d: %w", i+1, err)
		}
		if d > coldLimit {
			late++
		}
		took = append(took, d.Seconds())
	}
	half, err := median(took)
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("cold start without a control plane, %d in a row: ", b.coldStarts)
	return []figure{
		{Name: what + fmt.Sprintf("no answer over mutual TLS within %s", coldLimit), Unit: count, Ours: float64(late)},
		{Name: what + "exec until the answer", Unit: seconds, Ours: half, Target: coldLimit.Seconds()},
		{Name: what + "the slowest", Unit: seconds, Ours: slices.Max(took), Target: coldLimit.Seconds()},
	}, nil
}

// coldPrepare returns the agent as it is to be started, which has kept what it
// needs, and a client of the mesh. The control plane, and with it the
// certificate authority, has ended.
func (b *bench) coldPrepare(ctx context.Context) (agentSpec, *http.Client, error) {
	a := agentSpec{
		address: coldHost, discovery: controlHost + secure, binary: b.envoy,
		env: []string{"OUTRIGGER_LAST_GOOD_IDENTITY=true", "ISTIO_META_DNS_CAPTURE=true"},
	}
	token, rule, err := newIdentity()
	if err != nil {
		return a, nil, err
	}
	c, err := b.startControl(ctx, "cold-control", rule)
	if err != nil {
		return a, nil, err
	}
	defer c.stop()
	a.token, a.root = token, c.root
	first := a
	certificates := b.path("cold-certificates")
	if err := os.Mkdir(certificates, 0o700); err != nil {
		return a, nil, fmt.Errorf("make a directory for certificates: %w", err)
	}
	first.env = append(slices.Clone(a.env), "OUTPUT_CERTS="+certificates)
	p, err := b.startAgent("cold-agent", first)
	if err != nil {
		return a, nil, err
	}
	defer p.stop()
	if _, err := p.wait(ctx, "http://"+coldHost+":15020/healthz/ready", ""); err != nil {
		return a, nil, err
	}
	client, err := meshClient(certificates)
	if err != nil {
		return a, nil, err
	}
	if _, err := p.waitAnswer(ctx, client, "https://"+net.JoinHostPort(coldHost, coldPort)+"/", coldAnswer); err != nil {
		return a, nil, fmt.Errorf("with the control plane: %w", err)
	}
	_, err = p.wait(ctx, "http://"+coldHost+":15020/stats/prometheus", keptMetric)
	return a, client, err
}

// coldOnce starts the agent and returns the time until a request is answered.
func (b *bench) coldOnce(ctx context.Context, a agentSpec, client *http.Client) (time.Duration, error) {
	p, err := b.startAgent("cold-agent", a)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	took, err := p.waitAnswer(ctx, client, "https://"+net.JoinHostPort(coldHost, coldPort)+"/", coldAnswer)
	if err != nil {
		return 0, err
	}
	if took > coldLimit {
		b.say("cold start: answered after %.3f s, while the agent wrote:\n%s", took.Seconds(), p.lastWords())
	}
	// It has to be what it is taken for.
	_, err = p.wait(ctx, "http://"+coldHost+":15020/healthz/ready", "serving last good from ")
	return took, err
}

// meshClient is a client with the certificate that an agent wrote, which takes
// answers from workloads of the same mesh only. Each request has a connection
// of its own.
func meshClient(dir string) (*http.Client, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert-chain.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, fmt.Errorf("read the client's certificate: %w", err)
	}
	pem, err := os.ReadFile(filepath.Join(dir, "root-cert.pem"))
	if err != nil {
		return nil, fmt.Errorf("read the mesh's roots: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("the mesh's roots hold no certificate")
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
		InsecureSkipVerify: true, // a workload's certificate holds no host name; the rest is checked below
		VerifyConnection: func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
			return err
		},
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 2 * time.Second}, nil
}
