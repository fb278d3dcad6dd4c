// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	coldHost   = "127.9.101.1"
	coldPort   = "8443"
	coldURL    = "https://" + coldHost + ":" + coldPort + "/"
	coldAnswer = "hello from the workload"
	// coldLimit is the target time from a cold start until a request is answered.
	coldLimit = 1500 * time.Millisecond
	// keptMetric is exported once an agent has stored a configuration to start from.
	keptMetric = "\noutrigger_agent_last_good_age_seconds "
)

// coldObjects configure the agent's workload to accept mutual TLS only and to forward requests to
// an application in this program.
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

// coldStart lets agent and Envoy obtain their configuration, stops them and the control plane, and
// restarts them repeatedly from the stored configuration.
func (b *bench) coldStart(ctx context.Context) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, coldAnswer) // a client that cannot read it counts as unanswered
	}))
	defer server.Close()
	objects := filepath.Join(b.path("config"), "coldstart.yaml") // removed before the next part
	writeFile(objects, fmt.Sprintf(coldObjects, coldHost, coldPort, server.Listener.Addr()))
	defer func() { _ = os.Remove(objects) }() // otherwise removed with the directory
	agent, client := b.coldPrepare(ctx)
	took := make([]float64, 0, b.coldStarts)
	late := 0
	for range b.coldStarts {
		took = append(took, b.coldOnce(ctx, agent, client))
		if took[len(took)-1] > coldLimit.Seconds() {
			late++
		}
	}
	what := fmt.Sprintf("cold start without a control plane, %d in a row: ", b.coldStarts)
	b.add(
		figure{Name: what + fmt.Sprintf("no answer over mutual TLS within %s", coldLimit), Unit: count, Ours: float64(late)},
		figure{Name: what + "exec until the answer", Unit: seconds, Ours: median(took, itself), Target: coldLimit.Seconds()},
		figure{Name: what + "the slowest", Unit: seconds, Ours: slices.Max(took), Target: coldLimit.Seconds()})
}

// coldPrepare returns the spec of an agent that has stored its configuration, and a client in the
// mesh. The control plane, with the certificate authority, has been stopped.
func (b *bench) coldPrepare(ctx context.Context) (agentSpec, *http.Client) {
	c := b.startControl(ctx, "cold-control")
	defer c.stop()
	a := agentSpec{address: coldHost, control: c, env: []string{"OUTRIGGER_LAST_GOOD_IDENTITY=true", "ISTIO_META_DNS_CAPTURE=true"}}
	first, certificates := a, b.path("cold-certificates")
	check(os.Mkdir(certificates, 0o700))
	first.env = append(slices.Clone(a.env), "OUTPUT_CERTS="+certificates)
	p := b.startAgent("cold-agent", first)
	defer p.stop()
	p.wait(ctx, statusURL(coldHost, "/healthz/ready"), "")
	client := meshClient(certificates)
	p.waitAnswer(ctx, client, coldURL, coldAnswer)
	p.wait(ctx, statusURL(coldHost, "/stats/prometheus"), keptMetric)
	return a, client
}

// coldOnce starts the agent and returns the time, in seconds, until a request is answered.
func (b *bench) coldOnce(ctx context.Context, a agentSpec, client *http.Client) float64 {
	p := b.startAgent("cold-agent", a)
	defer p.stop()
	took := p.waitAnswer(ctx, client, coldURL, coldAnswer)
	if took > coldLimit.Seconds() {
		b.say("cold start: answered after %.3f s, while the agent wrote:\n%s", took, p.LastWords())
	}
	// Verify that the agent really serves the stored configuration.
	p.wait(ctx, statusURL(coldHost, "/healthz/ready"), "serving last good from ")
	return took
}

// meshClient returns a client with the certificate that an agent wrote. It accepts only servers of
// the same mesh and opens a connection for each request.
func meshClient(dir string) *http.Client {
	cert := must(tls.LoadX509KeyPair(filepath.Join(dir, "cert-chain.pem"), filepath.Join(dir, "key.pem")))
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(must(os.ReadFile(filepath.Join(dir, "root-cert.pem")))) {
		fail("the mesh's roots hold no certificate")
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
		InsecureSkipVerify: true, // a workload's certificate contains no host name; the rest is verified below
		VerifyConnection: func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
			return err
		},
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 2 * time.Second}
}
