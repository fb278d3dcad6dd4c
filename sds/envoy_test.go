// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/sds"
)

// TestEnvoy runs a real Envoy that receives its secrets from the socket of a Server:
//   - a request over mutual TLS succeeds, and Envoy presents the identity of the workload;
//   - a client without a certificate is rejected;
//   - after a renewal, new handshakes use the new certificate.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	r := newRig(t, a)
	address := startEnvoy(t, r.socket)

	first := requestOverTLS(t, a, address)
	if got := first.URIs[0].String(); got != web().String() {
		t.Fatalf("Envoy presents %s, want %s", got, web())
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) // the server must reject the handshake, not the client
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3, the rejection follows the handshake
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a client certificate: got error %v", err)
	}

	// Use certificates that expire within seconds, so that a renewal follows soon.
	short := newAuthority(t)
	short.set(nil, 4*time.Second)
	address = startEnvoy(t, newRig(t, short).socket)
	old := requestOverTLS(t, short, address)
	eventually(t, "Envoy presents the renewed certificate", func() bool {
		return !requestOverTLS(t, short, address).Equal(old)
	})
}

// TestEnvoyWithFiles runs a real Envoy with a certificate from files:
//   - each of ten replacements of the volume takes effect for new handshakes;
//   - a client whose certificate has been revoked is rejected.
func TestEnvoyWithFiles(t *testing.T) {
	t.Parallel()
	a, v := newAuthority(t), &volume{t: t, dir: t.TempDir()}
	r := &rig{authority: a, log: &syncBuffer{}}
	files, revoked := newFiles(t, r.logger(), nil), filepath.Join(t.TempDir(), "crl.pem")
	r.workload = newWorkload(t, a, func(c *sds.WorkloadConfig) { c.Files, c.CRLFile, c.Logger = files, revoked, r.logger() })
	run(t, r.workload)
	r.serve(t, sds.ServerConfig{Workload: r.workload, Files: files, Logger: r.logger()})
	rotate := func() []byte {
		chain, key := a.pair(nil)
		v.write(map[string][]byte{chainFile: chain, keyFile: key})
		return chain
	}
	rotate()
	name := "file-cert:" + v.path(chainFile) + "~" + v.path(keyFile)
	address := startEnvoy(t, r.socket, func(config string) string {
		return strings.Replace(config, "name: default\n", "name: "+name+"\n", 1)
	})
	requestOverTLS(t, a, address)
	client := newWorkload(t, a, nil)
	run(t, client)
	eventually(t, "a certificate for the client", func() bool { return client.Certificate() != nil })
	cfg := &tls.Config{Certificates: []tls.Certificate{*client.Certificate()}, InsecureSkipVerify: true} // the test compares the chain
	for n := range 10 {
		want, start := rotate(), time.Now()
		eventually(t, fmt.Sprintf("Envoy presents certificate %d", n), func() bool {
			conn, err := tls.Dial("tcp", address, cfg)
			if err != nil {
				return false
			}
			_ = conn.Close() // only the handshake matters
			return bytes.Equal(certs.EncodeChain(conn.ConnectionState().PeerCertificates...), want)
		})
		t.Logf("Envoy presents certificate %d after %s", n, time.Since(start))
	}

	write(t, revoked, a.crl(1, time.Hour, client.Certificate().Leaf.SerialNumber))
	eventually(t, "Envoy refuses the revoked certificate", func() bool {
		conn, err := tls.Dial("tcp", address, cfg)
		if err != nil {
			return strings.Contains(err.Error(), "revoked")
		}
		defer func() { _ = conn.Close() }() // read-only: closing cannot lose data
		if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3, the rejection follows the handshake
		return err != nil && strings.Contains(err.Error(), "revoked")
	})
	requestOverTLS(t, a, address) // other clients are accepted
}

// startEnvoy runs an Envoy that receives its secrets from the socket, and returns the address of
// its listener.
func startEnvoy(t *testing.T, socket string, changes ...func(config string) string) string {
	t.Helper()
	text := fmt.Sprintf(envoyConfig, socket)
	for _, change := range changes {
		text = change(text)
	}
	_, addresses := envoytest.Start(t, text, "inbound")
	return addresses["inbound"]
}

// requestOverTLS makes a request with a client certificate of the authority and returns the
// certificate that Envoy presented. It waits until Envoy has its secrets.
func requestOverTLS(t *testing.T, a *authority, address string) *x509.Certificate {
	t.Helper()
	client := newWorkload(t, a, nil)
	run(t, client)
	eventually(t, "a certificate for the client", func() bool { return client.Certificate() != nil })
	roots := x509.NewCertPool()
	roots.AddCert(a.root)
	cfg := &tls.Config{
		Certificates:       []tls.Certificate{*client.Certificate()},
		InsecureSkipVerify: true, // a workload has no DNS name; VerifyConnection verifies the chain
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots})
			return err
		},
	}
	var leaf *x509.Certificate
	var last error
	defer func() {
		if last != nil {
			t.Logf("the last attempt: %v", last)
		}
	}()
	eventually(t, "a request over mutual TLS", func() bool {
		conn, err := tls.Dial("tcp", address, cfg)
		if err != nil {
			last = err
			return false
		}
		defer func() { _ = conn.Close() }() // the response has been read
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
		if err != nil {
			last = err
			return false
		}
		answer, err := io.ReadAll(conn)
		if last = err; err == nil && !bytes.Contains(answer, []byte("hello from envoy")) {
			last = fmt.Errorf("the response is %q", answer)
		}
		leaf = conn.ConnectionState().PeerCertificates[0]
		return last == nil
	})
	return leaf
}

const envoyConfig = `
admin: {address: {socket_address: {address: 127.77.44.4, port_value: 0}}}
node: {id: "sidecar~127.0.0.1~web.default~default.svc.cluster.local", cluster: web}
static_resources:
  clusters:
  - name: sds-grpc
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: sds-grpc
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: "%s"}}}}]}]
  listeners:
  - name: inbound
    address: {socket_address: {address: 127.77.44.4, port_value: 0}}
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_certificate_sds_secret_configs:
            - name: default
              sds_config: &sds
                resource_api_version: V3
                initial_fetch_timeout: 0s
                api_config_source:
                  api_type: GRPC
                  transport_api_version: V3
                  set_node_on_first_message_only: true
                  grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]
            validation_context_sds_secret_config: {name: ROOTCA, sds_config: *sds}
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: inbound
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "hello from envoy"}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`
