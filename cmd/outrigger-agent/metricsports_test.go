// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

// scraper returns a client with a certificate for a name, signed by the root of a control plane, or
// without a certificate if the name is empty.
func (c *controlPlane) scraper(t *testing.T, signer *controlPlane, name string) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(c.root)
	// Identities of workloads are not host names, so verify the issuer instead.
	config := &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool})
		return err
	}}
	if name != "" {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		id, err := url.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		leaf := signer.certify(t, &x509.Certificate{URIs: []*url.URL{id}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, signer.root, key)
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, ForceAttemptHTTP2: true}, Timeout: 5 * time.Second}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// answerOf returns the status and body, or 0 and the error if there is no response.
func answerOf(ctx context.Context, client *http.Client, method, url string) (code int, body string) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }() // closing cannot lose data
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

const prometheusID = "spiffe://cluster.local/ns/monitoring/sa/prometheus"

// TestProxySecureMetrics checks that metrics over mutual TLS are available only to peers of the
// mesh, and only at their paths.
func TestProxySecureMetrics(t *testing.T) {
	t.Parallel()
	const address = "127.77.62.1"
	cp, stranger := newControlPlane(t), newControlPlane(t)
	a := startAgent(t, address, `,"terminationDrainDuration":"0s"`, cp,
		"ENVOY_SECURE_METRICS_PORT=15091", "ENVOY_SECURE_MERGED_METRICS_PORT=15092", "METRICS_LOCALHOST_ACCESS_ONLY=true")
	a.waitReady()
	at := func(port int, path string) string {
		return "https://" + net.JoinHostPort(address, strconv.Itoa(port)) + path
	}
	mesh := cp.scraper(t, cp, prometheusID)
	eventually(t, "Envoy has the secrets", func() bool {
		code, _ := answerOf(t.Context(), mesh, http.MethodGet, at(15091, "/stats/prometheus"))
		return code == http.StatusOK
	})

	const envoy, own = "envoy_server_live", "istio_agent_scrapes_total"
	for url, want := range map[string][2]bool{
		at(15091, "/stats/prometheus"):          {true, false},
		at(15091, "/stats/prometheus?usedonly"): {true, false},
		at(15092, "/stats/prometheus"):          {true, true},
		at(15092, "/metrics"):                   {true, true},
	} {
		if code, body := answerOf(t.Context(), mesh, http.MethodGet, url); code != http.StatusOK || strings.Contains(body, envoy) != want[0] || strings.Contains(body, own) != want[1] {
			t.Errorf("%s: got %d, %d bytes, Envoy's metrics %t, the agent's %t", url, code, len(body), strings.Contains(body, envoy), strings.Contains(body, own))
		}
	}
	// A scraper may know this host by any name.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at(15092, "/metrics"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "shop.default.example:15092"
	if resp, err := mesh.Do(req); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("with another host name: got %+v, error %v", resp, err)
	} else {
		_ = resp.Body.Close() // only the status matters
	}
	for _, url := range []string{
		at(15091, "/metrics"), at(15091, "/"), at(15091, "/stats"), at(15091, "/quitquitquit"), at(15091, "/stats/prometheus/../../quitquitquit"), at(15091, "/stats/prometheus/"),
		at(15091, "/config_dump"), at(15091, "/stats/prometheus%2f..%2f..%2fconfig_dump"),
		at(15092, "/"), at(15092, "/quitquitquit"), at(15092, "/drain"), at(15092, "/debug/config"), at(15092, "/debug/pprof/"), at(15092, "/metrics/../quitquitquit"),
		at(15092, "/metrics/"), at(15092, "//metrics"), at(15092, "/healthz/ready"), at(15092, "/app-health/app/livez"), at(15092, "/stats/prometheus/../../debug/config"),
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if code, body := answerOf(t.Context(), mesh, method, url); code != http.StatusNotFound {
				t.Errorf("%s %s: got %d %.100q, want 404", method, url, code, body)
			}
		}
	}
	for name, client := range map[string]*http.Client{
		"no certificate":              cp.scraper(t, cp, ""),
		"certificate of another root": cp.scraper(t, stranger, prometheusID),
		"plaintext, as if there is":   {Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second},
	} {
		for _, port := range []int{15091, 15092} {
			url := at(port, "/stats/prometheus")
			if strings.HasPrefix(name, "plaintext") {
				url = strings.Replace(url, "https", "http", 1)
			}
			if code, body := answerOf(t.Context(), client, http.MethodGet, url); code != 0 {
				t.Errorf("%s: %s: got %d %.100q, want no response", name, url, code, body)
			}
		}
	}
}

// TestProxyMergesWithoutEnvoy checks that Envoy's metrics can be excluded from the merged ones.
func TestProxyMergesWithoutEnvoy(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.62.2", `,"terminationDrainDuration":"0s"`, newControlPlane(t), "PILOT_AGENT_MERGE_ENVOY_STATS=false")
	a.waitReady()
	if code, body := a.get(15020, "/stats/prometheus"); code != http.StatusOK || strings.Contains(body, "\nenvoy_") || !strings.Contains(body, "istio_agent_scrapes_total 1\n") {
		t.Errorf("merged metrics: got %d, %d bytes", code, len(body))
	}
	if code, body := a.get(15090, "/stats/prometheus?filter=server.live"); code != http.StatusOK || strings.Contains(body, "istio_agent_") ||
		!strings.Contains(body, "\nenvoy_server_live{") || strings.Contains(body, "\nenvoy_cluster") || !strings.Contains(body, `istio_build{component="proxy"`) {
		t.Errorf("Envoy's metrics: got %d, %d bytes", code, len(body))
	}
}
